"""`lint` on unusual valid files, and on invalid files that look valid. No secret is shown."""

import json
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from gpuinfra.diagnostics import Code
from gpuinfra.lint.fix import LintResult, check_projects, fix_projects
from gpuinfra.models.images import check_container_image
from gpuinfra.views.diagnostics import as_json, render
from gpuinfra.workbench.project import load_project
from gpuinfra.workbench.project_import import ImportOptions, import_project

SECRET = "HUNTER2"
KEY = f"aB3dEfGhIjKlMnOpQrStUvWxYz0123456789{SECRET}=="
TOKEN = "abcdefghijklmnopqrstuvwxyz234567abcdefghijklmnopqrst"  # like Azure DevOps: 52 of base32, lower case
MACHINE = "type: remotedocker\naddress: h\nusername: me\n"
GPU = f"{MACHINE}baseDockerImage: microsoft/mmlspark:plus-gpu-0.9.9\nnvidiaDocker: true\n"
RUN = "Target: g\nFramework: Python\n"


def project(folder: Path, *, compute: str = GPU, runconfig: str = RUN, conda: str | None = None) -> Path:
    """Write a project with one GPU target."""
    files = folder / "aml_config"
    files.mkdir(parents=True)
    (files / "g.compute").write_text(compute)
    (files / "g.runconfig").write_text(runconfig)
    if conda is not None:
        (files / "conda_dependencies.yml").write_text(conda)
    return folder


def pip(*lines: str, python: str = "3.6") -> str:
    return "".join([f"dependencies:\n- python={python}\n- pip:\n", *(f"  - {json.dumps(line)}\n" for line in lines)])


def codes(outcome: LintResult) -> list[str]:
    return [finding.diagnostic.code.value for finding in outcome.findings]


def shown(outcome: LintResult) -> str:
    """Return everything that a user or a CI log sees."""
    found = [finding.diagnostic for finding in outcome.findings]
    words = [render(each).plain for each in found] + [json.dumps(as_json(each)) for each in found]
    return "\n".join([*words, *(fixed.what for fixed in outcome.fixed)])


# What a fix does not change


def test_fixed_image_with_a_digest_is_valid(tmp_path: Path) -> None:
    image = f"microsoft/mmlspark:plus-0.9.9@sha256:{'a' * 64}"
    folder = project(tmp_path, compute=f"{MACHINE}nvidiaDocker: true\nbaseDockerImage: {image}\n")
    fix_projects([folder])
    after = load_project(folder).computes["g"].base_docker_image
    assert after
    check_container_image(after)


def test_line_for_another_system_is_not_changed(tmp_path: Path) -> None:
    text = pip("tensorflow==1.4.0 ; sys_platform == 'darwin'", "tensorflow-gpu==1.4.0 ; sys_platform == 'linux'")
    folder = project(tmp_path, conda=text.replace("tensorflow-gpu==1.4.0 ;", "keras==2.0.8 ;"))
    fix_projects([folder])
    assert "tensorflow-gpu" not in (folder / "aml_config/conda_dependencies.yml").read_text()


def test_package_of_another_channel_is_not_changed(tmp_path: Path) -> None:
    text = "channels: [conda-forge]\ndependencies:\n- python=3.6\n- tensorflow=1.4.0\n"
    folder = project(tmp_path, conda=text)
    outcome = check_projects([folder])
    assert codes(outcome) == ["cpu-only-package"]
    assert outcome.findings[0].fix is None


def test_folder_under_two_names_is_fixed_once(tmp_path: Path) -> None:
    first = project(tmp_path / "first", conda="dependencies:\n- python=3.5\n- tensorflow\n")
    second = tmp_path / "second"
    second.mkdir()
    (second / "aml_config").symlink_to(first / "aml_config")
    outcome = fix_projects([first, second])
    assert codes(outcome) == []
    assert [fixed.what for fixed in outcome.fixed] == ["now `tensorflow-gpu`"]


