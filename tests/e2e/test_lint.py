"""Checking and fixing a project with `lint`."""

import json
import shutil
from pathlib import Path

from tests.cases import LINT_CASES
from tests.e2e.conftest import Run

COMPUTE = "type: localdocker\nbaseDockerImage: microsoft/mmlspark:plus-gpu-0.9.9\n"
RUNCONFIG = "Target: my_dsvm\n"


def project(folder: Path, compute: str = COMPUTE, runconfig: str = RUNCONFIG) -> None:
    files = folder / "aml_config"
    files.mkdir(parents=True)
    (files / "my_dsvm.compute").write_text(compute)
    (files / "my_dsvm.runconfig").write_text(runconfig)


def test_lint_finds_and_fixes_a_project(run: Run, tmp_path: Path) -> None:
    project(tmp_path)
    found = run("lint")
    assert found.returncode == 1
    assert found.stdout == "1 error, 1 warning in 2 files; 2 can be fixed by --fix\n"
    assert "--> aml_config/my_dsvm.compute:2:18" in found.stderr
    repaired = run("lint", "--fix")
    assert repaired.returncode == 0
    assert repaired.stdout.splitlines() == [
        "fixed aml_config/my_dsvm.compute:3 now `nvidiaDocker: true`",
        "fixed aml_config/my_dsvm.runconfig:2 now `Framework: Python`",
        "no problems in 2 files",
    ]
    assert repaired.stderr == ""
    again = run("lint", "--fix", "--strict")
    assert (again.returncode, again.stdout, again.stderr) == (0, "no problems in 2 files\n", "")


def test_lint_reads_the_environments_of_specs(run: Run, tmp_path: Path) -> None:
    shutil.copytree(LINT_CASES / "bad/builds-of-specs/project", tmp_path, dirs_exist_ok=True)
    done = run("lint", "--fix")
    assert (done.returncode, done.stdout) == (1, "17 errors in 8 files\n")
    assert "help: write `torch==2.9.0+cu126`" in done.stderr
    (tmp_path / "cpu.txt").unlink()
    assert "`cpu.txt`, the job's environment, is not a file" in run("lint").stderr


def test_warnings_fail_only_with_strict(run: Run, tmp_path: Path) -> None:
    project(tmp_path / "one", compute=f"{COMPUTE}nvidiaDocker: true\n")
    assert run("lint", "one").returncode == 0
    assert run("lint", "one", "--strict").returncode == 1


def test_lint_json_says_which_findings_can_be_fixed(run: Run, tmp_path: Path) -> None:
    project(tmp_path / "one")
    project(tmp_path / "two", compute=f"{COMPUTE}nvidiaDocker: true\npassword: hunter2\n")
    done = run("lint", "one", "two", "one/aml_config", "--json")
    document = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (1, "")
    assert (document["schemaVersion"], document["projects"], document["fixed"]) == (1, ["one", "two"], [])
    assert [(each["code"], each["fixable"]) for each in document["findings"]] == [
        ("gpu-not-passed-on", True),
        ("pyspark-by-default", True),
        ("plain-secret", False),
        ("pyspark-by-default", True),
    ]
    assert "hunter2" not in done.stdout
    fixed = json.loads(run("lint", "one", "--fix", "--json").stdout)
    assert fixed["findings"] == []
    assert fixed["fixed"][0] == {
        "file": "one/aml_config/my_dsvm.compute",
        "line": 3,
        "code": "gpu-not-passed-on",
        "what": "now `nvidiaDocker: true`",
    }


def test_lint_without_a_project_is_an_error(run: Run, tmp_path: Path) -> None:
    for arguments, word in (((), "no project found"), (("nowhere",), "no such project")):
        done = run("lint", *arguments)
        assert done.returncode == 2
        assert word in done.stderr
    assert run("lint", "--workspace", "nowhere").returncode == 2
