"""A project becomes a spec: the chosen target, the imported values, the missing equivalents."""

from pathlib import Path
from typing import Any

import pytest

from gpuinfra.diagnostics import Code, Exit, Problem
from gpuinfra.models.images import ALIAS_DRIVER
from gpuinfra.models.sizes import GPU_MODELS
from gpuinfra.models.spec import Spec
from gpuinfra.parse.spec import load_bytes
from gpuinfra.workbench.base_images import choose_base_image
from gpuinfra.workbench.cuda import NEEDED, cuda_of, is_for_gpu
from gpuinfra.workbench.project import load_project
from gpuinfra.workbench.project_import import ImportOptions, ImportResult, import_project
from gpuinfra.workbench.unsupported import UnsupportedItem

DEFAULT_IMAGE = choose_base_image(str(ALIAS_DRIVER)).name
COMPUTE = """address: 198.51.100.7:5022
baseDockerImage: nvidia/cuda:11.8.0-cudnn8-runtime-ubuntu22.04
nativeSharedDirectory: /data
nvidiaDocker: true
password: AzureMlSecret=my_dsvm#ada#0123456789abcdef0123456789abcdef
sharedVolumes: false
type: remotedocker
username: ada
"""
RUNCONFIG = "CondaDependenciesFile: env\\gpu.yml\nEnvironmentVariables: {A: b}\nFramework: Python\nTarget: my_dsvm\n"
DOCKER = "type: docker\nbaseDockerImage: microsoft/mmlspark:plus-0.9.9\n"
LOCAL = "type: local\npythonLocation: python\n"
CLUSTER = "type: cluster\naddress: hdi.example.com\nyarnDeployMode: cluster\n"
LATER = """script: train.py
target: gpu-box
framework: Python
environment:
  docker: {enabled: true, baseImage: "example.com/cuda11.0/torch:1", gpuSupport: true, shmSize: 2g}
  python: {condaDependenciesFile: .azureml/conda.yml}
communicator: Mpi
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project's folder with a valid machine name."""
    return tmp_path / "mnist"


def make(folder: Path, **files: str) -> None:
    """Write files of `aml_config`; `__` stands for the period in a name."""
    config = folder / "aml_config"
    config.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (config / name.replace("__", ".")).write_text(text)


def do_import(folder: Path, **options: str) -> tuple[ImportResult, Spec]:
    imported = import_project(load_project(folder), ImportOptions(**options))
    loaded = load_bytes("gpu.yaml", imported.spec_text.encode())
    assert loaded.diagnostics == []
    (located,) = loaded.specs
    assert (located.spec.name, located.spec.target_name) == (imported.name, imported.target)
    return imported, located.spec


def entries(imported: ImportResult) -> list[str]:
    """Return each as `file:line:column what`."""
    return [f"{place(missing)} {missing.what}".strip() for missing in imported.missing]


def place(missing: UnsupportedItem) -> str:
    span = missing.span
    return f"{Path(span.file).name}:{span.line}:{span.column}" if span else ""


def refuse(folder: Path, **options: str) -> Any:
    with pytest.raises(Problem) as caught:
        do_import(folder, **options)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.help
    return diagnostic, caught.value.exit_code


# Imported values


def test_gpu_machine_is_imported(folder: Path) -> None:
    make(folder, my_dsvm__compute=COMPUTE, my_dsvm__runconfig=RUNCONFIG)
    imported, spec = do_import(folder)
    assert (spec.name, spec.target_name, spec.admin.username) == ("my-dsvm", "my_dsvm", "ada")
    assert (spec.regions, spec.sizes) == (("southcentralus",), ("Standard_NC4as_T4_v3",))
    assert (spec.target.type, spec.target.nvidia_docker) == ("remotedocker", True)
    assert spec.target.base_docker_image == "nvidia/cuda:11.8.0-cudnn8-runtime-ubuntu22.04"
    assert (spec.target.framework, spec.target.conda_dependencies) == ("Python", "env/gpu.yml")
    assert entries(imported) == [
        "my_dsvm.compute:1:10 the machine at this address is not imported",
        "my_dsvm.compute:5:11 `password` is not imported",
    ]


def test_python_location_is_ignored_for_containers(folder: Path) -> None:
    make(folder, box__compute="type: remotedocker\nnvidiaDocker: true\npythonLocation: python3\n")
    assert do_import(folder)[0].missing == ()