def test_file_shared_with_a_cpu_project_is_not_changed(tmp_path: Path) -> None:
    text = "dependencies:\n- python=3.5\n- tensorflow\n"
    without = f"{MACHINE}baseDockerImage: microsoft/mmlspark:plus-0.9.9\n"
    below = project(tmp_path / "below", compute=without, conda=text)
    above = project(tmp_path, runconfig=f"{RUN}CondaDependenciesFile: below/aml_config/conda_dependencies.yml\n")
    outcome = fix_projects([above, below])
    assert (codes(outcome), outcome.findings[0].fix) == (["cpu-only-package"], None)
    assert "another project" in (outcome.findings[0].diagnostic.note or "")
    assert (below / "aml_config/conda_dependencies.yml").read_text() == text


def test_linked_file_shared_with_a_cpu_target_is_not_changed(tmp_path: Path) -> None:
    text = "dependencies:\n- python=3.5\n- tensorflow\n"
    folder = project(tmp_path, conda=text)
    files = folder / "aml_config"
    (files / "conda_other.yml").symlink_to(files / "conda_dependencies.yml")
    (files / "c.compute").write_text(f"{MACHINE}baseDockerImage: microsoft/mmlspark:plus-0.9.9\n")
    (files / "c.runconfig").write_text(
        "Target: c\nFramework: Python\nCondaDependenciesFile: aml_config/conda_other.yml\n"
    )
    assert codes(fix_projects([folder])) == ["cpu-only-package"]
    assert (files / "conda_dependencies.yml").read_text() == text


@pytest.mark.parametrize("image", ["tensorflow/tensorflow:1.4.0", "microsoft/mmlspark:0.12", "python:3.6"])
def test_cuda_package_is_not_added_to_an_image_without_cuda(tmp_path: Path, image: str) -> None:
    compute = f"{MACHINE}baseDockerImage: {image}\nnvidiaDocker: true\n"
    folder = project(tmp_path, compute=compute, conda=pip("tensorflow==1.4.0"))
    fix_projects([folder])
    assert "tensorflow-gpu" not in (folder / "aml_config/conda_dependencies.yml").read_text()


@pytest.mark.parametrize(
    "line", ["cntk", "https://cntk.ai/PythonWheel/CPU-Only/cntk-2.1-cp36-cp36m-linux_x86_64.whl", "tensorflow==1.4.0"]
)
def test_finding_says_that_the_image_has_no_cuda(tmp_path: Path, line: str) -> None:
    compute = f"{MACHINE}baseDockerImage: python:3.6\nnvidiaDocker: true\n"
    package, image = check_projects([project(tmp_path, compute=compute, conda=pip(line))]).findings
    assert (package.fix, image.diagnostic.code) == (None, "no-cuda")
    assert (package.diagnostic.help or "").endswith("it needs CUDA, which `python:3.6` lacks")


@pytest.mark.parametrize(("version", "name"), [("1.4.0", "tensorflow-gpu"), ("1.12.0", "tensorflow")])
def test_package_is_fixed_once_its_image_has_cuda(tmp_path: Path, version: str, name: str) -> None:
    compute = f"{MACHINE}baseDockerImage: microsoft/mmlspark:plus-0.9.9\nnvidiaDocker: true\n"
    folder = project(tmp_path, compute=compute, conda=pip(f"tensorflow=={version}"))
    fix_projects([folder])
    project_after = load_project(folder)
    assert project_after.computes["g"].base_docker_image == "microsoft/mmlspark:plus-gpu-0.9.9"
    assert project_after.condas["aml_config/conda_dependencies.yml"].package(name)


