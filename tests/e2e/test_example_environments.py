"""The examples of environments: each is validated, planned and run, in a container and without one.

`gpuinfra run` creates the machine on an embedded Azure whose machines use the lab's Docker Engine. Base images and
packages are stand-ins, because no registry and no package index is reachable; so is conda, while pip and uv are real.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import yaml

from gpuinfra.sandbox import guest_host, running
from gpuinfra.workbench.base_images import choose_base_image
from tests.e2e.azure import Azure, reset
from tests.e2e.jobs import read_tree
from tests.e2e.user import User
from tests.lab import PYTHON, Lab
from tests.program import ROOT
from tests.real import PATH, program
from tests.variants import variants
from tests.wheels import write_wheel

WHEEL = "tqdm-4.70-py3-none-any.whl"
TQDM = "def tqdm(items):\n    return items\n"
# Of a simulated machine; the Workbench's example names it.
DEFAULT_IMAGE = choose_base_image(guest_host._DRIVER, guest_host._CUDA).name
BASE = "pytorch/pytorch:2.7.1-cuda11.8-cudnn9-runtime"
# It makes an environment from the Python that it finds, and unpacks the wheel beside it.
CONDA = f"""#!/bin/sh -e
echo "conda is a stand-in: $*, CUDA ${{CONDA_OVERRIDE_CUDA:-as the driver says}}"
while [ $# -gt 1 ]; do
    case $1 in --prefix) prefix=$2 ;; --file) file=$2 ;; esac
    shift
done
grep -q tqdm "$file"
python3 -m venv --without-pip "$prefix"
python3 -m zipfile -e "$(dirname "$0")/{WHEEL}" "$(echo "$prefix"/lib/python*/site-packages)"
"""
CONTAINER, REMOTE = "remotedocker", "remote"
SOURCES = {
    "requirements": "requirements.txt",
    "pyproject": "pyproject.toml with uv.lock",
    "conda": "environment.yml",
    "dockerfile": "Dockerfile",
    "workbench": "aml_config/conda_dependencies.yml",
}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the machines have in addition to the programs of this computer: uv, and a stand-in for conda."""
    folder = tmp_path_factory.mktemp("programs")
    (folder / "uv").symlink_to(program("uv", "uv"))
    (folder / "conda").write_text(CONDA)
    (folder / "conda").chmod(0o755)
    write_wheel(folder / WHEEL, TQDM)
    return folder


@pytest.fixture(scope="module")
def azure_with_lab(running_lab: Lab, programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azure]:
    """An embedded Azure whose machines have these programs, and use the lab's Docker Engine."""
    variables = {"DOCKER_HOST": running_lab.engine.address, "PATH": f"{programs}:{PATH}"}
    with mock.patch.dict(os.environ, variables):
        azure = Azure(tmp_path_factory.mktemp("azure") / "sandbox")
    yield azure
    running.stop(azure.folder)


@pytest.fixture
def user(azure_with_lab: Azure, tmp_path: Path) -> User:
    reset(azure_with_lab)
    return User(azure_with_lab, tmp_path / "user", tmp_path / "project")


@pytest.fixture
def base_images(lab: Lab, programs: Path) -> Iterator[None]:
    """The base images of the examples, with the stand-in for conda where the real one has conda."""
    build = lab.folder / "build"
    shutil.copytree(programs, build, ignore=shutil.ignore_patterns("uv"))
    (build / "Dockerfile").write_text(f"FROM {PYTHON}\nENV CUDA_VERSION=12.4.1\nCOPY conda *.whl /opt/miniconda/bin/\n")
    lab.engine.docker("build", "--quiet", "--tag", DEFAULT_IMAGE, str(build))
    lab.engine.docker("tag", PYTHON, BASE)
    yield
    shutil.rmtree(build)
    lab.engine.docker("rmi", "--no-prune", DEFAULT_IMAGE, BASE)


