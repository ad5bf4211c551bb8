"""A host key recorded on this computer applies to the target's name and to the machine's name."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.azure import Azure
from tests.e2e.foreign import OTHER_HOST_KEY
from tests.e2e.test_host_key_pins import make_colleague, write_target_file
from tests.e2e.user import User
from tests.variants import variant

LAB_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"


def known_hosts(user: User) -> Path:
    return user.home / ".gpuinfra" / "ssh" / "known_hosts"


def record_lab(user: User) -> str:
    """Record the key that `attach lab` recorded in another project."""
    known_hosts(user).parent.mkdir(parents=True)
    line = f"gpuinfra-lab.sandbox {LAB_KEY} attach:127.0.0.1:7023\n"
    known_hosts(user).write_text(line)
    return line


def refused(user: User, *words: str) -> dict[str, Any]:
    done = user(*words[:1], "--json", *words[1:])
    assert done.returncode == 1, done.stdout + done.stderr
    (problem,) = json.loads(done.stdout)["diagnostics"]
    assert problem["code"] == "other-host-key", problem
    assert problem["note"].count("SHA256:") == 2
    return dict(problem)


@pytest.fixture
def colleague(user: User, azure: Azure, tmp_path: Path) -> User:
    """A colleague with the project's files, whose computer has not used the machine."""
    user.spec(target={"type": "remote"})
    user.up()
    other = make_colleague(user, azure, tmp_path)
    other.spec(target={"type": "remote"})
    (other.workspace / "aml_config").mkdir()
    for file in (user.workspace / "aml_config").iterdir():
        (other.workspace / "aml_config" / file.name).write_bytes(file.read_bytes())
    (other.workspace / "train.py").write_text("print(1)\n")
    return other


def test_spec_does_not_replace_the_recorded_key_of_a_target(user: User, azure: Azure) -> None:
    known = record_lab(user)
    write_target_file(user, "lab", type="remote", hostKey=OTHER_HOST_KEY, nvidiaDocker=False)
    user.spec(name="foo", target={"type": "remote", "name": "lab"})
    assert "`lab`" in refused(user, "submit", "-c", "lab", "train.py")["note"]
    assert known_hosts(user).read_text() == known


def test_machine_from_up_may_have_the_target_name_of_an_attached_one(user: User, azure: Azure) -> None:
    known = record_lab(user)
    user.spec(target={"type": "remote", "name": "lab"})
    (user.workspace / "train.py").write_text("print(1)\n")
    user.up()
    done = user("submit", "-c", "lab", "train.py")
    assert done.returncode == 0, done.stdout + done.stderr
    user.up()
    user.down("my-dsvm", "--delete", "--yes")
    assert known_hosts(user).read_text() == known


def test_attach_does_not_replace_a_recorded_key(user: User, azure: Azure, tmp_path: Path) -> None:
    target = user.up()["target"]
    (user.workspace / "gpu.yaml").unlink()
    known = known_hosts(user).read_text() + f"gpuinfra-lab.sandbox {LAB_KEY} attach:{target['address']}\n"
    known_hosts(user).write_text(known)
    where = ["--address", target["address"], "--port", str(target["port"]), "--username", target["username"]]
    words = ["attach", "lab", *where, "--type", "remote"]
    problem = refused(user, *words, "--yes")
    assert known_hosts(user).read_text() == known
    assert not (user.workspace / "aml_config" / "lab.compute").exists()
    fingerprint = problem["help"].split("--host-key ")[-1].split("`")[0]
    assert user.does(*words, "--host-key", fingerprint)["target"]["hostKey"] == target["hostKey"]


@variant
def test_file_of_a_project_is_not_consent_to_a_machine_of_someone_else(colleague: User, azure: Azure) -> None:
    before = azure.last_request()
    problem = colleague.fails("up", "gpu.yaml", code="unknown-host-key")
    assert azure.writes(before) == []
    fingerprint = problem["help"].split("--host-key ")[1].split("`")[0]
    colleague.up("--host-key", fingerprint)
    colleague.up()


def test_submit_records_the_key_of_a_target_that_only_a_file_names(colleague: User, azure: Azure) -> None:
    (colleague.workspace / "gpu.yaml").unlink()
    words = ["submit", "-c", "my_dsvm", "train.py"]
    done = colleague(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert colleague(*words).returncode == 0
    write_target_file(colleague, "my_dsvm", type="remote", hostKey=OTHER_HOST_KEY)
    refused(colleague, *words)
