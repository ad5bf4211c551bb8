"""What `-c NAME` means, by a project's files alone."""

from pathlib import Path

import pytest

from gpuinfra.diagnostics import Code, Problem
from gpuinfra.models.target import DEFAULT_IMAGE
from gpuinfra.runner.assignment import WantsGpu, assign

COMPUTE = "type: remotedocker\naddress: 203.0.113.7\nusername: me\nhostKey: ssh-ed25519 AAAA\nbaseDockerImage: a/b:1\n"
RUNCONFIG = "Target: my_dsvm\nFramework: Python\nArgumentVector: [$file]\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "aml_config").mkdir()
    return tmp_path


def write(project: Path, **files: str) -> None:
    for name, text in files.items():
        (project / "aml_config" / name.replace("__", ".")).write_text(text)


def refusal(project: Path, name: str) -> Problem:
    with pytest.raises(Problem) as caught:
        assign(project, name)
    return caught.value


def test_a_run_configuration_names_its_target(project: Path) -> None:
    write(project, my_dsvm__compute=COMPUTE + "nvidiaDocker: true\n", quick__runconfig=RUNCONFIG)
    found = assign(project, "quick")
    assert (found.configuration, found.target.name, found.target.address) == ("quick", "my_dsvm", "203.0.113.7")
    assert (found.gpu, found.base_image, found.in_container) == (WantsGpu.REQUIRED, "a/b:1", True)


def test_without_nvidia_docker_a_container_gets_no_gpu(project: Path) -> None:
    write(project, my_dsvm__compute=COMPUTE, my_dsvm__runconfig=RUNCONFIG)
    assert assign(project, "my_dsvm").gpu is WantsGpu.NO


@pytest.mark.parametrize(
    ("name", "type_", "gpu", "image"),
    [("local", "local", WantsGpu.IF_ANY, None), ("docker", "localdocker", WantsGpu.NO, DEFAULT_IMAGE)],
)
def test_this_computer_needs_no_file(project: Path, name: str, type_: str, gpu: WantsGpu, image: str | None) -> None:
    found = assign(project, name)
    assert (found.target.type, found.target.address, found.gpu, found.base_image) == (type_, "", gpu, image)


def test_a_target_without_run_configuration_runs_python(project: Path) -> None:
    write(project, my_dsvm__compute=COMPUTE)
    found = assign(project, "my_dsvm")
    assert found.command("train.py", ["--epochs", "3"], ["python"]) == ("python", "train.py", "--epochs", "3")


def test_the_script_goes_where_the_arguments_say(project: Path) -> None:
    arguments = "Target: my_dsvm\nFramework: Python\nArgumentVector: [-m, cProfile, $file, --fast]\n"
    write(project, my_dsvm__compute=COMPUTE + "pythonLocation: /opt/py\n", my_dsvm__runconfig=arguments)
    found = assign(project, "my_dsvm").command("train.py", ["x"], ["python"])
    assert found == ("/opt/py", "-m", "cProfile", "train.py", "--fast", "x")


def test_a_framework_that_is_not_said_is_pyspark(project: Path) -> None:
    write(project, my_dsvm__compute=COMPUTE, my_dsvm__runconfig="Target: my_dsvm\n")
    assert assign(project, "my_dsvm").command("a.py", [], ["python"]) == ("spark-submit", "a.py")


def test_the_later_generation_says_itself_whether_there_is_a_container(project: Path) -> None:
    later = (
        "script: train.py\ntarget: local\nenvironment:\n  docker:\n    enabled: true\n    baseImage: c/d:2\n"
        "    gpuSupport: true\n    shmSize: 2g\n    sharedVolumes: false\n"
    )
    write(project, later__runconfig=later)
    found = assign(project, "later")
    assert (found.target.type, found.base_image, found.gpu) == ("localdocker", "c/d:2", WantsGpu.REQUIRED)
    assert (found.script, found.shm_size, found.share) == ("train.py", "2g", None)


def test_volumes_that_are_not_shared_are_not_there(project: Path) -> None:
    write(project, my_dsvm__compute=COMPUTE + "sharedVolumes: false\n", my_dsvm__runconfig=RUNCONFIG)
    assert assign(project, "my_dsvm").share is None


def test_flags_of_the_run_configuration(project: Path) -> None:
    text = RUNCONFIG + "PrepareEnvironment: false\nTrackedRun: false\nEnvironmentVariables: {A: '1'}\n"
    write(project, my_dsvm__compute=COMPUTE, my_dsvm__runconfig=text)
    found = assign(project, "my_dsvm")
    assert (found.prepares, found.tracked, found.environment) == (False, False, {"A": "1"})


def test_a_misspelt_name_gets_the_nearest(project: Path) -> None:
    write(project, my_dsvm__compute=COMPUTE, my_dsvm__runconfig=RUNCONFIG)
    (found,) = refusal(project, "my_dvsm").diagnostics
    assert found.code is Code.NO_SUCH_CONFIGURATION
    assert "my_dsvm" in (found.help or "")


def test_a_target_that_is_not_there_has_a_place(project: Path) -> None:
    write(project, quick__runconfig=RUNCONFIG)
    (found,) = refusal(project, "quick").diagnostics
    assert found.code is Code.UNKNOWN_TARGET
    assert found.span
    assert found.span.line == 1


@pytest.mark.parametrize(
    ("files", "code"),
    [
        ({"my_dsvm__compute": COMPUTE, "my_dsvm__runconfig": "Target: [\n"}, Code.INVALID_YAML),
        ({"my_dsvm__compute": COMPUTE, "my_dsvm__runconfig": "Target: {a: b}\n"}, Code.WRONG_TYPE),
        ({"my_dsvm__compute": "type: remotdocker\n", "my_dsvm__runconfig": RUNCONFIG}, Code.UNKNOWN_VALUE),
        ({"my_dsvm__compute": "type: cluster\naddress: a\nusername: b\n"}, Code.UNFIT_MACHINE),
        ({"my_dsvm__compute": "type: remotedocker\n"}, Code.UNFIT_MACHINE),
    ],
)
def test_what_is_wrong_with_the_files_has_a_place(project: Path, files: dict[str, str], code: Code) -> None:
    write(project, **files)
    problem = refusal(project, "my_dsvm")
    assert problem.diagnostics[0].code is code
    assert problem.diagnostics[0].span
    assert problem.exit_code == 2


def test_files_of_other_targets_may_be_wrong(project: Path) -> None:
    write(project, my_dsvm__compute=COMPUTE, my_dsvm__runconfig=RUNCONFIG, other__runconfig="Target: [\n")
    assert assign(project, "my_dsvm").target.name == "my_dsvm"


def test_whether_a_file_itself_says_anything_of_gpus(project: Path) -> None:
    write(project, my_dsvm__compute=COMPUTE, my_dsvm__runconfig=RUNCONFIG)
    assert not assign(project, "my_dsvm").says_gpu
    write(project, my_dsvm__compute=COMPUTE + "nvidiaDocker: false\n")
    assert assign(project, "my_dsvm").says_gpu
    later = "script: a.py\ntarget: local\nenvironment:\n  docker:\n    enabled: true\n"
    write(project, later__runconfig=later)
    assert not assign(project, "later").says_gpu
    write(project, later__runconfig=later + "    gpuSupport: false\n")
    assert assign(project, "later").says_gpu
