"""The order of spec, run configuration and command line, resolved once."""

from pathlib import Path
from typing import Any

import pytest

from gpuinfra.app.job_request import JobRequest, describe_job, resolve_job_of_machine
from gpuinfra.diagnostics import Code, Problem
from gpuinfra.models.job import Job
from gpuinfra.models.spec import Spec, TargetOptions
from gpuinfra.runner.connection import passwords
from gpuinfra.runner.job_spec import JobSpec
from tests.unit.provision_help import spec

SDK = "target: my_dsvm\nscript: later.py\nframework: Python\n"
ARGUMENTS = "Target: my_dsvm\nFramework: Python\nArgumentVector: [$file, --fast]\n"
RUNCONFIG = f"{ARGUMENTS}EnvironmentVariables: {{A: file, B: file}}\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "aml_config").mkdir()
    for name in ("train.py", "later.py"):
        (tmp_path / name).write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(passwords, "find_secret", {"KEPT": "from the keyring"}.get)
    return tmp_path


def machine(job: dict[str, Any], **target: Any) -> Spec:
    return spec(name="my-dsvm", target=TargetOptions.model_validate(target), job=Job.model_validate(job))


def resolve(project: Path, job: dict[str, Any], request: JobRequest | None = None, **target: Any) -> JobSpec:
    return resolve_job_of_machine(project, machine(job, **target), request or JobRequest(None))


def refusal(project: Path, job: dict[str, Any], request: JobRequest | None = None, **target: Any) -> Code:
    with pytest.raises(Problem) as caught:
        resolve(project, job, request, **target)
    return caught.value.diagnostics[0].code


def test_command_of_the_spec_runs_by_a_shell_or_as_it_is(project: Path) -> None:
    line = resolve(project, {"command": "python train.py | tee outputs/log"})
    assert line.command(["python3"]) == ("/bin/sh", "-c", "python train.py | tee outputs/log")
    assert (line.script, line.title) == ("train.py", "python train.py | tee outputs/log")
    words = resolve(project, {"command": ("python", "-m", "a b")})
    assert words.command(["python3"]) == ("python", "-m", "a b")
    assert (words.script, words.title) == ("", "python -m 'a b'")


def test_command_line_overrides_run_configuration_and_spec(project: Path) -> None:
    declared = {"command": "python train.py", "timeout": "6h"}
    assert resolve(project, declared).timeout == 6 * 3600
    looked = {**declared, "keepOnFailure": "30m"}
    assert resolve(project, looked).keep_on_failure == 1800
    assert resolve(project, looked, JobRequest(None, keep_on_failure="1h")).keep_on_failure == 3600
    (project / "aml_config/my_dsvm.runconfig").write_text(SDK)
    assert resolve(project, declared).command(["py"]) == ("py", "later.py")
    given = resolve(project, declared, JobRequest("train.py", ("x",), timeout="30s"))
    assert (given.command(["py"]), given.timeout) == (("py", "train.py", "x"), 30)
    assert resolve(project, declared, JobRequest(None, command=("nvidia-smi", "-L"))).command(["py"])[0] == "nvidia-smi"


def test_variables_come_from_spec_run_configuration_and_command_line(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "aml_config/my_dsvm.runconfig").write_text(RUNCONFIG)
    monkeypatch.setenv("KEY", "from the shell")
    declared = {"env": {"A": "spec", "B": "spec", "C": "spec"}, "secrets": ("KEY", "KEPT", "GIVEN")}
    found = resolve(project, declared, JobRequest("train.py", environment=("B=line", "GIVEN=line")))
    assert found.variables == {"A": "file", "B": "line", "C": "spec"}
    assert found.secrets == {"KEY": "from the shell", "KEPT": "from the keyring", "GIVEN": "line"}
    assert found.command(["py"]) == ("py", "train.py", "--fast")
    assert refusal(project, {"secrets": ("NOWHERE",)}, JobRequest("train.py")) is Code.MISSING_SECRET


def test_environment_of_the_spec_replaces_that_of_the_files(project: Path) -> None:
    (project / "aml_config/conda_dependencies.yml").write_text("dependencies: [a]\n")
    (project / "environment.yml").write_text("dependencies: [b]\n")
    image = resolve(project, {"command": "python train.py", "environment": {"image": "own/image:1"}})
    assert (image.base_image, image.packages) == ("own/image:1", None)
    conda = resolve(project, {"command": "python train.py", "environment": {"conda": "environment.yml"}})
    assert conda.packages
    assert [each.name for each in conda.packages.packages] == ["b"]
    declared = {"command": "python train.py", "environment": {"conda": "missing.yml"}}
    assert refusal(project, declared) is Code.MISSING_FILE
    (project / "environment.yml").write_text("dependencies: {a: b}\n")
    assert refusal(project, {**declared, "environment": {"conda": "environment.yml"}}) is not Code.MISSING_FILE


def test_environment_for_a_target_without_containers_is_refused(project: Path) -> None:
    declared = {"command": "python train.py", "environment": {"image": "own/image:1"}}
    assert refusal(project, declared, type="remote") is Code.NO_EFFECT


