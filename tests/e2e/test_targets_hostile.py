"""`attach`, `detach`, `targets`, `ssh` and `export` with hostile input."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpuinfra.runner.connection.passwords import account
from tests.e2e.azure import Azure
from tests.e2e.test_targets import KEYRING, Machine
from tests.e2e.user import PROGRAM, User
from tests.properties.test_targets_hostile import TARGET, compute


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "aml_config").mkdir()
    return tmp_path / "aml_config"


def test_target_file_of_a_project_runs_no_command(run: Any, tmp_path: Path, folder: Path) -> None:
    owned = tmp_path / "owned"
    (folder / "lab.compute").write_text(compute(username=f"me\nHost *\n    ProxyCommand touch {owned}"))
    run("ssh", "lab", "--config", HOME=str(tmp_path))
    config = tmp_path / ".gpuinfra" / "ssh" / "config"
    if config.exists():
        # A different machine.
        words = [
            "ssh",
            "-F",
            str(config),
            "-o",
            "BatchMode=yes",
            "-o",
            "ConnectTimeout=1",
            "-p",
            "1",
            "127.0.0.1",
            "true",
        ]
        subprocess.run(words, capture_output=True, timeout=20, check=False)
    assert not owned.exists()


def test_target_without_a_user_does_not_break_ssh_config(run: Any, tmp_path: Path, folder: Path) -> None:
    (folder / "lab.compute").write_text(compute(username=None))
    run("ssh", "lab", "--config", HOME=str(tmp_path))
    config = tmp_path / ".gpuinfra" / "ssh" / "config"
    if config.exists():
        words = ["ssh", "-G", "-F", str(config), "another.example.com"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
        assert done.returncode == 0, done.stderr


def test_truncated_host_key_does_not_hide_other_targets(run: Any, folder: Path) -> None:
    (folder / "copied.compute").write_text("type: remote\naddress: 127.0.0.1:1\nhostKey: ssh-ed25519 AAAAC3Nza…\n")
    (folder / "here.compute").write_text("type: local\n")
    done = run("targets", "--json")
    assert [row["name"] for row in json.loads(done.stdout).get("targets", ())] == ["copied", "here"]


def test_truncated_host_key_is_refused(run: Any) -> None:
    words = ["attach", "lab", "--address", "127.0.0.1:1", "--username", "me", "--host-key", "ssh-ed25519 AAAA…"]
    done = run(*words, "--json")
    (problem,) = json.loads(done.stdout)["diagnostics"]
    assert (done.returncode, problem["code"]) == (2, "bad-host-key")


@pytest.mark.parametrize("command", ["detach", "ssh"])
def test_overlong_name_is_unknown(run: Any, folder: Path, command: str) -> None:
    assert folder.is_dir()
    # The missing cloud does not matter here: `ssh` asks Azure for the name next.
    done = run(command, "a" * 300, "--json", AZURE_CONFIG_DIR="/nonexistent")
    assert "internal" not in {problem["code"] for problem in json.loads(done.stdout)["diagnostics"]}


def test_name_with_a_path_is_refused_with_a_reason(run: Any, tmp_path: Path, folder: Path) -> None:
    (tmp_path / "x.compute").write_text(compute())
    done = run("ssh", "../x", "--json", AZURE_CONFIG_DIR="/nonexistent")
    assert done.returncode != 0
    assert json.loads(done.stdout)["diagnostics"]


@pytest.mark.parametrize("more", [[], ["--config"]])
def test_ssh_without_a_home_folder_reports_it(tmp_path: Path, folder: Path, more: list[str]) -> None:
    (folder / "lab.compute").write_text(compute())
    # As in a container whose user has no entry in /etc/passwd.
    (tmp_path / "sitecustomize.py").write_text("import pwd\ndef none(*_): raise KeyError\npwd.getpwuid = none\n")
    done = subprocess.run(
        [PROGRAM, "ssh", "lab", *more, "--json"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "internal" not in {problem["code"] for problem in json.loads(done.stdout).get("diagnostics", ())}


def stand_in_keyring(folder: Path, code: str) -> tuple[Path, dict[str, str]]:
    """Return the file of a keyring that has the target's password, and the variables that select it."""
    (folder / "stand_in_keyring.py").write_text(code)
    kept = folder / "keyring.json"
    kept.write_text(json.dumps({f"gpuinfra/lab {account(TARGET)}": "sesame"}))
    backend = "stand_in_keyring.Keyring"
    return kept, {"PYTHONPATH": str(folder), "TEST_KEYRING": str(kept), "PYTHON_KEYRING_BACKEND": backend}