def copy_example(name: str, project: Path, target_type: str) -> None:
    """Copy an example into a project, for this type of target, with a folder of wheels as the only index."""
    shutil.copytree(ROOT / "examples" / name, project, dirs_exist_ok=True)
    _use_wheels(project)
    spec = yaml.safe_load((project / "gpu.yaml").read_text())
    target = {**spec.get("target", {}), "type": target_type}
    if target_type == REMOTE:
        target.pop("baseDockerImage", None)
    (project / "gpu.yaml").write_text(json.dumps({**spec, "target": target}))


def _use_wheels(project: Path) -> None:
    version = "4.70"
    for name, old, new in (
        ("requirements.txt", r"\A", "--no-index\n--find-links wheels\n"),
        ("Dockerfile", r"(?m)^COPY (.*)$", r"COPY \1\nCOPY wheels /tmp/wheels/"),
        ("aml_config/conda_dependencies.yml", r"( +- )(tqdm.*)", r"\1--no-index\n\1--find-links wheels\n\1\2"),
        ("pyproject.toml", r"\Z", "\n[tool.uv]\nno-index = true\n"),
        # The stand-in has another checksum.
        ("uv.lock", r', hash = "[^"]*"', ""),
        ("uv.lock", "https://pypi.org/simple", "wheels"),
    ):
        if (path := project / name).exists():
            text = path.read_text()
            path.write_text(re.sub(old, new, text))
            (version,) = re.findall(r'name = "tqdm"\nversion = "(.*)"', text) or [version]
    write_wheel(project / f"wheels/tqdm-{version}-py3-none-any.whl", TQDM)


def run_example(user: User, name: str, target_type: str) -> str:
    """Return what the program says on standard error."""
    copy_example(name, user.workspace, target_type)
    assert user.does("validate", "gpu.yaml")["valid"]
    source = SOURCES[name]
    job = user.plan()["job"]
    assert (job["packages"] or job["dockerfile"], job["type"]) == (source.partition(" ")[0], target_type)

    done = user("run", "--json", "gpu.yaml")
    assert done.returncode == 0, done.stderr
    assert f"environment: {source} (`job.environment` of the spec)" in done.stderr
    assert "loss 0.125" in done.stderr
    result = json.loads(done.stdout)
    run, receipt = result["run"], result["receipt"]
    assert (run["state"], run["type"], run["gpu"]["simulated"]) == ("completed", target_type, True)
    assert read_tree(user.workspace / f".gpuinfra/runs/{run['id']}/outputs") == {"model.json": b'{"loss": 0.125}'}
    assert (receipt["off"], receipt["verifiedBy"]) == (True, "PowerState/deallocated")
    assert not user.azure.is_billed()
    return done.stderr


@pytest.mark.usefixtures("base_images")
@pytest.mark.parametrize("name", variants("conda", "dockerfile", "requirements", "pyproject", "workbench", first=2))
def test_example_runs_in_a_container(user: User, name: str) -> None:
    said = run_example(user, name, CONTAINER)
    if name == "conda":
        assert "environment.yml, CUDA 12.4" in said, "a build sees no GPU"


@pytest.mark.parametrize("name", variants("requirements", "pyproject", "conda", "workbench"))
def test_example_runs_without_a_container(user: User, name: str) -> None:
    said = run_example(user, name, REMOTE)
    if name == "conda":
        assert "environment.yml, CUDA as the driver says" in said


def test_dockerfile_without_a_container_is_refused_before_anything_is_created(user: User) -> None:
    copy_example("dockerfile", user.workspace, REMOTE)
    for command in ("validate", "run"):
        done = user(command, "--json", "gpu.yaml")
        (found,) = json.loads(done.stdout)["diagnostics"]
        assert (done.returncode, found["code"], found["line"]) == (2, "no-effect", 1)
        assert found["label"] == "no effect with `target.type: remote`, which runs jobs without a container"
        assert "use `requirements`, `pyproject` or `conda`, or write `type: remotedocker`" in found["help"]
    assert user.azure.everything() == []
