"""Lines for pip and conda, and the project's files that they name."""

from pathlib import Path

import pytest

from gpuinfra.diagnostics import Code
from gpuinfra.parse.document import read_document
from gpuinfra.runner.environment.requirements import Requirements
from gpuinfra.workbench.conda import read_conda

FILE = "aml_config/conda_dependencies.yml"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    for name in ("wheels/a-1.0-py3-none-any.whl", "aml_config/b-1.0.tar.gz", "more/a-1.0-py3-none-any.whl"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    (tmp_path / "outside-1.0-py3-none-any.whl").write_bytes(b"not in the project")
    return folder


def pip(project: Path, *lines: str) -> Requirements:
    text = "dependencies:\n  - pip:\n" + "".join(f'    - "{line}"\n' for line in lines)
    return Requirements(read_conda(FILE, read_document(FILE, text.encode()))[0], project)


def written(found: Requirements) -> list[str]:
    """Return the lines for pip, with the paths of files in the project."""
    lines = found.pip_lines()
    for name, file in found.files.items():
        lines = [line.replace(f"./{name}", f"<{file.relative_to(found.root.resolve())}>") for line in lines]
    return lines


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("wheels/a-1.0-py3-none-any.whl", "<wheels/a-1.0-py3-none-any.whl>"),
        ("./wheels/a-1.0-py3-none-any.whl[gpu]", "<wheels/a-1.0-py3-none-any.whl>[gpu]"),
        (".\\\\wheels\\\\a-1.0-py3-none-any.whl", "<wheels/a-1.0-py3-none-any.whl>"),
        ("b-1.0.tar.gz", "<aml_config/b-1.0.tar.gz>"),
        ("../wheels/a-1.0-py3-none-any.whl", "<wheels/a-1.0-py3-none-any.whl>"),
        ("wheels/a-1.0-py3-none-any.whl ; os_name == 'posix'", "<wheels/a-1.0-py3-none-any.whl> ; os_name == 'posix'"),
    ],
)
def test_files_of_the_project_are_sent(project: Path, line: str, expected: str) -> None:
    found = pip(project, line)
    assert written(found) == [expected]
    assert found.diagnostics == []


def test_files_with_the_same_name_stay_separate(project: Path) -> None:
    found = pip(project, "wheels/a-1.0-py3-none-any.whl", "more/a-1.0-py3-none-any.whl")
    assert len(set(found.pip_lines())) == len(found.files) == 2
    assert {Path(name).name for name in found.files} == {"a-1.0-py3-none-any.whl"}


@pytest.mark.parametrize(
    ("line", "code", "label"),
    [
        ("../../outside-1.0-py3-none-any.whl", Code.MISSING_FILE, "it is not in the project"),
        ("link.whl", Code.MISSING_FILE, "it is not in the project"),
        ("/opt/a.whl", Code.MISSING_FILE, "an absolute path, which is not sent to the target"),
        ("C:\\\\wheels\\\\a.whl", Code.MISSING_FILE, "an absolute path, which is not sent to the target"),
        ("~/a.whl", Code.MISSING_FILE, "an absolute path, which is not sent to the target"),
        ("wheels/none-1.0.whl", Code.MISSING_FILE, "the file does not exist"),
        ("circle.whl", Code.MISSING_FILE, "the file does not exist"),
        ("-r none.txt", Code.MISSING_FILE, "the file does not exist"),
        ("-c ../../outside-1.0-py3-none-any.whl", Code.MISSING_FILE, "it is not in the project"),
        (".", Code.BAD_REQUIREMENT, "only wheels and archives are sent to the target"),
        ("./wheels", Code.BAD_REQUIREMENT, "only wheels and archives are sent to the target"),
        ("-e .", Code.BAD_REQUIREMENT, "only wheels and archives are sent to the target"),
        ("keras=2.0.8", Code.BAD_REQUIREMENT, "pip needs `==`; a single `=` is conda's syntax"),
        ("keras 2.0.8", Code.BAD_REQUIREMENT, "pip needs `==`; a space is conda's syntax"),
        ("keras==2.0.8#remark", Code.BAD_REQUIREMENT, "without a space, the `#` is part of the version"),
        ("keras\\n-r /etc/passwd", Code.BAD_REQUIREMENT, "more than one line"),
        ("keras \\\\", Code.BAD_REQUIREMENT, "more than one line"),
        ("-r again.txt", Code.FILE_UNREADABLE, "it cannot be read as requirements"),
        ("-r wheels", Code.FILE_UNREADABLE, "it cannot be read as requirements"),
    ],
)
def test_invalid_line_is_refused_with_its_position(project: Path, line: str, code: Code, label: str) -> None:
    (project / "link.whl").symlink_to("../outside-1.0-py3-none-any.whl")
    (project / "circle.whl").symlink_to("circle.whl")
    (project / "again.txt").write_text("-r again.txt\n")
    found = pip(project, "numpy", line)
    found.pip_lines()
    (diagnostic,) = found.diagnostics
    assert (diagnostic.code, diagnostic.label) == (code, label)
    assert diagnostic.span is not None
    assert diagnostic.span.line == 4
    assert not found.files


def test_fix_is_suggested() -> None:
    found = pip(Path("nowhere"), "keras=2.0.8", "keras==2.0.8#remark")
    found.pip_lines()
    assert [each.help for each in found.diagnostics] == ["write `keras==2.0.8`", "put a space before the `#`"]


