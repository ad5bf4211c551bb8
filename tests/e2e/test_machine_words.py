"""A machine name means the same in every command, and an unknown name is an error."""

import json
from pathlib import Path

import pytest

from tests.e2e.azure import Azure
from tests.e2e.user import User
from tests.variants import variant, variants

ON, OFF = "PowerState/running", "PowerState/deallocated"


def elsewhere(azure: Azure, tmp_path: Path) -> User:
    """A user with an empty project: machines are known only from Azure."""
    return User(azure, tmp_path / "other" / "home", tmp_path / "other" / "project", key=False)


@pytest.mark.parametrize("word", variants("gpu.yaml", ".", "my-dsvm", "MY-DSVM", "my_dsvm", first=2))
def test_down_accepts_spec_folder_machine_and_target(user: User, azure: Azure, word: str) -> None:
    user.up()
    receipt = user.down(word)
    assert (receipt["name"], receipt["verifiedBy"]) == ("my-dsvm", OFF)
    assert azure.machine()["powerState"] == OFF


@variant
def test_down_accepts_a_folder_without_a_slash(user: User, azure: Azure) -> None:
    (user.workspace / "specs").mkdir()
    (user.workspace / "gpu.yaml").unlink()
    user.spec(file="specs/gpu.yaml")
    user.does("up", "specs")
    assert user.down("specs")["name"] == "my-dsvm"
    assert not azure.is_billed()


def test_down_ignores_a_target_name_that_only_a_tag_has(user: User, azure: Azure, tmp_path: Path) -> None:
    """Anyone who can write tags could redirect `down` to another machine."""
    user.spec(target={"name": "trainer"})
    user.up()
    elsewhere(azure, tmp_path).fails("down", "trainer", code="no-such-machine", exit_code=2)
    assert azure.is_billed()


def test_unknown_name_is_an_error_that_suggests_the_nearest(user: User, azure: Azure) -> None:
    user.up()
    before = azure.last_request()
    for words in [["down"], ["down", "--delete", "--yes"], ["lease"], ["ssh"], ["status"], ["doctor"]]:
        done = user(*words, "my-dvsm", "--json")
        assert done.returncode == 2, done.stdout + done.stderr
        (problem,) = json.loads(done.stdout)["diagnostics"]
        assert problem["code"] == "no-such-machine"
        assert "my-dvsm" in problem["note"]
        assert problem["help"] == "did you mean `my-dsvm`?"
        assert azure.writes(before) == []
        assert azure.machine()["powerState"] == ON


def test_every_command_takes_the_target_name(user: User, azure: Azure) -> None:
    user.up()
    for command in ["lease", "ssh", "status", "doctor", "down"]:
        assert "my-dsvm" in json.dumps(user.does(command, "my_dsvm"))


@variant
def test_every_command_takes_the_file_of_a_spec(user: User, azure: Azure) -> None:
    user.up()
    for command in ["lease", "ssh", "status", "doctor"]:
        assert "my-dsvm" in json.dumps(user.does(command, "gpu.yaml"))


def test_empty_folder_is_not_a_machine(user: User, azure: Azure) -> None:
    (user.workspace / "specs").mkdir()
    user.up()
    user.fails("down", "specs", code="no-such-machine", exit_code=2)
    assert azure.machine()["powerState"] == ON


def test_down_of_a_spec_that_was_never_up_does_not_claim_that_it_is_gone(user: User, azure: Azure) -> None:
    done = user("down", "gpu.yaml")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("my-dsvm does not exist (simulated)\n")
    assert azure.writes() == []


def test_machine_is_reported_as_deleted_only_with_evidence_that_it_existed(
    user: User, azure: Azure, tmp_path: Path
) -> None:
    user.up()
    other = elsewhere(azure, tmp_path)
    other.down("my-dsvm", "--delete", "--yes")
    # The ledger of this workspace knows it, and so does Azure's activity log.
    (user.workspace / "gpu.yaml").unlink()
    for person in (user, other, User(azure, tmp_path / "third" / "home", tmp_path / "third" / "project", key=False)):
        done = person("down", "my-dsvm")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("my-dsvm is gone (simulated)\n")


def test_attached_target_is_not_a_machine_that_down_can_end(user: User, azure: Azure) -> None:
    folder = user.workspace / "aml_config"
    folder.mkdir()
    (folder / "box.compute").write_text("type: remotedocker\naddress: 192.0.2.7\nusername: ada\n")
    problem = user.fails("down", "box", code="no-such-machine", exit_code=2)
    assert "box" in problem["note"]
    assert "detach" in problem["help"]