def test_detach_removes_the_password_of_an_invalid_file(run: Any, tmp_path: Path, folder: Path) -> None:
    (folder / "lab.compute").write_text(compute(password="keyring:lab", nvidiaDocker="perhaps"))
    kept, variables = stand_in_keyring(tmp_path, KEYRING)
    assert run("detach", "lab", "--yes", **variables).returncode == 0
    assert json.loads(kept.read_text()) == {}


def test_attach_without_gpu_marks_a_simulated_machine(user: User, tmp_path: Path) -> None:
    machine = Machine(user, user.up()["target"], tmp_path / "other")
    found = machine.attach("--host-key", machine.fingerprint, "--no-gpu")
    assert found["target"].get("simulated") is True
    assert "simulated: true" in machine.compute


# Files that `up` writes


@pytest.mark.parametrize("what", ["a file for the folder", "a folder for the file"])
def test_unwritable_target_is_reported_before_a_machine_is_billed(user: User, azure: Azure, what: str) -> None:
    folder = user.workspace / "aml_config"
    if what == "a file for the folder":
        folder.write_text("in the way")
    else:
        (folder / "my_dsvm.compute").mkdir(parents=True)
    done = user("up", "gpu.yaml", "--json")
    assert done.returncode != 0
    assert not azure.is_billed()


def test_unreadable_target_file_does_not_hide_earlier_machines(user: User) -> None:
    # For an unprivileged user, a file of another user does the same.
    (user.workspace / "aml_config").mkdir()
    (user.workspace / "aml_config" / "second.compute").symlink_to("/proc/self/mem")
    user.spec(file="second.yaml", name="second")
    done = user("up", "gpu.yaml", "second.yaml", "--json")
    document = json.loads(done.stdout)
    assert [machine["name"] for machine in document["machines"]] == ["my-dsvm"]
    assert document["diagnostics"]


def test_detach_says_when_the_password_is_still_in_the_keyring(run: Any, tmp_path: Path, folder: Path) -> None:
    (folder / "lab.compute").write_text(compute(password="keyring:lab"))
    locked = "    def delete_password(self, *_):\n        raise __import__('keyring').errors.KeyringLocked\n"
    code = f"{KEYRING.partition('    def delete_password')[0]}{locked}"
    kept, variables = stand_in_keyring(tmp_path, code)
    done = run("detach", "lab", "--yes", **variables)
    assert "sesame" in kept.read_text()
    assert "keyring" in done.stderr


def test_every_listed_target_can_be_detached(run: Any, tmp_path: Path) -> None:
    (tmp_path / ".azureml").mkdir()
    (tmp_path / ".azureml" / "lab.compute").write_text(compute())
    listed = [row["name"] for row in json.loads(run("targets", "--no-check", "--json").stdout)["targets"]]
    assert all(run("detach", name, "--yes", "--json").returncode == 0 for name in listed)


@pytest.mark.parametrize("key", ["address", "username", "privateKeyFile"])
def test_value_with_a_nul_byte_is_refused(run: Any, tmp_path: Path, folder: Path, key: str) -> None:
    (folder / "lab.compute").write_text(compute(**{key: "a\0b"}))
    done = run("ssh", "lab", HOME=str(tmp_path))
    assert done.returncode != 0
    assert "internal error" not in done.stderr


def test_unchangeable_target_file_is_reported_with_the_running_machine(user: User) -> None:
    folder = user.workspace / "aml_config"
    folder.mkdir()
    mine = "address: |  # the big one\n  old\ntype: remotedocker\n"
    (folder / "my_dsvm.compute").write_text(mine)
    problem = user.fails("up", "gpu.yaml", code="file-unwritable")
    assert "billed until `gpuinfra down my-dsvm`" in problem["note"]
    assert (folder / "my_dsvm.compute").read_text() == mine
