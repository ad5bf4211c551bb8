"""Environments of jobs without a container: over a real SSH server with the machine's Python, and on this computer.

No package index is reachable: the tests write their wheels, and `conda` is a stand-in.
"""

import io
import json
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from gpuinfra.runner.connection.local import LocalConnection
from gpuinfra.runner.connection.remote_client import RemoteClient
from tests.e2e.user import SPEC
from tests.lab import LOCAL, REMOTE, REMOTEDOCKER, Lab, LabUser
from tests.real import program
from tests.sshd import eventually
from tests.torch_stand_in import write_torch
from tests.wheels import write_wheel

LINKS = "--no-index\n--find-links wheels\n"
WHERE = ["python", "-c", "import sys, greeting; print(sys.prefix, greeting.said)"]
# It creates an environment from the machine's Python, as conda does from its packages.
CONDA = """#!/bin/sh
while [ $# -gt 1 ]; do [ "$1" = --prefix ] && prefix=$2; shift; done
python3 -m venv --without-pip "$prefix"
echo "said = 'by conda'" > "$(echo "$prefix"/lib/python*/site-packages)/greeting.py"
"""


@pytest.fixture
def user(lab: Lab) -> LabUser:
    made = lab.user()
    made.configure(PrepareEnvironment=True)
    write_wheel(made.workspace / "wheels/greeting-1.0-py3-none-any.whl", "said = 'hello'\n")
    write_wheel(made.workspace / "wheels/other-1.0-py3-none-any.whl")
    return made


def spec(user: LabUser, kind: str = "remote", **environment: str) -> None:
    job = {"command": WHERE, "environment": environment}
    name = {"remote": REMOTE, "remotedocker": REMOTEDOCKER}[kind]
    found = {**SPEC, "name": "machine", "target": {"name": name, "type": kind}, "job": job}
    (user.workspace / "gpu.yaml").write_text(json.dumps(found))


def install_uv(home: Path) -> None:
    """Give a login uv, which is much faster than pip."""
    (home / ".local/bin").mkdir(parents=True)
    (home / ".local/bin/uv").symlink_to(program("uv", "uv"))


def run(user: LabUser, *words: str, where: str = REMOTE, **more: str) -> tuple[list[str], str]:
    """Run a job that must succeed. Return the words that it prints, and what the program says."""
    done = user("submit", "-c", where, *(words or ("--", *WHERE)), **more)
    assert done.returncode == 0, done.stderr
    return done.stdout.split(), done.stderr


def test_requirements_make_one_environment_per_content(lab: Lab, user: LabUser) -> None:
    requirements = user.workspace / "requirements.txt"
    requirements.write_text(f"{LINKS}greeting\n")
    spec(user, requirements="requirements.txt")

    (first, said), shown = run(user)
    assert (Path(first).parent, said) == (lab.home / ".gpuinfra/environments", "hello")
    assert "environment: requirements.txt (`job.environment` of the spec)" in shown
    assert "Successfully installed greeting-1.0" in shown
    (user.workspace / "train.py").write_text("import sys, greeting\nprint(sys.prefix, greeting.said)\n")
    (again, _), shown = run(user, "train.py")
    assert again == first
    assert "installing" not in shown

    install_uv(lab.home)
    requirements.write_text(f"{LINKS}greeting\nother\n")
    (second, _), _ = run(user)
    assert second != first
    assert not list(Path(first).parent.glob("*.build")), "the files of a build are removed"

    requirements.write_text(f"{LINKS}greeting\nmissing\n")
    assert "missing" in str(user.fails("submit", "-c", REMOTE, code="build-failed"))
    assert len([each for each in Path(first).parent.iterdir() if each.is_dir()]) == 2

    spec(user)
    requirements.unlink()
    (prefix,), _ = run(user, "--", "python3", "-c", "import sys; print(sys.prefix)")
    assert Path(prefix).parent != Path(first).parent, "without files, it is the machine's Python"


def test_uv_makes_environments_where_it_exists(lab: Lab, user: LabUser) -> None:
    text = '[project]\nname = "demo"\nversion = "1"\nrequires-python = ">=3.8"\ndependencies = ["greeting"]\n'
    text += '[tool.uv]\nno-index = true\nfind-links = ["wheels"]\n'
    (user.workspace / "pyproject.toml").write_text(text)
    variables = {**os.environ, "UV_CACHE_DIR": str(user.home / "cache")}
    command = [program("uv", "uv"), "lock", "--offline", "--quiet"]
    subprocess.run(command, cwd=user.workspace, env=variables, check=True, timeout=60)
    install_uv(lab.home)
    spec(user, pyproject="pyproject.toml")

    (_, said), shown = run(user)
    assert said == "hello"
    assert "making the environment with uv" in shown
    assert "environment: pyproject.toml with uv.lock (`job.environment` of the spec)" in shown


def test_conda_makes_environments_of_conda_files(lab: Lab, user: LabUser) -> None:
    conda = lab.home / "miniforge3/bin/conda"
    conda.parent.mkdir(parents=True)
    (user.workspace / "environment.yml").write_text("dependencies: [greeting]\n")
    spec(user, conda="environment.yml")
    found = user.fails("submit", "-c", REMOTE, code="build-failed")
    assert "the machine has no conda, and the file asks conda for greeting" in found["note"]

    conda.write_text(CONDA)
    conda.chmod(0o755)
    (_, *said), _ = run(user)
    assert said == ["by", "conda"]


