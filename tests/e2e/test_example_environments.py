"""The examples of environments: validated, planned, and run on the embedded Azure and in containers.

Their packages are stand-ins from a folder of wheels, because no package index is reachable.
"""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.e2e.azure import Azure
from tests.e2e.jobs import outputs_of, read_tree, submit_job
from tests.e2e.user import User
from tests.lab import PYTHON, REMOTEDOCKER, Lab
from tests.program import ROOT
from tests.wheels import write_wheel

TQDM = "def tqdm(items):\n    return items\n"
OFFLINE = "--no-index\n--find-links wheels\n"
BASE = "pytorch/pytorch:2.7.1-cuda11.8-cudnn9-runtime"


def copy_example(name: str, project: Path) -> None:
    """Copy an example into a project, with a folder of wheels as the only index."""
    shutil.copytree(ROOT / "examples" / name, project, dirs_exist_ok=True)
    lock = project / "uv.lock"
    text = lock.read_text() if lock.exists() else ""
    (version,) = re.findall(r'name = "tqdm"\nversion = "(.*)"', text) or ["4.70"]
    write_wheel(project / f"wheels/tqdm-{version}-py3-none-any.whl", TQDM)
    if text:
        # The stand-in has another checksum.
        text = re.sub(r', hash = "[^"]*"', "", text).replace("https://pypi.org/simple", "wheels")
        lock.write_text(text)
    if (project / "requirements.txt").exists():
        (project / "requirements.txt").write_text(OFFLINE + (project / "requirements.txt").read_text())


@pytest.mark.parametrize(
    ("name", "source"), [("requirements", "requirements.txt"), ("pyproject", "pyproject.toml with uv.lock")]
)
def test_python_environment_on_the_embedded_azure(user: User, azure: Azure, name: str, source: str) -> None:
    copy_example(name, user.workspace)
    assert user.does("validate", "gpu.yaml")["valid"]
    assert user.plan()["job"]["packages"] == source.partition(" ")[0]
    done = user("run", "--json", "gpu.yaml")
    assert done.returncode == 0, done.stderr
    assert f"environment: {source} (`job.environment` of the spec)" in done.stderr
    assert "loss 0.125" in done.stderr
    run = json.loads(done.stdout)["run"]
    assert read_tree(user.workspace / ".gpuinfra/runs" / run["id"] / "outputs") == {"model.json": b'{"loss": 0.125}'}
    assert azure.machine(f"with-{name}", f"gpuinfra-with-{name}")["powerState"] == "PowerState/deallocated"
    assert not azure.is_billed()


@pytest.mark.parametrize(("name", "source"), [("dockerfile", "Dockerfile"), ("conda", "environment.yml")])
def test_environment_in_a_container(lab: Lab, name: str, source: str) -> None:
    user = lab.user()
    user.configure(REMOTEDOCKER, PrepareEnvironment=True)
    copy_example(name, user.workspace)
    spec = (user.workspace / "gpu.yaml").read_text()
    (user.workspace / "gpu.yaml").write_text(spec.replace("job:", f"target: {{name: {REMOTEDOCKER}}}\njob:"))
    lab.engine.docker("tag", PYTHON, BASE)
    for file, old, new in (
        ("Dockerfile", "COPY requirements.txt /tmp/", "COPY requirements.txt wheels* /tmp/wheels/"),
        ("Dockerfile", "RUN ", "RUN cd /tmp && mv wheels/requirements.txt . && "),
        ("environment.yml", "tqdm>=4.66", "--no-index\n      - --find-links wheels\n      - tqdm>=4.66"),
    ):
        if (path := user.workspace / file).exists():
            path.write_text(path.read_text().replace(old, new))
    run = submit_job(user, "-c", REMOTEDOCKER)
    assert read_tree(outputs_of(user, run["id"])) == {"model.json": b'{"loss": 0.125}'}
    assert run["image"] == (source if name == "dockerfile" else PYTHON)
