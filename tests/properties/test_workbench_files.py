"""Reading compute targets, run configurations, conda environments and whole projects."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpuinfra.diagnostics import Code, Diagnostic
from gpuinfra.parse.document import read_document
from gpuinfra.workbench.compute import Compute, joined_address, read_compute, split_address
from gpuinfra.workbench.conda import Conda, Installer, Package, read_conda
from gpuinfra.workbench.project import find_projects, load_project
from gpuinfra.workbench.runconfig import RunConfig, read_runconfig, without_equivalent


def compute(text: str) -> tuple[Compute, list[Diagnostic]]:
    return read_compute("my_dsvm", read_document("my_dsvm.compute", text.encode()))


def runconfig(text: str) -> tuple[RunConfig, list[Diagnostic]]:
    return read_runconfig("my_dsvm", read_document("my_dsvm.runconfig", text.encode()))


def conda(*lines: str, pip: tuple[str, ...] = ()) -> tuple[Conda, list[Diagnostic]]:
    text = "\n".join(["dependencies:", *(f"- {line}" for line in lines), "- pip:", *(f"  - {line}" for line in pip)])
    return read_conda("conda.yml", read_document("conda.yml", text.encode()))


def places(diagnostics: list[Diagnostic]) -> list[tuple[Code, int, int]]:
    return [(each.code, each.span.line, each.span.column) for each in diagnostics if each.span]


# Compute targets


@pytest.mark.parametrize(
    ("said", "means"),
    [
        *((each, each) for each in ("local", "localdocker", "remotedocker", "remote", "cluster")),
        ("docker", "localdocker"),
        ("virtualmachine", "remotedocker"),
        ("RemoteDocker", "remotedocker"),
        ("' remotedocker '", "remotedocker"),
    ],
)
def test_older_type_names_are_read(said: str, means: str) -> None:
    found, diagnostics = compute(f"type: {said}\n")
    assert (found.type, diagnostics) == (means, [])
    assert found.is_docker == (means in {"localdocker", "remotedocker"})
    assert found.is_remote == (means in {"remotedocker", "remote", "cluster"})


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("cluster: true\n", "cluster"),
        ("cluster: true\nnative: true\naddress: host\n", "cluster"),
        ("cluster: false\nnative: true\n", "local"),
        ("native: true\naddress: host\n", "remote"),
        ("cluster: false\nnative: false\n", "localdocker"),
        ("cluster: false\naddress: host\n", "remotedocker"),
        ("native: false\naddress: ''\n", "localdocker"),
        ("type: null\nnative: true\n", "local"),
        ("type: remotedocker\ncluster: true\n", "remotedocker"),
    ],
)
def test_early_files_have_two_switches(text: str, means: str) -> None:
    found, diagnostics = compute(text)
    assert (found.type, diagnostics) == (means, [])


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("type: hdi\n", (Code.UNKNOWN_VALUE, 1, 7)),
        ("address: host\n", (Code.MISSING_KEY, 1, 1)),
        ("type: ''\n", (Code.MISSING_KEY, 1, 1)),
        ("native: null\ncluster:\n", (Code.MISSING_KEY, 1, 1)),
        ("address: host\ntype: [remotedocker]\n", (Code.WRONG_TYPE, 2, 7)),
        ("type: true\n", (Code.WRONG_TYPE, 1, 7)),
    ],
)
def test_missing_type_is_reported_with_its_place(text: str, place: tuple[Code, int, int]) -> None:
    found, diagnostics = compute(text)
    assert found.type == ""
    assert places(diagnostics) == [place]


def test_misspelled_type_suggests_the_nearest() -> None:
    (diagnostic,) = compute("type: remotedoker\n")[1]
    assert diagnostic.help == "did you mean `remotedocker`?"


@pytest.mark.parametrize(
    ("said", "means"),
    [
        ("host", ("host", 22)),
        ("203.0.113.7", ("203.0.113.7", 22)),
        ("host.example.com:5022", ("host.example.com", 5022)),
        (" host:5022 ", ("host", 5022)),
        ("2001:db8::1", ("2001:db8::1", 22)),
        ("[2001:db8::1]", ("2001:db8::1", 22)),
        ("[2001:db8::1]:5022", ("2001:db8::1", 5022)),
        ("[fe80::1%eth0]:5022", ("fe80::1%eth0", 5022)),
        ("host:", ("host:", 22)),
        ("", (None, 22)),
        (" ", (None, 22)),
        (None, (None, 22)),
    ],
)
def test_address_is_split_from_its_port(said: str | None, means: tuple[str | None, int]) -> None:
    assert split_address(said) == means


@pytest.mark.parametrize("address", ["host", "203.0.113.7", "2001:db8::1"])
@pytest.mark.parametrize("port", [22, 5022])
def test_address_and_port_round_trip(address: str, port: int) -> None:
    assert split_address(joined_address(address, port)) == (address, port)


@pytest.mark.parametrize("port", [0, 65536, 123456])
def test_invalid_port_is_reported(port: int) -> None:
    diagnostics = compute(f"type: remotedocker\naddress: host:{port}\n")[1]
    assert places(diagnostics) == [(Code.BAD_ADDRESS, 2, 10)]


@pytest.mark.parametrize(("native", "means"), [("false", "remotedocker"), ("true", "remote")])
def test_file_with_a_placeholder_address_is_a_machine(native: str, means: str) -> None:
    assert compute(f"native: {native}\naddress: [VM FQDN]\n")[0].type == means


def test_placeholder_list_is_not_an_address() -> None:
    found, diagnostics = compute("type: remotedocker\naddress: [VM FQDN]\nusername: [you]\n")
    assert (found.address, found.username) == (None, None)
    assert places(diagnostics) == [(Code.WRONG_TYPE, 2, 10), (Code.WRONG_TYPE, 3, 11)]
    assert "placeholder" in (diagnostics[0].help or "")


def test_null_is_missing_and_defaults_are_filled_in() -> None:
    nothing, _ = compute("type: remotedocker\n")
    keys = "address username password baseDockerImage nvidiaDocker sharedVolumes nativeSharedDirectory pythonLocation"
    nulls, diagnostics = compute("type: remotedocker\n" + "".join(f"{key}: null\n" for key in keys.split()))
    assert diagnostics == []
    assert {**vars(nulls), "document": None} == {**vars(nothing), "document": None}
    assert (nothing.shared_volumes, nothing.nvidia_docker) == (True, False)
    assert nothing.native_shared_directory == "~/.azureml/share/"


def test_every_field_of_a_compute_file_is_read() -> None:
    found, diagnostics = compute(
        "baseDockerImage: 'microsoft/mmlspark:plus-gpu-0.9.9 '\r\nnvidiaDocker: yes\r\nsharedVolumes: false\r\n"
        "password: AzureMlSecret=my_dsvm#me#00\r\nusername: 42\r\nyarnDeployMode: client\r\n"
        "userManagedEnvironment: on\r\n"
        "pythonLocation: python3\r\nsparkSubmitLocation: spark-submit\r\nnativeSharedDirectory: /data\r\n"
        "hostKey: ssh-ed25519 AAAA\r\nprivateKeyFile: ~/.ssh/id\r\ntype: remotedocker\r\nsomething: else\r\n"
    )
    assert diagnostics == []
    assert (found.base_docker_image, found.nvidia_docker) == ("microsoft/mmlspark:plus-gpu-0.9.9", True)
    assert (found.password, found.username) == ("AzureMlSecret=my_dsvm#me#00", "42")
    assert (found.shared_volumes, found.native_shared_directory) == (False, "/data")
    assert (found.python_location, found.spark_submit_location) == ("python3", "spark-submit")
    assert (found.yarn_deploy_mode, found.user_managed_environment) == ("client", True)
    assert (found.host_key, found.private_key_file) == ("ssh-ed25519 AAAA", "~/.ssh/id")


def test_wrong_types_in_a_compute_file_are_reported_with_their_places() -> None:
    text = "type: local\nnvidiaDocker: 'true'\nsharedVolumes: 1\nusername: {a: b}\nbaseDockerImage: yes\n"
    found, diagnostics = compute(text)
    assert sorted(places(diagnostics), key=lambda place: place[1]) == [
        (Code.WRONG_TYPE, 2, 15),
        (Code.WRONG_TYPE, 3, 16),
        (Code.WRONG_TYPE, 4, 11),
        (Code.WRONG_TYPE, 5, 18),
    ]
    assert (found.nvidia_docker, found.shared_volumes, found.username) == (False, True, None)


# Run configurations


def test_empty_run_configuration_has_defaults() -> None:
    found, diagnostics = runconfig("Target: my_dsvm\nFramework: null\nCondaDependenciesFile: null\n")
    assert diagnostics == []
    assert (found.framework, found.has_framework) == ("PySpark", False)
    assert found.conda_file == "aml_config/conda_dependencies.yml"
    assert (found.arguments, found.environment_variables) == (("$file",), {})
    assert (found.prepare_environment, found.tracked_run, found.is_sdk_v1) == (True, True, False)
    assert (found.spark_file, found.script, found.docker) == (None, None, None)


@pytest.mark.parametrize("style", ["json", "yaml"])
def test_every_field_of_a_run_configuration_is_read(style: str) -> None:
    text = (
        '"ArgumentVector": ["$file", "--epochs", 5, null], "Target": "another", "Framework": " python ",\n'
        '"EnvironmentVariables": {"A": 1, "B": null, "C": ""}, "CondaDependenciesFile": "env\\\\gpu.yml",\n'
        '"SparkDependenciesFile": "spark.yml", "PrepareEnvironment": false, "TrackedRun": false'
    )
    if style == "yaml":
        text = (
            "ArgumentVector:\n- $file\n- --epochs\n- 5\n-\nTarget: another\nFramework: python\nEnvironmentVariables:\n"
            "  A: 1\n  B:\n  C: ''\nCondaDependenciesFile: env\\gpu.yml\nSparkDependenciesFile: spark.yml\n"
            "PrepareEnvironment: no\nTrackedRun: no\n"
        )
    found, diagnostics = runconfig(text if style == "yaml" else f"{{{text}}}")
    assert diagnostics == []
    assert (found.target, found.framework, found.has_framework) == ("another", "Python", True)
    assert found.arguments == ("$file", "--epochs", "5")
    assert found.environment_variables == {"A": "1", "C": ""}
    assert (found.conda_file, found.spark_file) == ("env\\gpu.yml", "spark.yml")
    assert (found.prepare_environment, found.tracked_run) == (False, False)


def test_older_name_of_the_conda_file_is_read() -> None:
    assert runconfig("CondaFile: old.yml\n")[0].conda_file == "old.yml"
    assert runconfig("CondaFile: old.yml\nCondaDependenciesFile: new.yml\n")[0].conda_file == "new.yml"


def test_wrong_types_in_a_run_configuration_are_reported_with_their_places() -> None:
    found, diagnostics = runconfig(
        "ArgumentVector: $file\nEnvironmentVariables: [A]\nFramework: Pyton\nTarget: {a: b}\nTrackedRun: 'no'\n"
    )
    assert sorted(places(diagnostics), key=lambda place: place[1]) == [
        (Code.WRONG_TYPE, 1, 17),
        (Code.WRONG_TYPE, 2, 23),
        (Code.UNKNOWN_VALUE, 3, 12),
        (Code.WRONG_TYPE, 4, 9),
        (Code.WRONG_TYPE, 5, 13),
    ]
    assert (found.framework, found.target, found.arguments) == ("PySpark", None, ("$file",))
    assert "did you mean `Python`?" in {each.help for each in diagnostics}


LATER_YAML = """script: train.py
arguments: [--epochs, 5]
target: gpu
communicator: Mpi
nodeCount: 2
environment:
  environmentVariables: {A: b}
  python: {userManagedDependencies: false, condaDependenciesFile: .azureml/conda.yml}
  docker: {enabled: true, baseImage: "mcr.microsoft.com/azureml/base-gpu:0.1.4", gpuSupport: true, shmSize: 2g}