def test_spec_contains_no_secret_and_no_address(folder: Path) -> None:
    make(folder, my_dsvm__compute=COMPUTE, my_dsvm__runconfig=RUNCONFIG)
    imported, _ = do_import(folder)
    words = imported.spec_text + "".join(f"{each.what}{each.instead}" for each in imported.missing)
    assert not [word for word in ("198.51.100.7", "5022", "AzureMlSecret", "0123456789abcdef") if word in words]


def test_defaults_are_marked_in_the_spec(folder: Path) -> None:
    make(folder, my_dsvm__compute=COMPUTE)
    text = do_import(folder)[0].spec_text
    assert text.count("The project does not say") == 2
    imported, spec = do_import(folder, region="eastus", size="Standard_NC24ads_A100_v4", name="another")
    assert (spec.name, spec.regions, spec.sizes) == ("another", ("eastus",), ("Standard_NC24ads_A100_v4",))
    assert "The project does not say" not in imported.spec_text
    assert spec.target_name == "my_dsvm"


def test_machine_without_a_container_is_imported(folder: Path) -> None:
    make(folder, box__compute="type: remote\nusername: ada\nbaseDockerImage: a::b\npythonLocation: python3\n")
    imported, spec = do_import(folder)
    assert (spec.target.type, "baseDockerImage" in imported.spec_text) == ("remote", False)
    assert entries(imported) == ["box.compute:4:17 `pythonLocation`: a new machine may have no Python there"]


@pytest.mark.parametrize(
    ("old", "name"),
    [
        ("my_dsvm", "my-dsvm"),
        ("DSVM-Ubuntu-GPU", "DSVM-Ubuntu-GPU"),
        ("azure", "azure-gpu"),
        ("windows_box", "mnist"),
        ("login1", "mnist"),
        ("a" * 64, "a" * 60),
    ],
)
def test_machine_name_is_derived_from_the_target(folder: Path, old: str, name: str) -> None:
    make(folder, **{f"{old}__compute": COMPUTE})
    imported, spec = do_import(folder)
    assert (spec.name, imported.target) == (name, old)


def test_target_name_that_a_spec_refuses_is_changed(folder: Path) -> None:
    make(folder, **{"my box__compute": COMPUTE})
    imported, spec = do_import(folder)
    assert (spec.name, imported.target) == ("my-box", "my_box")
    assert any(
        entry.startswith("my box.compute:7:7 `my box` is not a valid target name") for entry in entries(imported)
    )


@pytest.mark.parametrize("username", ["admin", "<YOUR DSVM USERNAME>", "Ada", "'[you]'"])
def test_user_name_that_azure_refuses_becomes_the_default(folder: Path, username: str) -> None:
    make(folder, box__compute=COMPUTE.replace("ada\n", f"{username}\n"))
    imported, spec = do_import(folder)
    assert spec.admin.username == "azureuser"
    assert any(entry.startswith("box.compute:8:11 ") and "administrator" in entry for entry in entries(imported))


@pytest.mark.parametrize("path", ["/etc/conda.yml", "..\\conda.yml", "conda.txt"])
def test_environment_that_a_spec_refuses_becomes_the_default(folder: Path, path: str) -> None:
    make(folder, box__compute=COMPUTE, box__runconfig=f"Framework: Python\nCondaDependenciesFile: {path}\n")
    imported, spec = do_import(folder)
    assert spec.target.conda_dependencies == "aml_config/conda_dependencies.yml"
    assert any(entry.startswith("box.runconfig:2:24 ") for entry in entries(imported))


def test_missing_framework_is_pyspark(folder: Path) -> None:
    make(folder, box__compute=COMPUTE, box__runconfig="Target: box\n")
    assert do_import(folder)[1].target.framework == "PySpark"


def test_yaml_like_names_stay_strings(folder: Path) -> None:
    make(folder, **{"1e3__compute": COMPUTE.replace("username: ada", "username: yes_me")})
    _, spec = do_import(folder)
    assert (spec.name, spec.target_name, spec.admin.username) == ("1e3", "1e3", "yes_me")


# The image and the GPU