# Secrets are not shown


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"{GPU}password: *{SECRET}\n", id="a password like an alias"),
        pytest.param(f"{GPU}password:\n  @{SECRET}\n", id="a password on the next line, invalid YAML"),
        pytest.param(f"{GPU}password:\n  - {SECRET}\n", id="a password on the next line, a list"),
        pytest.param(f"{GPU}password:\n\t{SECRET}\n", id="a password on the next line, after a tab"),
        pytest.param(f"{GPU}pwd: @{SECRET}\n", id="another key, invalid YAML"),
        pytest.param(f"{GPU}pasword: @{SECRET}\n", id="a misspelled key, invalid YAML"),
        pytest.param(
            f"{{type: remotdocker, address: h, username: me, pasword: {SECRET}}}",
            id="a misspelled key and another mistake",
        ),
        pytest.param(
            f"{{type: remotdocker, address: h, username: me, pwd: {SECRET}}}", id="another key and another mistake"
        ),
    ],
)
def test_target_password_is_not_shown(tmp_path: Path, text: str) -> None:
    assert SECRET not in shown(check_projects([project(tmp_path, compute=text)]))


def test_password_is_not_shown_by_import(tmp_path: Path) -> None:
    imported = import_project(load_project(project(tmp_path, compute=f"{GPU}password: *{SECRET}\n")), ImportOptions())
    assert SECRET not in " ".join(missing.what for missing in imported.missing)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"EnvironmentVariables:\n  AZURE_STORAGE_KEY:\t{KEY}\n", id="a tab after the colon"),
        pytest.param(f"EnvironmentVariables:\n- AZURE_STORAGE_KEY={KEY}\n", id="a list"),
        pytest.param(f'EnvironmentVariables:\n  AZURE_STORAGE_KEY: ["{KEY}"]\n', id="a list as a value"),
        pytest.param(
            f"EnvironmentVariables:\n  CONNECTION:\tAccountName=a;AccountKey={KEY}\n", id="a connection string"
        ),
        pytest.param(f"EnvironmentVariables:\n  DATABASE:\tpostgres://me:{SECRET}@h/db\n", id="an address"),
    ],
)
def test_secret_in_an_unreadable_file_is_not_shown(tmp_path: Path, text: str) -> None:
    assert SECRET not in shown(check_projects([project(tmp_path, runconfig=f"{RUN}{text}")]))


@pytest.mark.parametrize(
    "line", [f"foo==1.0 --extra-index-url https://me:{SECRET}@h/simple", f"foo=1#https://a:{SECRET}@h"]
)
def test_password_in_an_invalid_requirement_is_not_shown(tmp_path: Path, line: str) -> None:
    assert SECRET not in shown(check_projects([project(tmp_path, conda=pip(line))]))


def test_password_of_an_image_is_not_shown(tmp_path: Path) -> None:
    text = f"{MACHINE}baseDockerImage: https://me:{SECRET}@registry.example.com/a:1\n"
    assert SECRET not in shown(check_projects([project(tmp_path, compute=text)]))


# Secrets are found


@pytest.mark.parametrize(
    "runconfig",
    [
        pytest.param(f"EnvironmentVariables:\n  DATABASE_URL: postgres://me:{SECRET}@h/db\n", id="an address"),
        pytest.param(f"EnvironmentVariables:\n  AZURE_DEVOPS_TOKEN: {TOKEN}\n", id="a token of Azure DevOps"),
        pytest.param(f"EnvironmentVariables:\n  AZURE_STORAGE_KEY: /{KEY}\n", id="a key like a path"),
        pytest.param(f"EnvironmentVariables:\n  STORAGE_KEY_1: {KEY}\n", id="a key with a number"),
        pytest.param(f"EnvironmentVariables:\n  DB_PASS: {SECRET}\n", id="a shorter key name"),
        pytest.param(
            f"EnvironmentVariables:\n  PRIVATE_KEY: |\n    -----BEGIN PRIVATE KEY-----\n    {KEY}\n", id="a private key"
        ),
        pytest.param(f'ArgumentVector: [$file, --to, "AccountName=a;AccountKey={KEY}"]\n', id="an argument"),
        pytest.param(f'ArgumentVector: [$file, "https://a.blob.core.windows.net/c?sig={KEY}"]\n', id="a signature"),
    ],
)
def test_secret_in_a_run_configuration_is_found(tmp_path: Path, runconfig: str) -> None:
    assert codes(check_projects([project(tmp_path, runconfig=f"{RUN}{runconfig}")])) == ["plain-secret"]


