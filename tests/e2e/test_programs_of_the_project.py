"""A project from someone else, with programs that have the names of the system's own."""

import json
import os
from pathlib import Path

import pytest

from tests.lab import LOCAL, LOCALDOCKER, REMOTE, REMOTEDOCKER, Lab
from tests.variants import variants

SUBSCRIPTION = "00000000-0000-4000-8000-000000000001"
NAMES = ("nvidia-smi", "python3", "git", "docker", "az", "ssh", "sh", "crontab", "systemctl", "docker-credential-lab")
MISSING = "localhost:1/missing:latest"


def plant(folder: Path, marker: Path) -> None:
    """Put programs into a folder that leave a marker and do nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        (folder / name).write_text(f"#!/bin/sh\necho {name} >> {marker}\n")
        (folder / name).chmod(0o755)


@pytest.mark.parametrize("entry", [".", "", "bin", "{project}/bin"])
def test_a_local_job_starts_no_program_of_the_project(lab: Lab, entry: str) -> None:
    user = lab.user()
    marker = user.home / "marker"
    plant(user.workspace, marker)
    plant(user.workspace / "bin", marker)
    path = os.pathsep.join([entry.format(project=user.workspace), lab.path])
    done = user("submit", "-c", LOCAL, "--gpus", "all", user.script("print('ran')"), PATH=path)
    assert not marker.exists(), marker.read_text()
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr


def test_a_local_job_has_the_python_of_a_virtual_environment_in_the_project(lab: Lab) -> None:
    user = lab.user()
    programs = user.workspace / "venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").write_text("#!/bin/sh\necho mine; command -v python\n")
    (programs / "python").chmod(0o755)
    (user.workspace / ".gpuinfraignore").write_text("venv\n")
    done = user("submit", "-c", LOCAL, user.script("print('ran')"), PATH=f"{programs}{os.pathsep}{lab.path}")
    assert (done.returncode, done.stdout) == (0, f"mine\n{programs}/python\n"), done.stderr


def test_commands_start_no_program_of_the_project(lab: Lab) -> None:
    user = lab.user()
    marker = user.home / "marker"
    plant(user.workspace, marker)
    more = {"PATH": os.pathsep.join([".", str(user.workspace), lab.path])}
    user("ssh", REMOTE, "--", "true", **more)
    user("schedule", "status", **more)
    azure = {"AZURE_TOKEN_CREDENTIALS": "AzureCliCredential", "AZURE_SUBSCRIPTION_ID": SUBSCRIPTION}
    user("status", **more, **azure)
    assert not marker.exists(), marker.read_text()


@pytest.mark.parametrize("target", variants(REMOTEDOCKER, LOCALDOCKER))
def test_docker_credentials_are_not_read_by_a_program_of_the_project(lab: Lab, target: str) -> None:
    user = lab.user()
    marker = user.home / "marker"
    plant(user.workspace, marker)
    (user.home / ".docker").mkdir()
    (user.home / ".docker" / "config.json").write_text(json.dumps({"credsStore": "lab"}))
    user.compute(target, baseDockerImage=MISSING)
    path = os.pathsep.join([".", "", str(user.workspace), lab.path])
    done = user("prepare", "-c", target, "--send-credentials", PATH=path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "docker-credential-lab" in done.stderr  # it was looked for
    assert not marker.exists(), marker.read_text()