@pytest.mark.parametrize(
    ("image", "size", "kept"),
    [
        ("microsoft/mmlspark:plus-gpu-0.9.9", "Standard_NC4as_T4_v3", False),
        ("microsoft/mmlspark:gpu-0.7.91", "Standard_NC4as_T4_v3", False),
        ("nvidia/cuda:9.2-runtime", "Standard_NC4as_T4_v3", False),
        ("nvidia/cuda:10.0-runtime", "Standard_NC4as_T4_v3", True),
        ("nvidia/cuda:10.2-runtime", "Standard_NC24ads_A100_v4", False),
        ("mcr.microsoft.com/azureml/openmpi4-cuda11.0-ubuntu18.04", "Standard_NC24ads_A100_v4", True),
        ("mcr.microsoft.com/azureml/openmpi4-cuda11.0-ubuntu18.04", "Standard_NC40ads_H100_v5", False),
        ("example.com/own:1", "Standard_NC40ads_H100_v5", True),
    ],
)
def test_image_that_cannot_use_the_gpu_is_replaced(folder: Path, image: str, size: str, kept: bool) -> None:
    make(folder, box__compute=f"type: remotedocker\nbaseDockerImage: {image}\nnvidiaDocker: true\n")
    imported, spec = do_import(folder, size=size)
    assert spec.target.base_docker_image == (image if kept else DEFAULT_IMAGE)
    assert [entry for entry in entries(imported) if "cannot use this size's GPU" in entry] == (
        [] if kept else [entry for entry in entries(imported) if entry.startswith(f"box.compute:2:18 `{image}`")]
    )
    assert kept == (imported.missing == ())


def test_replacing_image_is_too_old_for_the_newest_gpu(folder: Path) -> None:
    make(folder, box__compute="type: remotedocker\nnvidiaDocker: true\nbaseDockerImage: nvidia/cuda:11.8.0-base\n")
    # The spec itself is refused: the machine's image has too old a driver. Another module reports that.
    replacing, own = import_project(
        load_project(folder), ImportOptions(size="Standard_NC144ds_xl_RTXPRO6000BSE_v6")
    ).missing
    assert "11.8" in own.what
    assert replacing.span is None
    assert "12.8" in replacing.instead


def test_without_an_image_the_spec_names_none(folder: Path) -> None:
    make(folder, box__compute="type: remotedocker\nnvidiaDocker: true\n")
    imported, spec = do_import(folder)
    assert (spec.target.base_docker_image, imported.missing) == (None, ())


def test_every_gpu_has_a_minimum_cuda_version() -> None:
    assert set(NEEDED) == set(GPU_MODELS)
    assert cuda_of(DEFAULT_IMAGE) == (12, 4)
    assert [is_for_gpu(image) for image in ("a/b:gpu", "a/gpu-b:1", "a/cuda-10.1", "a/b:1", None)] == [
        *(True, True, True),
        *(False, False),
    ]


def test_invalid_image_becomes_the_default(folder: Path) -> None:
    image = "microsoft/mmlspark::plus-0.7.91"
    make(folder, box__compute=f"type: remotedocker\nnvidiaDocker: true\nbaseDockerImage: {image}\n")
    imported, spec = do_import(folder)
    assert spec.target.base_docker_image == DEFAULT_IMAGE
    (missing,) = imported.missing
    assert (place(missing), "two colons" in missing.what) == ("box.compute:3:18", True)
    assert "did you mean `microsoft/mmlspark:plus-0.7.91`?" in missing.instead


def test_spark_scripts_need_an_image_with_spark(folder: Path) -> None:
    make(folder, box__compute="type: remotedocker\nnvidiaDocker: true\n", box__runconfig="Framework: PySpark\n")
    assert entries(do_import(folder)[0]) == ["box.runconfig:1:12 scripts run on Spark, which the default image lacks"]


def test_jobs_without_a_gpu_request_get_none(folder: Path) -> None:
    text = "type: remotedocker\nbaseDockerImage: microsoft/mmlspark:plus-0.9.9\n"
    make(folder, box__compute=text)
    imported, spec = do_import(folder)
    assert (spec.target.nvidia_docker, spec.target.base_docker_image) == (False, "microsoft/mmlspark:plus-0.9.9")
    assert entries(imported) == ["box.compute:2:18 jobs did not use a GPU"]
    make(folder, box__compute=text.replace("plus-", "plus-gpu-") + "nvidiaDocker: false\n")
    imported, spec = do_import(folder)
    assert (spec.target.nvidia_docker, spec.target.base_docker_image) == (False, "microsoft/mmlspark:plus-gpu-0.9.9")
    assert entries(imported) == ["box.compute:3:15 jobs did not use a GPU"]