@pytest.mark.parametrize(
    "conda",
    [
        pytest.param(pip(f"--extra-index-url https://{TOKEN}@pkgs.dev.azure.com/o/simple/"), id="a token"),
        pytest.param(f"channels: ['https://me:{SECRET}@h/channel']\ndependencies: [python=3.6]\n", id="a channel"),
        pytest.param(
            f"channels: ['https://conda.anaconda.org/t/me-0a1b2c3d-{SECRET}/private']\ndependencies: [python=3.6]\n",
            id="a channel's token",
        ),
        pytest.param(pip(f"foo==1.0 --extra-index-url https://me:{SECRET}@h/simple"), id="an option after a package"),
    ],
)
def test_secret_in_an_environment_is_found(tmp_path: Path, conda: str) -> None:
    assert "plain-secret" in codes(check_projects([project(tmp_path, conda=conda)]))


def test_spark_key_is_found(tmp_path: Path) -> None:
    folder = project(tmp_path, runconfig="Target: g\nFramework: PySpark\nSparkDependenciesFile: aml_config/spark.yml\n")
    text = f'configuration:\n  "spark.hadoop.fs.azure.account.key.a.blob.core.windows.net": "{KEY}"\n'
    (folder / "aml_config/spark.yml").write_text(text)
    assert codes(check_projects([folder])) == ["plain-secret"]


# Valid files


@pytest.mark.parametrize("value", ["$(DB_PASSWORD)", "$db_password", "#{DbPassword}#", "__DB_PASSWORD__"])
def test_variable_reference_is_not_a_secret(tmp_path: Path, value: str) -> None:
    text = f'{RUN}EnvironmentVariables:\n  DB_PASSWORD: "{value}"\n'
    assert codes(check_projects([project(tmp_path, runconfig=text)])) == []


@pytest.mark.parametrize("line", [".[gpu]", "./lib[extra]"])
def test_local_folder_may_have_extras(tmp_path: Path, line: str) -> None:
    folder = project(tmp_path, conda=pip(line))
    (folder / "lib").mkdir()
    assert codes(check_projects([folder])) == []


@pytest.mark.parametrize("line", ["${WHEEL}", "${PACKAGE}==1.0", "${STORE}/foo-1.0-py3-none-any.whl"])
def test_requirement_may_begin_with_a_variable(tmp_path: Path, line: str) -> None:
    assert codes(check_projects([project(tmp_path, conda=pip(line))])) == []


@pytest.mark.parametrize(
    "lines",
    [
        ["tensorflow==1.4.0 ; sys_platform == 'darwin'", "tensorflow-gpu==1.4.0 ; sys_platform == 'linux'"],
        ["tensorflow==1.4.0 ; python_version < '3'", "tensorflow==2.4.0 ; python_version >= '3'"],
        ["torch @ https://h/torch-1.0-cp36-cp36m-win_amd64.whl ; sys_platform == 'win32'"],
        ["https://h/torch-1.0-cp36-cp36m-win_amd64.whl ; platform_system == 'Windows'"],
        ["torch @ https://h/torch-1.0-cp37-cp37m-linux_x86_64.whl ; python_version == '3.7'"],
        ["./gone-1.0-py3-none-any.whl ; sys_platform == 'win32'"],
        ["tensorflow==1.4.0 ; platform_release >= '4'"],
        ["tensorflow==1.4.0 ; of my own"],
    ],
)
def test_requirement_for_another_system_or_python_is_ignored(tmp_path: Path, lines: list[str]) -> None:
    assert codes(check_projects([project(tmp_path, conda=pip(*lines))])) == []


def test_requirement_for_any_python_on_linux_is_checked(tmp_path: Path) -> None:
    lines = ["tensorflow==1.4.0 ; os_name == 'posix'", "cntk ; python_version < '3.6'"]
    text = pip(*lines).replace("- python=3.6\n", "")
    (finding,) = check_projects([project(tmp_path, conda=text)]).findings
    assert (finding.diagnostic.code, finding.diagnostic.span and finding.diagnostic.span.line) == (
        "cpu-only-package",
        3,
    )