def test_project_files_decide_in_order(project: Path) -> None:
    def source(environment: dict[str, str] | None = None, **target: Any) -> str:
        job = {"command": "python train.py", **({} if environment is None else {"environment": environment})}
        return resolve(project, job, **target).environment_source

    assert source() == "", "nothing has to be installed"
    (project / "Dockerfile").write_text("FROM scratch\n")
    assert source() == "Dockerfile (a file of the project)"
    (project / "pyproject.toml").write_text("[tool.ruff]\n")
    assert source().startswith("Dockerfile"), "the file has only settings of tools"
    (project / "pyproject.toml").write_text('[project]\nname = "a"\nversion = "1"\ndependencies = ["b"]\n')
    assert source() == "pyproject.toml (a file of the project)"
    (project / "requirements.txt").write_text("c\n")
    assert source() == "requirements.txt (a file of the project)"
    lock = '[[package]]\nname = "{}"\nversion = "1"\nsource = {}\ndependencies = [{}]\n'
    locked = lock.format("a", '{ virtual = "." }', '{ name = "b" }')
    locked += '[package.metadata]\nrequires-dist = [{ name = "b" }]\n'
    (project / "uv.lock").write_text(locked + lock.format("b", '{ registry = "https://pypi.org/simple" }', ""))
    assert source() == "pyproject.toml with uv.lock (a file of the project)"
    (project / "environment.yml").write_text("dependencies: [d]\n")
    assert source() == "environment.yml (a file of the project)"
    (project / "aml_config/conda_dependencies.yml").write_text("dependencies: [e]\n")
    assert source() == "aml_config/conda_dependencies.yml (the run configuration)"
    assert source({}) == source()
    assert source({"requirements": "requirements.txt"}) == "requirements.txt (`job.environment` of the spec)"

    # Without a container, only the spec asks for an environment.
    assert source(type="remote") == ""
    remote = resolve(project, {"command": "python train.py", "environment": {}}, type="remote")
    assert (remote.has_own_environment, remote.environment_source) == (True, source())


def test_build_for_the_cpu_is_found_in_the_files(project: Path) -> None:
    (project / "requirements.txt").write_text("--extra-index-url https://download.pytorch.org/whl/cpu\ntorch==2.7.1\n")
    job = {"command": "python train.py", "environment": {"requirements": "requirements.txt"}}
    assert refusal(project, job) is Code.CPU_ONLY_PACKAGE
    assert refusal(project, job, type="remote") is Code.CPU_ONLY_PACKAGE


@pytest.mark.parametrize(
    "environment",
    [
        {"requirements": "missing.txt"},
        {"pyproject": "sub/pyproject.toml"},
        {"dockerfile": "missing/Dockerfile"},
        {"dockerfile": "train.py", "context": "missing"},
    ],
)
def test_missing_environment_file_is_refused(project: Path, environment: dict[str, str]) -> None:
    assert refusal(project, {"command": "python train.py", "environment": environment}) is Code.MISSING_FILE


@pytest.mark.parametrize(
    ("job", "code"),
    [
        ({}, Code.USAGE),
        ({"command": ("", "train.py")}, Code.USAGE),
        ({"command": "python missing.py"}, Code.NO_SCRIPT),
        ({"command": "CUDA_VISIBLE_DEVICES= python train.py"}, Code.NO_GPU),
        ({"command": "python train.py", "env": {"CUDA_VISIBLE_DEVICES": "-1"}}, Code.NO_GPU),
        ({"command": "python saved/train.py", "outputs": ("saved/",)}, Code.SCRIPT_OUTSIDE),
    ],
)
def test_job_that_cannot_run_is_refused(project: Path, job: dict[str, Any], code: Code) -> None:
    (project / "saved").mkdir()
    (project / "saved/train.py").write_text("")
    assert refusal(project, job) is code


def test_spec_with_a_job_describes_the_same_machine() -> None:
    assert machine({"command": "python train.py"}).digest() == spec(name="my-dsvm", target=TargetOptions()).digest()


def test_description_has_names_of_secrets_and_no_values(project: Path) -> None:
    text = f"{ARGUMENTS}EnvironmentVariables: {{A: file, HF_TOKEN: plain-text, KEY: plain-text}}\n"
    (project / "aml_config/my_dsvm.runconfig").write_text(text)
    declared = {"command": "python train.py --password geheim", "env": {"B": "spec"}, "secrets": ("KEPT", "KEY")}
    found = describe_job(
        project, machine({**declared, "outputs": ("saved",), "timeout": "6h", "keepOnFailure": "1h"}, type="remote")
    )
    assert found
    assert (found.variables, found.secrets) == ({"A": "file", "B": "spec", "HF_TOKEN": "***"}, ("KEPT", "KEY"))
    assert (found.missing_secrets, found.outputs, found.timeout) == (("KEY",), ("outputs/", "saved/"), 6 * 3600)
    assert found.keep_on_failure == 3600
    assert (found.needs_gpu, found.image, found.problem) == (True, None, "")
    printed = str(found.as_json())
    assert not any(value in printed for value in ("plain-text", "geheim", "from the keyring"))


def test_description_of_a_job_that_cannot_run_says_why(project: Path) -> None:
    found = describe_job(project, machine({"command": "python trian.py", "env": {"B": "spec"}}))
    assert found
    assert found.problem.startswith("no such script: `trian.py`")
    assert (found.variables, found.command) == ({"B": "spec"}, ())


def test_description_without_a_command_leaves_it_open(project: Path) -> None:
    found = describe_job(project, machine({"env": {"B": "spec"}}))
    assert found
    assert (found.command, found.title, found.problem, found.image) == ((), "", "", None)
    assert describe_job(project, spec(name="my-dsvm", target=TargetOptions())) is None