history: {outputCollection: false}
amlcompute: {vmSize: {odd: one}, vmPriority: null}
hdi: {yarnDeployMode: cluster}
mpi: {processCountPerNode: 4}
tensorflow: {workerCount: 1, parameterServerCount: 1}
dataReferences: {}
data: {images: {path: x}}
"""
LATER_JSON = '{"script": "train.py", "arguments": [], "target": "local", "framework": "PySpark", "nodeCount": 1}'


def test_azure_ml_v1_run_configuration_is_read() -> None:
    found, diagnostics = runconfig(LATER_YAML)
    assert diagnostics == []
    assert (found.is_sdk_v1, found.target, found.script) == (True, "gpu", "train.py")
    assert found.arguments == ("$file", "--epochs", "5")
    assert (found.framework, found.has_framework) == ("Python", False)
    assert (found.environment_variables, found.conda_file) == ({"A": "b"}, ".azureml/conda.yml")
    assert (found.user_managed, found.tracked_run) == (False, False)
    assert found.docker is not None
    assert (found.docker.enabled, found.docker.gpu, found.docker.shm_size) == (True, True, "2g")
    assert found.docker.base_image == "mcr.microsoft.com/azureml/base-gpu:0.1.4"


def test_azure_ml_v1_json_is_read() -> None:
    found, diagnostics = runconfig(LATER_JSON)
    assert (found.is_sdk_v1, found.target, found.framework, diagnostics) == (True, "local", "PySpark", [])
    assert list(without_equivalent(found)) == []


def test_azure_ml_v1_fields_without_equivalent_are_listed() -> None:
    found = {key: (span.line, span.column) for span, key, instead in without_equivalent(runconfig(LATER_YAML)[0])}
    assert found == {
        "communicator": (4, 15),
        "nodeCount": (5, 12),
        "amlcompute": (11, 13),
        "mpi": (13, 6),
        "data": (16, 7),
    }
    assert list(without_equivalent(runconfig("Target: x\nUseSampling: true\n")[0])) == []
    alone = LATER_YAML.replace("Mpi", "None").replace("nodeCount: 2", "nodeCount: 1")
    assert [key for _, key, _ in without_equivalent(runconfig(alone)[0])] == ["data", "amlcompute"]


def test_wrong_types_in_an_azure_ml_v1_file_are_reported_with_their_places() -> None:
    diagnostics = runconfig("script: train.py\nenvironment: 3\nhistory: {outputCollection: x}\n")[1]
    assert sorted(places(diagnostics)) == [(Code.WRONG_TYPE, 2, 14), (Code.WRONG_TYPE, 3, 29)]


@pytest.mark.parametrize(
    ("path", "line", "column"),
    [
        (("Target",), 1, 9),
        (("Framework",), 2, 1),
        (("EnvironmentVariables", "A"), 4, 6),
        (("EnvironmentVariables", "Z"), 4, 3),
        (("Missing",), 1, 1),
    ],
)
def test_values_of_a_run_configuration_have_places(path: tuple[str, ...], line: int, column: int) -> None:
    span = runconfig("Target: x\nFramework:\nEnvironmentVariables:\n  A: b\n")[0].place(*path)
    assert (span.line, span.column) == (line, column)


# Conda environments


@pytest.mark.parametrize(
    ("line", "name", "version"),
    [
        ("tensorflow-gpu", "tensorflow-gpu", ""),
        ("python=3.5.2", "python", "=3.5.2"),
        ("conda-forge::numpy=1.0=py35_0", "numpy", "=1.0=py35_0"),
        ("defaults/linux-64::pandas", "pandas", ""),
        ("scipy >=1", "scipy", ">=1"),
        ("scipy>=1,<2", "scipy", ">=1,<2"),
        ("numpy 1.13*", "numpy", "1.13*"),
        ("'pytorch::torch[build=cuda*]'", "torch", "[build=cuda*]"),
        ("keras==2.0.8#latest", "keras", "==2.0.8#latest"),
        ("Keras_Applications", "keras-applications", ""),
        ("cudatoolkit=8.0 # legacy", "cudatoolkit", "=8.0"),
    ],
)
def test_conda_line_is_read(line: str, name: str, version: str) -> None:
    found, diagnostics = conda(line)
    assert diagnostics == []
    assert [(each.name, each.version, each.by, each.url) for each in found.packages] == [
        (name, version, Installer.CONDA, None)
    ]


@pytest.mark.parametrize(
    ("line", "name", "version"),
    [
        ("tensorflow_gpu~=1.4", "tensorflow-gpu", "~=1.4"),
        ("name[extra]>=1; python_version<'3'", "name", ">=1"),
        ("name[a, b]", "name", ""),
        ("name ; sys_platform == 'linux'", "name", ""),
        ("keras=2.0.8", "keras", "=2.0.8"),
        ("keras==2.0.8#latest", "keras", "==2.0.8#latest"),
        ("keras==2.0.8 # latest", "keras", "==2.0.8"),
        ("name (>=1.0)", "name", "(>=1.0)"),
    ],
)
def test_pip_line_is_read(line: str, name: str, version: str) -> None:
    found, diagnostics = conda(pip=(line,))
    assert diagnostics == []
    assert [(each.name, each.version, each.by, each.url) for each in found.packages] == [
        (name, version, Installer.PIP, None)
    ]


WHEEL = "cntk-2.1-cp35-cp35m-linux_x86_64.whl"


@pytest.mark.parametrize(
    ("line", "name", "file", "local"),
    [
        (f"https://cntk.ai/PythonWheel/GPU/{WHEEL}", "cntk", WHEEL, False),
        (f"https://example.com/{WHEEL}?token=x#sha256=0", "cntk", WHEEL, False),
        (
            "https://example.com/torch-0.3.1%2Bcu80-cp35-none-any.whl",
            "torch",
            "torch-0.3.1+cu80-cp35-none-any.whl",
            False,
        ),
        ("name @ https://example.com/other-1.0-py3-none-any.whl", "name", "other-1.0-py3-none-any.whl", False),
        ("name[x]@https://example.com/a.whl ; python_version < '3'", "name", "a.whl", False),
        ("git+https://github.com/a/b.git", "", "b.git", False),
        ("git+https://github.com/a/b.git@main#egg=b_c", "b-c", "b.git@main", False),
        ("https://github.com/a/b/archive/master.zip", "", "master.zip", False),
        (f"./wheels/{WHEEL}", "cntk", WHEEL, True),
        (f"wheels/{WHEEL}", "cntk", WHEEL, True),
        (f"C:\\wheels\\{WHEEL}", "cntk", WHEEL, True),
        ("../other", "", "other", True),
        ("'http://[broken'", "", "[broken", False),
        ("'name @ http://[broken'", "name", "[broken", False),
    ],
)
def test_package_url_or_path_is_read(line: str, name: str, file: str, local: bool) -> None:
    found, diagnostics = conda(pip=(line,))
    assert diagnostics == []
    (package,) = found.packages
    assert (package.name, package.file, package.is_local) == (name, file, local)


def test_pip_options_are_not_packages() -> None:
    found, diagnostics = conda("numpy", pip=("--index-url https://x", "-r other.txt", "-e .", "keras"))
    assert diagnostics == []
    assert [each.text for each in found.options] == ["--index-url https://x", "-r other.txt", "-e ."]
    assert [each.name for each in found.packages] == ["numpy", "keras"]


def test_package_is_found_by_name_and_installer() -> None:
    found, _ = conda("keras=2.0", pip=("Keras==2.1", "Torch"))
    package: Package | None = found.package("keras", by=Installer.PIP)
    assert package is not None
    assert package.version == "==2.1"
    assert found.package("nothing", "torch") is not None
    assert found.package("nothing") is None


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("python=3.5.2", (3, 5)),
        ("python==3.10", (3, 10)),
        ("python 3.6", (3, 6)),
        ("conda-forge::python=3.6.*", (3, 6)),
        ("python>=3.5", None),
        ("python~=3.5", None),
        ("python <3.7", None),
        ("python=3", None),
        ("python", None),
        ("numpy=1.13", None),
    ],
)
def test_python_version_is_read(line: str, version: tuple[int, int] | None) -> None:
    assert conda(line)[0].python == version


def test_invalid_package_is_reported_with_its_place() -> None:
    text = "dependencies:\n- '@x'\n- {a: [b]}\n- [c]\n-\n- 5\n- pip:\n  - ==1\n  - {a: b}\n  -\n"
    found, diagnostics = read_conda("conda.yml", read_document("conda.yml", text.encode()))
    assert sorted(places(diagnostics), key=lambda place: place[1]) == [
        (Code.UNKNOWN_VALUE, 2, 3),
        (Code.WRONG_TYPE, 3, 3),
        (Code.WRONG_TYPE, 4, 3),
        (Code.UNKNOWN_VALUE, 8, 5),
        (Code.WRONG_TYPE, 9, 5),
    ]
    assert [each.text for each in found.packages] == ["5"]
    assert not any("@x" in (each.label or "") for each in diagnostics), "a line may have a password in it"


@pytest.mark.parametrize(
    ("line", "name", "version", "url", "marker"),
    [
        ("keras==2.0.8;python_version<'3'", "keras", "==2.0.8", None, "python_version<'3'"),
        ("keras ; os_name == 'nt' # why; because", "keras", "", None, "os_name == 'nt'"),
        ("keras==2.0.8 # why; because", "keras", "==2.0.8", None, ""),
        ("a @ https://h/a;b.zip ; os_name == 'nt'", "a", "", "https://h/a;b.zip", "os_name == 'nt'"),
        ("https://h/a-1.zip; os_name == 'nt'", "a", "", "https://h/a-1.zip", "os_name == 'nt'"),
        ("./a-1.whl ; os_name == 'nt'", "a", "", "./a-1.whl", "os_name == 'nt'"),
        ("${PACKAGE}==1.0 ; os_name == 'nt'", "", "", None, "os_name == 'nt'"),
    ],
)
def test_pip_line_may_have_a_marker(line: str, name: str, version: str, url: str | None, marker: str) -> None:
    text = f"dependencies:\n- pip:\n  - {json.dumps(line)}\n"
    found, diagnostics = read_conda("conda.yml", read_document("conda.yml", text.encode()))
    (package,) = found.packages
    assert (package.name, package.version, package.url, package.marker, diagnostics) == (name, version, url, marker, [])


@pytest.mark.parametrize("text", ["name: x\n", "dependencies:\n", "dependencies: null\n", "dependencies:\n- pip:\n"])
def test_empty_environment_has_no_packages(text: str) -> None:
    found, diagnostics = read_conda("conda.yml", read_document("conda.yml", text.encode()))
    assert (found.packages, found.options, found.channels, diagnostics) == ((), (), (), [])


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("dependencies: numpy\n", (1, 15)),
        ("dependencies:\n  numpy: 1\n", (2, 3)),
        ("dependencies:\n- pip: numpy\n", (2, 8)),
        ("channels: defaults\n", (1, 11)),
        ("name: [x]\n", (1, 7)),
    ],
)
def test_wrong_types_in_an_environment_are_reported_with_their_places(text: str, place: tuple[int, int]) -> None:
    _, diagnostics = read_conda("conda.yml", read_document("conda.yml", text.encode()))
    assert places(diagnostics) == [(Code.WRONG_TYPE, *place)]


# Projects


def make(folder: Path, **files: Any) -> Path:
    """Write a project with these files; `__` stands for the period in a name."""
    config = folder / "aml_config"
    config.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (config / name.replace("__", ".")).write_text(text)
    return folder


def test_run_configurations_are_linked_to_targets_and_environments(tmp_path: Path) -> None:
    make(
        tmp_path,
        my_dsvm__compute="type: remotedocker\n",
        my_dsvm__runconfig="Target: my_dsvm\nCondaDependenciesFile: env\\gpu.yml\n",
        other__runconfig="Target: my_dsvm\n",
        lost__runconfig="Target: nowhere\n",
        conda_dependencies__yml="dependencies: [numpy]\n",
    )
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "gpu.yml").write_text("dependencies: [keras]\n")
    project = load_project(tmp_path)
    assert (project.diagnostics, project.unreadable) == ([], set())
    assert set(project.condas) == {"env/gpu.yml", "aml_config/conda_dependencies.yml"}
    named = {name: (project.target_of(each), project.conda_of(each)) for name, each in project.runconfigs.items()}
    assert named["my_dsvm"] == (project.computes["my_dsvm"], project.condas["env/gpu.yml"])
    assert named["other"] == (project.computes["my_dsvm"], project.condas["aml_config/conda_dependencies.yml"])
    assert named["lost"][0] is None


def test_unreadable_file_does_not_hide_the_others(tmp_path: Path) -> None:
    make(tmp_path, bad__compute="type:\tlocal\n", good__compute="type: local\n", conda_dependencies__yml="a: [\n")
    (tmp_path / "aml_config" / "latin.runconfig").write_bytes(b"Target: \xe9\n")
    project = load_project(tmp_path)
    assert set(project.computes) == {"good"}
    assert project.unreadable == {
        "aml_config/bad.compute",
        "aml_config/conda_dependencies.yml",
        "aml_config/latin.runconfig",
    }
    assert {each.code for each in project.diagnostics} == {Code.TAB, Code.INVALID_YAML, Code.NOT_UTF8}


@pytest.mark.parametrize("path", ["/etc/hostname", "../outside.yml", "a" * 5000, "'\\0'", "aml_config"])
def test_environment_outside_the_project_is_not_read(tmp_path: Path, path: str) -> None:
    (tmp_path / "outside.yml").write_text("dependencies: [numpy]\n")
    root = make(tmp_path / "project", a__runconfig=f"CondaDependenciesFile: {path}\n")
    project = load_project(root)
    assert (project.condas, project.diagnostics) == ({}, [])
    assert project.conda_of(project.runconfigs["a"]) is None


def test_projects_below_a_folder_are_found(tmp_path: Path) -> None:
    for name in ("b", "a/deep", ".hidden", "node_modules/x"):
        make(tmp_path / name, local__compute="type: local\n")
    later = tmp_path / "c" / ".azureml"
    later.mkdir(parents=True)
    (later / "train.runconfig").write_text(LATER_JSON)
    make(tmp_path / "empty")
    assert list(find_projects(tmp_path)) == [tmp_path / "a" / "deep", tmp_path / "b", tmp_path / "c"]
    assert list(find_projects(tmp_path / "b")) == [tmp_path / "b"]
    assert list(find_projects(tmp_path / "b" / "aml_config")) == [tmp_path / "b"]
    assert list(find_projects(tmp_path / "nowhere")) == []