def test_package_for_another_system_is_not_an_alternative(tmp_path: Path) -> None:
    folder = project(tmp_path, conda=pip("tensorflow==1.4.0", "tensorflow-gpu==1.4.0 ; sys_platform == 'win32'"))
    (finding,) = check_projects([folder]).findings
    assert "does not use a GPU" in (finding.diagnostic.label or "")


@pytest.mark.parametrize(
    "conda",
    [
        pip("-r requirements.txt"),
        pip("jax[cuda12]", python="3.10"),
        "dependencies: [python=3.8, pytorch-gpu]\n",
        "dependencies: [python=3.9, tensorflow=2.6=cuda112py39hbeafc40_0]\n",
        "dependencies: [python=3.9, 'jaxlib=0.4=cuda112*']\n",
    ],
)
def test_package_that_includes_cuda_is_accepted(tmp_path: Path, conda: str) -> None:
    text = f"{MACHINE}baseDockerImage: microsoft/mmlspark:plus-0.9.9\nnvidiaDocker: true\n"
    assert "no-cuda" not in codes(check_projects([project(tmp_path, compute=text, conda=conda)]))


@pytest.mark.parametrize("image", ["${REGISTRY}/train:1", "train:${TAG}", "$(REGISTRY)/train:1"])
def test_image_may_contain_a_variable(tmp_path: Path, image: str) -> None:
    text = f"{MACHINE}baseDockerImage: {image}\n"
    assert codes(check_projects([project(tmp_path, compute=text)])) == []


# Invalid files


def test_missing_environment_of_the_older_key_is_found(tmp_path: Path) -> None:
    text = f"{RUN}CondaFile: aml_config/gone.yml\n"
    assert codes(check_projects([project(tmp_path, runconfig=text)])) == ["missing-file"]


@pytest.mark.parametrize("image", ["ubuntu:16.04", "python:3.6", "debian", "continuumio/miniconda3:4.7.12"])
def test_plain_system_image_has_no_cuda(tmp_path: Path, image: str) -> None:
    compute = f"{MACHINE}baseDockerImage: {image}\nnvidiaDocker: true\n"
    folder = project(tmp_path, compute=compute, conda=pip("tensorflow-gpu==1.4.0"))
    assert codes(check_projects([folder])) == ["no-cuda"]


def test_comment_joined_to_a_version_is_found(tmp_path: Path) -> None:
    assert codes(check_projects([project(tmp_path, conda=pip("keras==2.0.8# why"))])) == ["bad-requirement"]


@pytest.mark.parametrize("line", ["pytorch=1.4=py3.6_cpu_0", "pytorch=1.12=*cpu*", "pytorch=1.12.1=cpu_py39h5e1f01c_0"])
def test_cpu_build_of_pytorch_is_found(tmp_path: Path, line: str) -> None:
    folder = project(tmp_path, conda=f"dependencies:\n- python=3.6\n- {line}\n")
    assert codes(check_projects([folder])) == ["cpu-only-package"]


# Help texts


@pytest.mark.parametrize("line", ["keras=2.0.8# why", "keras=2.0.8=py35_0", "keras=2.0.8#2"])
def test_suggested_requirement_is_valid_for_pip(tmp_path: Path, line: str) -> None:
    (finding,) = check_projects([project(tmp_path, conda=pip(line))]).findings
    written = (finding.diagnostic.help or "").partition("write `")[2].partition("`")[0]
    Requirement(written or "keras==2.0.8")


def test_duplicate_package_names_the_one_to_keep(tmp_path: Path) -> None:
    folder = project(tmp_path, conda=pip("tensorflow==1.12.0", "tensorflow-gpu==1.12.0"))
    findings = check_projects([folder]).findings
    (finding,) = [each for each in findings if each.diagnostic.code == Code.CPU_ONLY_PACKAGE]
    assert "keep only `tensorflow-gpu`" in (finding.diagnostic.help or "")