@pytest.mark.parametrize(
    "line",
    [
        "--no-index",
        "-i https://host/simple",
        "--find-links https://host/links",
        "-e git+https://host/a.git#egg=a",
        "git+ssh://git@host/a.git@v1#egg=a",
        "numpy==1.13 --hash=sha256:12",
        "numpy>=1.13,<2  # why",
        "legacy==1.0-custom",
        "torch[gpu]==1.0; python_version < '3.6'",
        "http://download.pytorch.org/whl/cu80/torch-0.3.1-cp35-cp35m-linux_x86_64.whl",
    ],
)
def test_other_lines_are_left_to_pip(line: str) -> None:
    found = pip(Path("nowhere"), line)
    assert found.pip_lines() == [line]
    assert found.diagnostics == []


def test_file_for_another_system_may_be_missing(project: Path) -> None:
    found = pip(project, "wheels/windows.whl; sys_platform == 'win32'", "numpy")
    assert found.pip_lines() == ["numpy"]
    assert found.diagnostics == []


def test_included_files_replace_their_line(project: Path) -> None:
    (project / "requirements.txt").write_text(
        "# remark\nnumpy==1.13 \\\n  --hash=sha256:12\n\nwheels/a-1.0-py3-none-any.whl # ours\n-r more/other.txt\n"
    )
    (project / "more" / "other.txt").write_text("./a-1.0-py3-none-any.whl\n")
    (project / "limits.txt").write_text("scipy<1.0\n")
    found = pip(project, "-rrequirements.txt", "scipy", "--constraint=limits.txt")
    assert written(found) == [
        "numpy==1.13    --hash=sha256:12",
        "<wheels/a-1.0-py3-none-any.whl>",
        "<more/a-1.0-py3-none-any.whl>",
        "scipy",
        "--constraint <limits.txt>",
    ]
    assert found.diagnostics == []


def test_packages_in_a_folder_are_sent(project: Path) -> None:
    (project / "wheels" / "notes.txt").write_text("not a package")
    (project / "wheels" / "link.whl").symlink_to("../../outside-1.0-py3-none-any.whl")
    found = pip(project, "--find-links wheels", "a")
    option, package = found.pip_lines()
    assert package == "a"
    assert [f"--find-links ./{Path(name).parent}" for name in found.files] == [option]
    assert [file.name for file in found.files.values()] == ["a-1.0-py3-none-any.whl"]


def test_wheel_among_condas_packages_is_refused() -> None:
    text = "dependencies:\n  - https://host/a-1.0-py3-none-any.whl\n  - https://host/b-1.0-0.tar.bz2\n"
    found = Requirements(read_conda(FILE, read_document(FILE, text.encode()))[0], Path("nowhere"))
    assert found.conda_lines()[1] == "https://host/b-1.0-0.tar.bz2"
    (diagnostic,) = found.diagnostics
    assert (diagnostic.code, diagnostic.help) == (Code.BAD_REQUIREMENT, "move it under `pip:`")


def test_file_that_includes_itself_many_times_is_reported_once(project: Path) -> None:
    (project / "all.txt").write_text("keras\n" + "-r all.txt\n" * 100)
    found = pip(project, "-r all.txt")
    assert found.pip_lines() == ["keras"]
    (problem,) = found.diagnostics
    assert (problem.code, problem.label) == (Code.FILE_UNREADABLE, "it cannot be read as requirements")


def test_files_that_include_each_other_many_times_are_read_once(project: Path) -> None:
    for number in range(7):
        (project / f"{number}.txt").write_text(f"package{number}\n" + f"-r {number + 1}.txt\n" * 30)
    (project / "7.txt").write_text("last\n")
    found = pip(project, "-r 0.txt", "-r 0.txt")
    for _ in range(2):
        assert found.pip_lines() == [*(f"package{number}" for number in range(7)), "last"]
    assert found.diagnostics == []


def test_number_of_included_files_is_limited(project: Path) -> None:
    for number in range(300):
        (project / f"{number}.txt").write_text(f"package{number}\n")
    (project / "all.txt").write_text("".join(f"-r {number}.txt\n" for number in range(300)))
    found = pip(project, "-r all.txt")
    assert len(found.pip_lines()) < 300
    (problem,) = found.diagnostics
    assert problem.label == "it includes more than 200 files"


@pytest.mark.parametrize("line", ["a" + " " * 200_000 + "b", "a[" * 100_000, "keras==" + "1" * 3000])
def test_long_line_is_refused(project: Path, line: str) -> None:
    (project / "all.txt").write_text(f"{line}\n")
    found = pip(project, "-r all.txt")
    assert found.pip_lines() == []
    (problem,) = found.diagnostics
    assert (problem.code, problem.label) == (Code.BAD_REQUIREMENT, "a line is longer than 2000 characters")
    _, (problem,) = read_conda(FILE, read_document(FILE, f'dependencies:\n  - pip:\n    - "{line}"\n'.encode()))
    assert problem.label == "longer than 2000 characters"


def test_hashes_do_not_make_a_line_too_long(project: Path) -> None:
    line = "keras==2.0.8 " + " ".join(f"--hash=sha256:{number:064x}" for number in range(100))
    (project / "all.txt").write_text(line.replace(" --hash", " \\\n    --hash"))
    found = pip(project, "-r all.txt")
    assert [text.split() for text in found.pip_lines()] == [line.split()]
    assert found.diagnostics == []
