"""A host key that `up` or `attach` recorded on this computer: no other machine and no project file replaces it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.azure import Azure
from tests.e2e.foreign import MACHINE, OTHER_HOST_KEY
from tests.e2e.user import OTHER_REGION, User
from tests.variants import variant, variants


def make_colleague(user: User, azure: Azure, folder: Path) -> User:
    """A colleague with write access to the subscription and the same SSH key, but none of the user's files."""
    other = User(azure, folder / "other" / "home", folder / "other" / "project", key=False)
    for file in user.private_key.parent.iterdir():
        shutil.copy(file, other.private_key.parent)
    other.spec()
    return other


def files_of(user: User) -> dict[str, bytes]:
    """Return the target's files and the pinned keys."""
    files = [*(user.workspace / "aml_config").iterdir(), user.home / ".gpuinfra" / "ssh" / "known_hosts"]
    return {file.name: file.read_bytes() for file in files if file.exists()}


def write_target_file(user: User, name: str, **values: Any) -> None:
    """Write a target that comes with the project."""
    folder = user.workspace / "aml_config"
    folder.mkdir(exist_ok=True)
    content = {"type": "remotedocker", "address": "127.0.0.1:9", "username": "me", "simulated": True, **values}
    (folder / f"{name}.compute").write_text(json.dumps(content))
    (folder / f"{name}.runconfig").write_text(json.dumps({"Target": name, "ArgumentVector": ["$file"]}))
    (user.workspace / "train.py").write_text("print(1)\n")


def test_up_stops_at_a_machine_that_was_replaced_by_a_colleague(user: User, azure: Azure, tmp_path: Path) -> None:
    user.up()
    known = files_of(user)
    other = make_colleague(user, azure, tmp_path)
    other.down("my-dsvm", "--delete", "--yes")
    other.up()
    before = azure.last_request()
    problem = user.fails("up", "gpu.yaml", code="other-host-key")
    assert problem["note"].count("SHA256:") == 2
    assert "gpuinfra up SPEC --host-key SHA256:" in problem["help"]
    user.spec(region=OTHER_REGION)
    user.fails("up", "gpu.yaml", "--delete", "--yes", code="other-host-key")
    user.spec()
    assert azure.writes(before) == [], "it is not replaced either"
    assert files_of(user) == known
    fingerprint = problem["help"].split("--host-key ")[1].split("`")[0]
    accepted = user.up("--host-key", fingerprint)["target"]["hostKey"]
    assert user.up()["target"]["hostKey"] == accepted
    assert user.does("ssh", "my-dsvm")["target"]["hostKey"] == accepted


def test_run_does_not_start_a_machine_that_was_replaced(user: User, azure: Azure) -> None:
    user.spec(target={"type": "remote"})
    user.up()
    user.down("my-dsvm")
    tags = {**azure.machine()["tags"], "gpuinfra:host-key": OTHER_HOST_KEY}
    azure.send("PATCH", azure.id(MACHINE, "my-dsvm"), {"tags": tags})
    (user.workspace / "train.py").write_text("print(1)\n")
    done = user("run", "gpu.yaml", "train.py")
    assert done.returncode == 1
    assert done.stderr.count("SHA256:") >= 2
    assert azure.machine()["powerState"] == "PowerState/deallocated"


@variant
def test_wrong_accepted_fingerprint_is_refused(user: User, azure: Azure) -> None:
    user.up()
    problem = user.fails("up", "gpu.yaml", "--host-key", "SHA256:" + "A" * 43, code="other-host-key")
    assert "SHA256:AAAA" in problem["note"]


@pytest.mark.parametrize("change", variants("deleted", "region"))
def test_machine_recreated_by_up_has_a_new_key(user: User, azure: Azure, change: str) -> None:
    first = user.up()["target"]["hostKey"]
    if change == "region":
        user.spec(region=OTHER_REGION)
    else:
        user.down("my-dsvm", "--delete", "--yes")
        assert first not in (user.home / ".gpuinfra" / "ssh" / "known_hosts").read_text()
    second = user.up("--yes", "--delete")["target"]["hostKey"]
    assert second != first
    known = (user.home / ".gpuinfra" / "ssh" / "known_hosts").read_text()
    assert second in known
    assert first not in known
    assert user.does("ssh", "my-dsvm")["target"]["hostKey"] == second


def test_project_file_does_not_replace_the_key_of_an_own_machine(user: User, azure: Azure, tmp_path: Path) -> None:
    user.up()
    for name in ("my-dsvm", "my_dsvm"):
        user.workspace = tmp_path / f"cloned-{name}"
        user.workspace.mkdir()
        write_target_file(user, name, hostKey=OTHER_HOST_KEY)
        known = files_of(user)
        for words in (["ssh"], ["ssh", "--config"], ["export", "--format", "ssh-config"]):
            problem = user.fails(*words, name, code="other-host-key")
            assert problem["note"].count("SHA256:") == 2
        assert files_of(user) == known


def test_job_is_not_sent_to_another_machine_under_the_name_of_an_own_one(
    user: User, azure: Azure, tmp_path: Path
) -> None:
    user.up()
    user.workspace = tmp_path / "cloned"
    user.workspace.mkdir()
    write_target_file(user, "my_dsvm", hostKey=OTHER_HOST_KEY)
    for words in (["submit", "--json", "-c", "my_dsvm", "train.py"], ["prepare", "--json", "-c", "my_dsvm"]):
        done = user(*words)
        assert done.returncode == 1, done.stdout + done.stderr
        (problem,) = json.loads(done.stdout)["diagnostics"]
        assert problem["code"] == "other-host-key"
        assert problem["note"].count("SHA256:") == 2


def test_attach_does_not_take_another_key_from_a_project_file(user: User, azure: Azure, tmp_path: Path) -> None:
    user.up()
    user.workspace = tmp_path / "cloned"
    user.workspace.mkdir()
    write_target_file(user, "my_dsvm", hostKey=OTHER_HOST_KEY)
    user.fails("attach", "my_dsvm", "--address", "127.0.0.1", "--port", "9", "--username", "me", code="other-host-key")


def test_sandbox_and_real_machine_of_one_name_have_separate_host_keys(user: User, azure: Azure) -> None:
    user.up()
    user.does("ssh", "my-dsvm", "--config")
    folder = user.home / ".gpuinfra" / "ssh"
    known, config = (folder / "known_hosts").read_text(), (folder / "config").read_text()
    (user.workspace / "gpu.yaml").unlink()
    write_target_file(user, "my-dsvm", hostKey=OTHER_HOST_KEY, simulated=False)
    user.does("ssh", "my-dsvm", "--config", sandbox=False)
    assert (folder / "known_hosts").read_text().startswith(known)
    assert (folder / "config").read_text().startswith(config)
    assert OTHER_HOST_KEY in (folder / "known_hosts").read_text()
