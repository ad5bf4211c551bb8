"""Two machines of one name in one subscription: the spec's group decides, and a known host key is never replaced."""

from pathlib import Path

from tests.e2e.azure import Azure
from tests.e2e.foreign import MACHINE, OTHER_HOST_KEY, make_group, make_machine
from tests.e2e.user import User
from tests.variants import variant

OFF = "PowerState/deallocated"


def make_rival(azure: Azure, user: User) -> None:
    """Another machine of the same name with the same tags, in a group that is listed first."""
    marks = dict(azure.machine()["tags"])
    make_group(azure, "a-team")
    make_machine(azure, "a-team", "my-dsvm", {**marks, "gpuinfra:host-key": OTHER_HOST_KEY}, like_ours=True)


def test_group_of_the_spec_decides_which_machine_is_meant(user: User, azure: Azure) -> None:
    target = user.up()["target"]
    make_rival(azure, user)
    assert user.does("ssh", "my-dsvm")["target"]["hostKey"] == target["hostKey"]
    assert user.does("lease", "my-dsvm")["resourceGroup"] == "gpuinfra-my-dsvm"
    assert user.down("my-dsvm")["resourceGroup"] == "gpuinfra-my-dsvm"
    assert azure.machine()["powerState"] == OFF
    assert azure.machine(group="a-team")["powerState"] == "PowerState/running"


def test_ambiguous_name_lists_the_candidates(user: User, azure: Azure, tmp_path: Path) -> None:
    user.up()
    make_rival(azure, user)
    other = User(azure, tmp_path / "other" / "home", tmp_path / "other" / "project", key=False)
    before = azure.last_request()
    for words in [["ssh"], ["lease"], ["down"], ["down", "--delete", "--yes"]]:
        problem = other.fails(*words, "my-dsvm", code="ambiguous-name", exit_code=2)
        assert "`a-team`" in problem["note"]
        assert "`gpuinfra-my-dsvm`" in problem["note"]
        assert azure.writes(before) == []


def test_up_does_not_suggest_a_command_that_deletes_the_users_own_machine(user: User, azure: Azure) -> None:
    user.up()
    make_rival(azure, user)
    problem = user.fails("up", "gpu.yaml", code="name-taken")
    assert "a-team" in problem["note"]
    assert "down" not in problem["help"]


@variant
def test_changed_host_key_stops_with_both_fingerprints(user: User, azure: Azure, tmp_path: Path) -> None:
    user.up()
    other = User(azure, tmp_path / "other" / "home", tmp_path / "other" / "project")
    other.does("ssh", "my-dsvm")
    known = other.home / ".gpuinfra" / "ssh" / "known_hosts"
    before = known.read_text()
    tags = {**azure.machine()["tags"], "gpuinfra:host-key": OTHER_HOST_KEY}
    azure.send("PATCH", azure.id(MACHINE, "my-dsvm"), {"tags": tags})
    for person in (user, other):
        problem = person.fails("ssh", "my-dsvm", code="other-host-key")
        assert problem["note"].count("SHA256:") == 2
    assert "ssh-keygen -R gpuinfra-my-dsvm" in problem["help"]
    assert known.read_text() == before


@variant
def test_recreated_machine_is_known_by_its_new_key(user: User, azure: Azure) -> None:
    first = user.up()["target"]["hostKey"]
    user.does("ssh", "my-dsvm")
    user.down("my-dsvm", "--delete", "--yes")
    user.up()
    assert user.does("ssh", "my-dsvm")["target"]["hostKey"] != first