def test_gpu_image_without_nvidia_docker_gets_a_gpu(folder: Path) -> None:
    make(folder, box__compute="type: remotedocker\nbaseDockerImage: nvidia/cuda:11.8.0-base\n")
    imported, spec = do_import(folder)
    assert spec.target.nvidia_docker
    assert entries(imported) == ["box.compute:2:18 `nvidiaDocker: true` is missing, although the image is for GPUs"]


# Which target


def test_gpu_machine_is_preferred(folder: Path) -> None:
    plain = "type: virtualmachine\n"
    make(folder, a__compute=plain, b__compute="type: remote\n", gpu__compute=COMPUTE, docker__compute=DOCKER)
    imported, _ = do_import(folder)
    assert imported.target == "gpu"
    assert {"a.compute:1:7 `a` is another target, and is not imported"} < set(entries(imported))


def test_only_machine_is_preferred_over_containers(folder: Path) -> None:
    container = f"{DOCKER}nvidiaDocker: true\n"
    make(
        folder,
        box__compute="type: virtualmachine\n",
        local__compute=LOCAL,
        docker__compute=container,
        hdi__compute=CLUSTER,
    )
    assert do_import(folder)[0].target == "box"


def test_gpu_container_is_imported_under_another_name(folder: Path) -> None:
    text = f"{DOCKER}nvidiaDocker: true\nsharedVolumes: false\nnativeSharedDirectory: /data\n"
    runconfig = "Framework: Python\nEnvironmentVariables: {A: b}\nArgumentVector: [$file, --x]\n"
    make(folder, docker__compute=text, docker__runconfig=runconfig, local__compute=LOCAL)
    imported, spec = do_import(folder)
    assert (spec.name, imported.target) == ("docker-gpu", "docker_gpu")
    assert spec.target.base_docker_image == "microsoft/mmlspark:plus-0.9.9"
    assert entries(imported) == [
        "docker.compute:4:16 `sharedVolumes` is not in a spec",
        "docker.compute:5:24 `nativeSharedDirectory` is not in a spec",
        "docker.runconfig:2:23 environment variables are not in a spec",
        "docker.runconfig:3:17 arguments are not in a spec",
    ]


def test_target_of_a_run_configuration_is_imported(folder: Path) -> None:
    make(folder, train__runconfig="Target: box\nFramework: Python\n", docker__compute=DOCKER)
    imported, spec = do_import(folder)
    assert (spec.name, imported.target, spec.target.type) == ("box", "box", "remotedocker")
    assert entries(imported) == ["train.runconfig:1:9 the type of `box` is unknown: box.compute does not exist"]


def test_local_runs_are_imported_last(folder: Path) -> None:
    make(
        folder,
        docker__compute=DOCKER,
        local__compute=LOCAL,
        local__runconfig="Framework: PySpark\n",
        docker__runconfig="Framework: Python\nCondaDependenciesFile: gpu.yml\n",
    )
    imported, spec = do_import(folder)
    assert (spec.name, imported.target) == ("mnist", "mnist")
    assert (spec.target.framework, spec.target.conda_dependencies) == ("Python", "gpu.yml")
    assert (spec.target.base_docker_image, spec.target.nvidia_docker) == (None, True)
    assert imported.missing == ()


def test_project_with_only_an_environment_is_imported(folder: Path) -> None:
    make(folder, conda_dependencies__yml="dependencies: [numpy]\n")
    imported, spec = do_import(folder)
    assert (spec.name, spec.target.framework, imported.missing) == ("mnist", "Python", ())


def test_new_target_does_not_reuse_existing_files(folder: Path) -> None:
    make(folder, mnist__compute=CLUSTER)
    imported, spec = do_import(folder)
    assert (spec.name, imported.target) == ("mnist-gpu", "mnist_gpu")
    make(folder, mnist_gpu__runconfig="Target: local\n")
    imported, spec = do_import(folder, name="mnist")
    assert (spec.name, imported.target) == ("mnist", "mnist_2")