def test_local_jobs_use_the_environment_of_the_spec(user: LabUser) -> None:
    (user.workspace / "requirements.txt").write_text(f"{LINKS}greeting\n")
    spec(user, requirements="requirements.txt")
    install_uv(user.home)
    (folder, said), _ = run(user, where=LOCAL)
    assert (Path(folder).parent, said) == (user.home / ".gpuinfra/environments", "hello")

    spec(user, image="own/image:1")
    (prefix,), _ = run(user, "--", "python3", "-c", "import sys; print(sys.prefix)", where=LOCAL)
    assert Path(prefix).parent != Path(folder).parent, "this computer's Python stands for an image"


TORCHES: list[tuple[dict[str, Any], str, str]] = [
    ({"version": "2.5.1+cpu"}, "PyTorch 2.5.1+cpu is a build for the CPU", "`torch==2.5.1+cu121`"),
    (
        {"version": "2.9.0+cu130", "cuda": "13.0", "sees": False},
        "PyTorch 2.9.0+cu130 is built for CUDA 13.0, which is newer than the driver",
        "`torch==2.9.0+cu126`",
    ),
    (
        {"version": "2.6.0+cu124", "cuda": "12.4", "archs": ("sm_80",), "error": "CUDA error: no kernel image"},
        "PyTorch 2.6.0+cu124 is not built for the GPU's compute capability 7.5",
        "`torch==2.6.0+cu118`",
    ),
]


@pytest.mark.parametrize(("torch", "cause", "fix"), TORCHES)
def test_framework_that_cannot_use_the_gpu_stops_the_run(
    lab: Lab, user: LabUser, torch: dict[str, Any], cause: str, fix: str
) -> None:
    install_uv(lab.home)
    write_torch(user.workspace / "wheels", **torch)
    (user.workspace / "requirements.txt").write_text(f"{LINKS}torch\n")
    spec(user, requirements="requirements.txt")
    found = user.fails("submit", "-c", REMOTE, code="no-gpu")
    assert (found["label"], found["line"]) == (cause, 3)
    assert fix in found["help"]
    assert user.does("runs")["runs"][0]["started"] is None


def test_framework_is_checked_once_in_a_container(user: LabUser) -> None:
    user.configure(REMOTEDOCKER, PrepareEnvironment=True)
    folder = user.workspace / "wheels"
    (user.workspace / "requirements.txt").write_text(f"{LINKS}torch\n")
    spec(user, "remotedocker", requirements="requirements.txt")
    write_torch(folder, "2.5.1+cpu")
    found = user.fails("submit", "-c", REMOTEDOCKER, code="no-gpu")
    assert (found["label"], found["line"]) == ("PyTorch 2.5.1+cpu is a build for the CPU", 3)
    write_torch(folder, "2.5.1+cu121", cuda="12.1")
    _, shown = run(user, "--", "true", where=REMOTEDOCKER)
    assert "used by PyTorch 2.5.1+cu121" in shown
    _, shown = run(user, "--", "true", where=REMOTEDOCKER)
    assert "frameworks" not in shown


def test_framework_is_checked_in_an_environment_that_was_made_again(lab: Lab, user: LabUser) -> None:
    """Requirements without versions may install other packages the next time."""
    install_uv(lab.home)
    index = lab.home / "index"
    (lab.home / ".config/uv").mkdir(parents=True)
    (lab.home / ".config/uv/uv.toml").write_text(f'no-index = true\nfind-links = ["{index}"]\n')
    (user.workspace / "requirements.txt").write_text("torch\n")
    spec(user, requirements="requirements.txt")
    index.mkdir()
    write_torch(index, "2.5.1+cu121", cuda="12.1")
    _, shown = run(user, "--", "true")
    assert "used by PyTorch 2.5.1+cu121" in shown
    _, shown = run(user, "--", "true")
    assert "frameworks" not in shown
    write_torch(index, "2.6.0+cpu")
    assert user.fails("submit", "-c", REMOTE, "--rebuild", code="no-gpu")["label"].startswith("PyTorch 2.6.0+cpu")
    assert user.fails("submit", "-c", REMOTE, code="no-gpu")["label"].startswith("PyTorch 2.6.0+cpu")


def context(script: str) -> bytes:
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w") as archive:
        entry = tarfile.TarInfo("environment.sh")
        entry.size = len(script.encode())
        archive.addfile(entry, io.BytesIO(script.encode()))
    return found.getvalue()


def test_interrupted_environment_is_never_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".gpuinfra/environments/abc"
    makes = 'mkdir -p "$prefix/bin" && ln -s /bin/true "$prefix/bin/python"\n'
    connection = LocalConnection()
    client = RemoteClient(connection)

    def make(script: str) -> dict[str, Any]:
        with client.call("environment-make", {"digest": "abc"}) as call:
            call.send(context(script))
            call.send(b"")
            return next(call.read_object(data) for kind, data in iter(call.receive, None) if kind == b"J")

    try:
        with client.call("environment-make", {"digest": "abc"}) as call:
            call.send(context(f"{makes}echo started\nexec sleep 1000\n"))
            call.send(b"")
            assert b"started" in call.receive()[1]
            assert folder.exists()
        # The client has disconnected: the installer is stopped, and its lock is free.
        assert client.ask("environment-find", digest="abc")["folder"] is None
        assert eventually(lambda: not list(folder.parent.glob("*.build")))
        assert make(f"test ! -e $prefix || exit 7\n{makes}")["folder"] == str(folder)
        assert client.ask("environment-find", digest="abc")["folder"] == str(folder)
        assert make("exit 9\n")["made"] is False, "another client has made it meanwhile"
        (folder / "bin/python").unlink()
        assert client.ask("environment-find", digest="abc")["folder"] is None, "the machine's Python was removed"
        assert make("exit 9\n") == {"folder": None, "code": 9, "made": True}
    finally:
        client.close()
        connection.close()
