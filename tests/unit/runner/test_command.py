"""What a job's command starts: a file of the project, which must exist, or a program of the environment."""

from pathlib import Path

import pytest

from gpuinfra.diagnostics import Code, Exit, Problem
from gpuinfra.runner.command import hiding_assignment, interpreter_of, project_file, shell_command


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "jobs").mkdir()
    for name in ("train.py", "jobs/go.sh", "plain.sh"):
        (tmp_path / name).write_text("")
    (tmp_path / "jobs/go.sh").chmod(0o755)
    return tmp_path


def found(project: Path, command: str | tuple[str, ...]) -> str:
    program = shell_command(command) if isinstance(command, str) else command
    return project_file(project, program, project)


@pytest.mark.parametrize(
    ("command", "file"),
    [
        ("python train.py --epochs 3", "train.py"),
        ("A=1 B='x y' python3 -u -X dev ./train.py", "train.py"),
        ("# first\n\npython3.12 train.py && echo done", "train.py"),
        ("torchrun --nproc-per-node 4 train.py --out best.py", "train.py"),
        ("accelerate launch --num_processes 2 train.py", "train.py"),
        ("bash -e jobs/go.sh; ls", "jobs/go.sh"),
        ("./jobs/go.sh > outputs/log", "jobs/go.sh"),
        (("jobs/go.sh", "a b"), "jobs/go.sh"),
        (("python", "train.py"), "train.py"),
        # Programs of the environment, and what only the shell knows.
        ("python -m pkg.train", ""),
        ("python -um pkg", ""),
        ("python -c 'import a.py'", ""),
        ("python", ""),
        ("python -", ""),
        ("torchrun -m pkg train.py", ""),
        ("sh -c 'nosuch.py'", ""),
        ("cd jobs && ./other.sh", ""),
        ("$SCRIPT", ""),
        ("python $SCRIPT", ""),
        ("~/bin/tool", ""),
        ("echo 'one\ntwo'", ""),
        ("/opt/conda/bin/python /opt/tool.py", ""),
        (("nosuch", "train.py"), ""),
        (("make",), ""),
    ],
)
def test_file_of_the_project_is_found(project: Path, command: str | tuple[str, ...], file: str) -> None:
    assert found(project, command) == file


@pytest.mark.parametrize(
    ("command", "note"),
    [
        ("python trian.py", "`trian.py`"),
        ("torchrun --nproc-per-node 4 trian.py", "`trian.py`"),
        ("./go.sh", "`./go.sh`"),
        (("jobs/stop.sh",), "`jobs/stop.sh`"),
        (("train.py", "--epochs", "3"), "`train.py` is a file of the project"),
        (("./plain.sh",), "not executable"),
        (("../outside.sh",), "`../outside.sh`"),
    ],
)
def test_command_without_its_file_is_refused(project: Path, command: str | tuple[str, ...], note: str) -> None:
    (project.parent / "outside.sh").write_text("")
    with pytest.raises(Problem) as caught:
        found(project, command)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code in {Code.NO_SCRIPT, Code.SCRIPT_OUTSIDE}
    assert caught.value.exit_code is Exit.USAGE
    assert note in str(diagnostic.note)
    assert diagnostic.help


@pytest.mark.parametrize(
    ("command", "value"),
    [
        ("CUDA_VISIBLE_DEVICES= python train.py", ""),
        ("CUDA_VISIBLE_DEVICES=-1 python train.py", "-1"),
        ("export CUDA_VISIBLE_DEVICES='' && python train.py", ""),
        ('cd x; CUDA_VISIBLE_DEVICES="0,1" python train.py', "0,1"),
        (("env", "CUDA_VISIBLE_DEVICES=", "python"), ""),
        ("CUDA_VISIBLE_DEVICES=$LOCAL_RANK python train.py", None),
        ("MY_CUDA_VISIBLE_DEVICES= python train.py", None),
        ("python train.py", None),
    ],
)
def test_variable_in_the_command_is_found(command: str | tuple[str, ...], value: str | None) -> None:
    program = shell_command(command) if isinstance(command, str) else command
    assert hiding_assignment(program, "CUDA_VISIBLE_DEVICES") == value


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("train.py", "#!/bin/sh\n", ()),
        ("train", "print(1)\n", ()),
        ("train", "#!/usr/bin/env python3\n", ()),
        ("train.PYZ", "", ()),
        ("go.sh", "", ("/bin/sh",)),
        ("go.bash", "ls\n", ("bash",)),
        ("go.sh", "#!/bin/bash\n", ("/bin/bash",)),
        ("go.sh", "#! /bin/bash -eu -o pipefail\n", ("/bin/bash", "-eu -o pipefail")),
        ("go", "#!/usr/bin/env bash\n", ("/usr/bin/env", "bash")),
        ("model.R", "#!/usr/bin/env Rscript\n", ("/usr/bin/env", "Rscript")),
        ("train.Rmd", "#!/usr/bin/python3.12\n", ()),
    ],
)
def test_script_is_run_by_what_its_name_and_first_line_say(
    project: Path, name: str, content: str, expected: tuple[str, ...]
) -> None:
    (project / name).write_text(content)
    assert interpreter_of(project, name) == expected


@pytest.mark.parametrize(
    ("name", "content", "help_line"),
    [
        ("a b.ipynb", "{}", "jupyter nbconvert --to script 'a b.ipynb'"),
        ("model.R", "", "-- Rscript model.R"),
        ("go.sh", "#!/bin/bash\r\nls\r\n", "sed -i"),
        ("go.sh", "ls\r\n", "sed -i"),
    ],
)
def test_script_that_nothing_runs_is_refused(project: Path, name: str, content: str, help_line: str) -> None:
    (project / name).write_text(content, newline="")
    with pytest.raises(Problem) as caught:
        interpreter_of(project, name)
    assert (caught.value.diagnostics[0].code, caught.value.exit_code) == (Code.NO_SCRIPT, Exit.USAGE)
    assert help_line in str(caught.value.diagnostics[0].help)
