"""Simulated and real targets: neither replaces the other without consent, and commands of one never use the other."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.azure import Azure
from tests.e2e.user import User

HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
# A documentation address: nothing answers there.
REAL = {
    "address": "192.0.2.1",
    "hostKey": HOST_KEY,
    "password": "keyring:box",
    "privateKeyFile": "~/.ssh/real_key",
    "type": "remote",
    "username": "me",
}


def write_target(user: User, name: str, **values: Any) -> Path:
    folder = user.workspace / "aml_config"
    folder.mkdir(exist_ok=True)
    (user.workspace / "train.py").write_text("print('hello')\n")
    (folder / f"{name}.runconfig").write_text(f"Framework: Python\nTarget: {name}\n")
    path = folder / f"{name}.compute"
    path.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in {**REAL, **values}.items()))
    return path


def test_sandbox_up_does_not_replace_a_real_target(user: User, azure: Azure) -> None:
    box = write_target(user, "box")
    before, requests = box.read_text(), azure.last_request()
    user.spec(target={"name": "box"})
    problem = user.fails("up", "gpu.yaml", code="needs-consent", exit_code=2)
    assert "real" in problem["note"]
    assert "simulated" in problem["note"]
    assert box.read_text() == before
    assert azure.writes(requests) == []


def test_replaced_target_keeps_nothing_of_the_old_login(user: User) -> None:
    box = write_target(user, "box")
    user.spec(target={"name": "box"})
    user.does("up", "gpu.yaml", "--yes")
    text = box.read_text()
    assert "simulated: true" in text
    for gone in ("192.0.2.1", "keyring:box", "real_key"):
        assert gone not in text


def test_sandbox_up_replaces_its_own_target_without_a_question(user: User) -> None:
    user.up()
    user.spec(target={"nvidiaDocker": True})
    user.up()


@pytest.mark.parametrize("words", [["submit", "-c", "box", "train.py"], ["prepare", "-c", "box"], ["ssh", "box"]])
def test_real_command_does_not_use_a_simulated_target(user: User, words: list[str]) -> None:
    write_target(user, "box", simulated=True)
    command, *rest = words
    done = user(command, "--json", *rest, sandbox=False)
    assert done.returncode == 2, done.stdout + done.stderr
    (problem,) = json.loads(done.stdout)["diagnostics"]
    assert (problem["code"], "--sandbox" in problem["help"]) == ("wrong-cloud", True)


@pytest.mark.parametrize("words", [["submit", "-c", "box", "train.py"], ["prepare", "-c", "box"], ["ssh", "box"]])
def test_command_with_sandbox_does_not_use_a_real_target(user: User, words: list[str]) -> None:
    write_target(user, "box")
    command, *rest = words
    done = user(command, "--json", *rest)
    assert done.returncode == 2, done.stdout + done.stderr
    (problem,) = json.loads(done.stdout)["diagnostics"]
    assert (problem["code"], "--sandbox" in problem["help"]) == ("wrong-cloud", True)


def test_attach_does_not_replace_a_real_target_by_a_simulated_machine(user: User) -> None:
    target = user.up()["target"]
    box = write_target(user, "box", hostKey=target["hostKey"])
    before = box.read_text()
    where = ["--address", target["address"], "--port", str(target["port"]), "--username", target["username"]]
    words = [
        "attach",
        "box",
        *where,
        "--type",
        "remote",
        "--host-key",
        target["hostKey"],
        "--key",
        str(user.private_key),
    ]
    user.fails(*words, code="needs-consent", exit_code=2)
    assert box.read_text() == before