@pytest.mark.parametrize("name", ["a", "b"])
def test_several_targets_are_listed_and_chosen_by_name(folder: Path, name: str) -> None:
    make(folder, a__compute=COMPUTE, b__compute=COMPUTE, c__compute="type: remote\n")
    diagnostic, exit_code = refuse(folder)
    assert (diagnostic.code, exit_code) == (Code.USAGE, Exit.USAGE)
    assert diagnostic.note == "the project has `a` and `b`"
    assert do_import(folder, target=name)[0].target == name


def test_unknown_target_suggests_the_nearest(folder: Path) -> None:
    make(folder, my_dsvm__compute=COMPUTE, docker__compute=DOCKER, hdi__compute=CLUSTER)
    diagnostic, exit_code = refuse(folder, target="my-dsvm")
    assert (diagnostic.code, exit_code) == (Code.NO_SUCH_TARGET, Exit.USAGE)
    assert diagnostic.help == "did you mean `my_dsvm`?"
    assert refuse(folder, target="elsewhere")[0].help == "choose from `docker` or `my_dsvm`"


def test_cluster_cannot_be_chosen(folder: Path) -> None:
    make(folder, my_dsvm__compute=COMPUTE, hdi__compute=CLUSTER)
    diagnostic, exit_code = refuse(folder, target="hdi")
    assert (diagnostic.span.line, diagnostic.span.column, exit_code) == (1, 7, Exit.USAGE)


@pytest.mark.parametrize(("text", "code"), [("type:\tlocal\n", Code.TAB), ("type: hdi\n", Code.UNKNOWN_VALUE)])
def test_unreadable_target_cannot_be_chosen(folder: Path, text: str, code: Code) -> None:
    make(folder, my_dsvm__compute=COMPUTE, odd__compute=text)
    with pytest.raises(Problem) as caught:
        do_import(folder, target="odd")
    assert [each.code for each in caught.value.diagnostics] == [code]
    assert do_import(folder)[0].target == "my_dsvm"


@pytest.mark.parametrize(("target", "made"), [("docker", "docker_gpu"), ("local", "local_gpu"), ("train", "mnist")])
def test_local_targets_can_be_chosen(folder: Path, target: str, made: str) -> None:
    make(folder, box__compute=COMPUTE, docker__compute=DOCKER, train__runconfig="Target: local\nFramework: Python\n")
    if target == "local":
        make(folder, local__compute=LOCAL)
    imported, spec = do_import(folder, target=target)
    assert (imported.target, spec.target.type) == (made, "remotedocker")
    assert spec.target.nvidia_docker == (target != "docker")


# What has no equivalent


def test_clusters_have_no_equivalent(folder: Path) -> None:
    make(folder, box__compute=COMPUTE.replace("password", "other"), hdi__compute=CLUSTER)
    assert entries(do_import(folder)[0])[-2:] == [
        "hdi.compute:1:7 `hdi` is a cluster",
        "hdi.compute:3:17 `yarnDeployMode`",
    ]


def test_data_sources_and_spark_packages_have_no_equivalent(folder: Path) -> None:
    make(
        folder,
        box__compute=COMPUTE,
        box__runconfig="UseSampling: true\nDataSourceSettings: {a: b}\nDataSourceSubstitutions: null\n"
        "SparkDependenciesFile: aml_config\\spark_dependencies.yml\n",
        spark_dependencies__yml="configuration: {}\nrepositories:\n- https://example.com\npackages:\n- group: a\n",
    )
    imported, _ = do_import(folder)
    assert [entry for entry in entries(imported) if not entry.startswith("box.compute")] == [
        "box.runconfig:1:14 `UseSampling`: gpuinfra has no data sources",
        "box.runconfig:2:21 `DataSourceSettings`: gpuinfra has no data sources",
        "spark_dependencies.yml:2:1 `repositories` for Spark",
        "spark_dependencies.yml:4:1 `packages` for Spark",
    ]
    make(
        folder,
        other__compute=COMPUTE,
        other__runconfig="Framework: Python\nSparkDependenciesFile: aml_config/spark_dependencies.yml\n",
    )
    assert not any("Spark" in entry for entry in entries(do_import(folder, target="other")[0]))
    (folder / "aml_config" / "other.compute").unlink()
    make(folder, spark_dependencies__yml="packages:\t[]\n")
    assert any("spark_dependencies.yml:1:10" in entry for entry in entries(do_import(folder)[0]))


