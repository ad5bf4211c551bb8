"""Resolve the job of `-c NAME` from the files of a project."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from gpuinfra.diagnostics import Code, Problem
from gpuinfra.models.spec import Spec, TargetOptions
from gpuinfra.models.target import Target
from gpuinfra.runner.job_spec import GpuNeed, JobSpec
from gpuinfra.runner.resolve import read_job
from gpuinfra.workbench.targets import write_target
from tests.unit.provision_help import spec

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
        read_job(project, name)
    return caught.value


def test_run_configuration_names_its_target(project: Path) -> None:
    write(project, my_dsvm__compute=COMPUTE + "nvidiaDocker: true\n", quick__runconfig=RUNCONFIG)
    found = read_job(project, "quick")
    assert (found.configuration, found.target.name, found.target.address) == ("quick", "my_dsvm", "203.0.113.7")
    assert (found.gpu_need, found.base_image, found.in_container) == (GpuNeed.REQUIRED, "a/b:1", True)


def test_container_without_nvidia_docker_gets_no_gpu(project: Path) -> None:
    write(project, my_dsvm__compute=COMPUTE, my_dsvm__runconfig=RUNCONFIG)
    assert read_job(project, "my_dsvm").gpu_need is GpuNeed.NO


@pytest.mark.parametrize(
    ("name", "type_", "gpu"), [("local", "local", GpuNeed.IF_ANY), ("docker", "localdocker", GpuNeed.NO)]
)
def test_local_targets_need_no_file(project: Path, name: str, type_: str, gpu: GpuNeed) -> None:
    found = read_job(project, name)
    assert (found.target.type, found.target.address, found.gpu_need, found.base_image) == (type_, "", gpu, None)


def test_target_without_run_configuration_runs_python(project: Path) -> None:
    write(project, my_dsvm__compute=COMPUTE)
    found = read_job(project, "my_dsvm")
    assert replace(found, script="train.py", words=("--epochs", "3")).command(["python"]) == (
        "python",
        "train.py",
        "--epochs",
        "3",
    )


def test_script_replaces_its_placeholder_in_the_arguments(project: Path) -> None:
    arguments = "Target: my_dsvm\nFramework: Python\nArgumentVector: [-m, cProfile, $file, --fast]\n"
    write(project, my_dsvm__compute=COMPUTE + "pythonLocation: /opt/py\n", my_dsvm__runconfig=arguments)
    found = replace(read_job(project, "my_dsvm"), script="train.py", words=("x",)).command(["python"])
    assert found == ("/opt/py", "-m", "cProfile", "train.py", "--fast", "x")


def test_default_framework_is_pyspark(project: Path) -> None:
    write(project, my_dsvm__compute=COMPUTE, my_dsvm__runconfig="Target: my_dsvm\n")
    assert replace(read_job(project, "my_dsvm"), script="a.py").command(["python"]) == ("spark-submit", "a.py")


def test_run_configuration_of_the_sdk_v1_decides_about_the_container(project: Path) -> None:
    later = (
        "script: train.py\ntarget: local\nenvironment:\n  docker:\n    enabled: true\n    baseImage: c/d:2\n"
        "    gpuSupport: true\n    shmSize: 2g\n    sharedVolumes: false\n"
    )
    write(project, later__runconfig=later)
    found = read_job(project, "later")
    assert (found.target.type, found.base_image, found.gpu_need) == ("localdocker", "c/d:2", GpuNeed.REQUIRED)
    assert (found.script, found.shm_size, found.share) == ("train.py", 2 << 30, None)


def test_job_without_shared_volumes_has_no_shared_folder(project: Path) -> None:
    write(project, my_dsvm__compute=COMPUTE + "sharedVolumes: false\n", my_dsvm__runconfig=RUNCONFIG)
    assert read_job(project, "my_dsvm").share is None


def test_flags_of_the_run_configuration_are_read(project: Path) -> None:
    text = RUNCONFIG + "PrepareEnvironment: false\nTrackedRun: false\nEnvironmentVariables: {A: '1'}\n"
    write(project, my_dsvm__compute=COMPUTE, my_dsvm__runconfig=text)
    found = read_job(project, "my_dsvm")
    assert (found.prepares, found.tracked, found.environment) == (False, False, {"A": "1"})


def test_misspelt_configuration_suggests_the_nearest_name(project: Path) -> None:
    write(project, my_dsvm__compute=COMPUTE, my_dsvm__runconfig=RUNCONFIG)
    (found,) = refusal(project, "my_dvsm").diagnostics
    assert found.code is Code.NO_SUCH_CONFIGURATION
    assert "my_dsvm" in (found.help or "")


def test_unknown_target_is_reported_with_its_line(project: Path) -> None:
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
def test_errors_in_files_are_reported_with_their_location(project: Path, files: dict[str, str], code: Code) -> None:
    write(project, **files)
    problem = refusal(project, "my_dsvm")
    assert problem.diagnostics[0].code is code
    assert problem.diagnostics[0].span
    assert problem.exit_code == 2


def test_errors_in_files_of_other_targets_are_ignored(project: Path) -> None:
    write(project, my_dsvm__compute=COMPUTE, my_dsvm__runconfig=RUNCONFIG, other__runconfig="Target: [\n")
    assert read_job(project, "my_dsvm").target.name == "my_dsvm"


def test_explicit_gpu_setting_is_detected(project: Path) -> None:
    write(project, my_dsvm__compute=COMPUTE, my_dsvm__runconfig=RUNCONFIG)
    assert not read_job(project, "my_dsvm").says_gpu
    write(project, my_dsvm__compute=COMPUTE + "nvidiaDocker: false\n")
    assert read_job(project, "my_dsvm").says_gpu
    later = "script: a.py\ntarget: local\nenvironment:\n  docker:\n    enabled: true\n"
    write(project, later__runconfig=later)
    assert not read_job(project, "later").says_gpu
    write(project, later__runconfig=later + "    gpuSupport: false\n")
    assert read_job(project, "later").says_gpu


COMPUTES = [
    None,
    COMPUTE,
    COMPUTE + "nvidiaDocker: true\n",
    COMPUTE + "nvidiaDocker: false\n",
    COMPUTE.replace("remotedocker", "remote"),
    COMPUTE.replace("remotedocker", "remote") + "nvidiaDocker: false\n",
    COMPUTE + "sharedVolumes: false\npythonLocation: /opt/py\nuserManagedEnvironment: true\n",
]
RUNCONFIGS = [
    None,
    RUNCONFIG,
    "Target: my_dsvm\nCondaDependenciesFile: aml_config/other.yml\nEnvironmentVariables: {A: b}\nTrackedRun: false\n",
    "target: my_dsvm\nscript: a.py\nenvironment: {docker: {enabled: true, baseImage: 'c/d:2', shmSize: 2g}}\n",
]
OPTIONS: list[dict[str, object]] = [
    {},
    {"type": "remote"},
    {"type": "remote", "nvidiaDocker": False},
    {"type": "remotedocker", "nvidiaDocker": False, "baseDockerImage": "e/f:3"},
    {"framework": "PySpark", "condaDependencies": "envs/conda.yml"},
    {"nvidiaDocker": True},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("runconfig", RUNCONFIGS)
@pytest.mark.parametrize("compute", COMPUTES)
def test_job_before_up_is_the_job_after_up(
    project: Path, compute: str | None, runconfig: str | None, options: dict[str, object]
) -> None:
    """`run` resolves the job before it creates the machine. The files that `up` writes then describe the same job."""
    if compute:
        write(project, my_dsvm__compute=compute)
    if runconfig:
        write(project, my_dsvm__runconfig=runconfig)
    (project / "envs").mkdir()
    for file, package in (
        ("aml_config/conda_dependencies.yml", "a"),
        ("aml_config/other.yml", "b"),
        ("envs/conda.yml", "c"),
    ):
        (project / file).write_text(f"dependencies: [{package}]\n")
    machine = spec(name="my-dsvm", target=TargetOptions.model_validate(options))
    before = read_job(project, "my_dsvm", machine)
    write_target(project, target_of(machine))
    after = read_job(project, "my_dsvm")

    def contents(job: JobSpec) -> dict[str, object]:
        found = {each.name: getattr(job, each.name) for each in fields(job) if each.name not in {"target", "packages"}}
        packages = [each.name for each in job.packages.packages] if job.packages else None
        return {**found, "type": job.target.type, "packages": packages}

    assert contents(before) == contents(after)


def target_of(machine: Spec) -> Target:
    """The target that `up` writes for a machine, as `provision.target.target_from_spec` makes it."""
    options = machine.target
    return Target(
        name=machine.target_name,
        machine=machine.name,
        type=options.type,
        address="203.0.113.9",
        port=22,
        username=machine.admin.username,
        host_key="ssh-ed25519 AAAA",
        base_docker_image=options.base_docker_image,
        nvidia_docker=options.nvidia_docker,
        framework=options.framework,
        conda_dependencies=options.conda_dependencies,
        explicit_fields=frozenset(options.model_fields_set),
    )
