"""The Python API on the embedded Azure: the examples of its page, the notebook, and the end of a machine."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import gpuinfra
from tests.e2e.user import User, inherited
from tests.variants import variant

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "api.md").read_text("utf-8")
REMOTE = {"type": "remote"}


@pytest.fixture
def project(user: User) -> User:
    """A user whose project has a spec and a script."""
    user.spec(target=REMOTE)
    (user.workspace / "train.py").write_text("print('trained')\n")
    return user


def start(user: User, code: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=user.workspace,
        env={**inherited(), **user.variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(user: User, code: str) -> str:
    process = start(user, code)
    out, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    return out


def test_examples_of_the_page_run(project: User) -> None:
    out = run(project, "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)))
    assert "deallocated" in out
    assert "trained" in out
    assert not project.azure.is_billed()


@variant
def test_notebook_runs(project: User) -> None:
    cells = json.loads((ROOT / "examples" / "notebook.ipynb").read_text("utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    assert "loss 0.1" in run(project, code)
    assert project.azure.everything() == []


def test_page_describes_every_name() -> None:
    assert sorted(re.findall(r"^### `(\w+)`$", PAGE, re.MULTILINE)) == sorted(gpuinfra.__all__)
    assert all(getattr(gpuinfra, name) for name in gpuinfra.__all__)


@variant
def test_machine_is_deallocated_after_an_exception(project: User) -> None:
    code = """
import gpuinfra
try:
    with gpuinfra.machine("gpu.yaml", sandbox=True) as m:
        raise ValueError
except ValueError:
    print(m.receipt.verified.value)
"""
    assert "deallocated" in run(project, code)
    assert not project.azure.is_billed()


def test_interrupt_deallocates_the_machine(project: User) -> None:
    (project.workspace / "train.py").write_text("import time; print('begun', flush=True); time.sleep(600)\n")
    code = """
import gpuinfra
try:
    with gpuinfra.machine("gpu.yaml", sandbox=True) as m:
        m.submit("train.py", on_interrupt="cancel", output=lambda text: print(text, flush=True))
except KeyboardInterrupt:
    print("interrupted", m.receipt.verified.value)
"""
    process = start(project, code)
    assert process.stdout
    assert "begun" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=240)
    assert "interrupted" in out, errors
    assert "deallocated" in out, errors
    assert not project.azure.is_billed()


@variant
def test_machine_of_others_is_left_alone(project: User) -> None:
    project.up()
    code = """
import gpuinfra
try:
    with gpuinfra.machine("gpu.yaml", sandbox=True) as m:
        pass
except gpuinfra.Problem as problem:
    print(problem.diagnostics[0].code.value)
"""
    other = User(project.azure, project.home.with_name("other"), project.workspace.with_name("other-project"))
    other.spec(target=REMOTE)
    assert run(other, code) == "unknown-host-key\n"
    assert project.azure.is_billed()