def test_file_outside_the_project_is_not_read(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "spark.yml").write_text("packages: [a]\n")
    for path in ("../spark.yml", tmp_path / "spark.yml"):
        make(folder, box__compute="type: remote\n", box__runconfig=f"SparkDependenciesFile: {path}\n")
        assert do_import(folder)[0].missing == ()


def test_user_managed_environment_has_no_equivalent(folder: Path) -> None:
    text = "type: remote\nuserManagedEnvironment: true\nsparkSubmitLocation: /opt/spark/bin/spark-submit\n"
    make(folder, box__compute=text)
    assert entries(do_import(folder)[0]) == [
        "box.compute:2:25 `userManagedEnvironment`: packages of the old machine are not on the new one",
        "box.compute:3:22 `sparkSubmitLocation`: a new machine may have no Spark there",
    ]


def test_unreadable_files_are_listed(folder: Path) -> None:
    make(
        folder,
        box__compute=f"{COMPUTE}userManagedEnvironment: 3\n",
        odd__compute="type:\tlocal\n",
        odd__runconfig="a: [\n",
    )
    found = entries(do_import(folder)[0])
    assert sum("the file cannot be read" in entry for entry in found) == 2
    assert any(entry.startswith("odd.compute:1:6 ") for entry in found)
    assert any(entry.startswith("box.compute:9:25 wrong type, expected") for entry in found)


def test_run_configuration_for_another_target_is_listed(folder: Path) -> None:
    make(folder, box__compute="type: remote\n", box__runconfig="Framework: Python\nTarget: local\n")
    assert entries(do_import(folder)[0]) == ["box.runconfig:2:9 runs with box.runconfig go to `local`"]


# Azure ML v1


def test_azure_ml_v1_project_is_imported(folder: Path) -> None:
    (folder / ".azureml").mkdir(parents=True)
    (folder / ".azureml" / "train.runconfig").write_text(LATER)
    imported, spec = do_import(folder)
    assert (imported.is_sdk_v1, "Azure ML SDK v1" in imported.spec_text) == (True, True)
    assert (spec.name, imported.target, spec.target.type) == ("gpu-box", "gpu-box", "remotedocker")
    assert spec.target.base_docker_image == "example.com/cuda11.0/torch:1"
    assert (spec.target.nvidia_docker, spec.target.conda_dependencies) == (True, ".azureml/conda.yml")
    assert entries(imported) == [
        "train.runconfig:5:97 `shmSize` is not in a spec",
        "train.runconfig:7:15 `communicator`",
    ]


def test_azure_ml_v1_run_configuration_keeps_its_own_settings(folder: Path) -> None:
    make(folder, box__compute=COMPUTE, box__runconfig=LATER.replace("gpu-box", "box"))
    imported, spec = do_import(folder)
    assert imported.target == "box"
    assert not {"framework", "conda_dependencies"} & spec.target.model_fields_set
    assert spec.target.base_docker_image == "example.com/cuda11.0/torch:1"


def test_azure_ml_v1_file_in_azureml_is_copied_to_the_spec(folder: Path) -> None:
    """`up` writes to `aml_config`, so the file in `.azureml` is neither changed nor used."""
    (folder / ".azureml").mkdir(parents=True)
    (folder / ".azureml" / "gpu-box.runconfig").write_text(LATER)
    assert {"framework", "conda_dependencies"} <= do_import(folder)[1].target.model_fields_set


def test_azure_ml_v1_without_docker_uses_the_machines_python(folder: Path) -> None:
    text = LATER.replace("enabled: true", "enabled: false").replace("{conda", "{userManagedDependencies: true, conda")
    make(folder, train__runconfig=f"{text}maxRunDurationSeconds: 60\nspark: {{packages: []}}\n")
    imported, spec = do_import(folder)
    assert spec.target.type == "remote"
    assert [entry.split(" ", 1)[1].partition(":")[0] for entry in entries(imported)] == [
        "`userManagedDependencies`",
        "`communicator`",
        "`maxRunDurationSeconds`",
    ]
