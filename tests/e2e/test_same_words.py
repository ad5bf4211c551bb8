"""A word can be the name of one machine and the target name of another: the machine's name takes precedence."""

import json

from tests.e2e.azure import Azure
from tests.e2e.user import User
from tests.variants import variant

ON, OFF = "PowerState/running", "PowerState/deallocated"
REMOTE = {"type": "remote"}


def renamed(user: User) -> None:
    """The machine m7 is on; the spec now describes m8 with the target name m7."""
    user.spec(name="m7", target=REMOTE)
    user.up()
    user.spec(name="m8", target={**REMOTE, "name": "m7"})


def power(azure: Azure, name: str) -> str:
    return str(azure.machine(name, f"gpuinfra-{name}")["powerState"])


def test_down_by_name_stops_the_machine_of_that_name(user: User, azure: Azure) -> None:
    renamed(user)
    receipt = user.down("m7")
    assert (receipt["name"], receipt["verifiedBy"]) == ("m7", OFF)
    assert power(azure, "m7") == OFF


def test_word_for_two_machines_is_refused(user: User, azure: Azure) -> None:
    renamed(user)
    user.up("--yes")
    before = azure.last_request()
    for words in [["down", "--delete", "--yes"], ["down"], ["lease", "--release"], ["ssh"]]:
        problem = user.fails(words[0], "m7", *words[1:], code="ambiguous-name", exit_code=2)
        assert "`m7`" in problem["note"]
        assert "`m8`" in problem["note"]
        assert azure.writes(before) == []
        assert (power(azure, "m7"), power(azure, "m8")) == (ON, ON)


def test_spec_file_decides_between_two_machines(user: User, azure: Azure) -> None:
    renamed(user)
    user.up("--yes")
    assert user.down("gpu.yaml", "--delete", "--yes")["name"] == "m8"
    assert power(azure, "m7") == ON


@variant
def test_commands_find_the_machine_of_that_name(user: User, azure: Azure) -> None:
    renamed(user)
    for command in ["lease", "ssh", "status", "doctor"]:
        found = json.dumps(user.does(command, "m7"))
        assert "gpuinfra-m7" in found or '"m7"' in found
        assert "m8" not in found


@variant
def test_status_shows_both_machines(user: User, azure: Azure) -> None:
    renamed(user)
    user.up("--yes")
    assert [each["name"] for each in user.does("status", "m7")["machines"]] == ["m7", "m8"]


@variant
def test_folder_of_that_name_is_not_the_machine(user: User, azure: Azure) -> None:
    user.spec(name="m7", target=REMOTE)
    user.up()
    (user.workspace / "gpu.yaml").unlink()
    (user.workspace / "m7").mkdir()
    user.spec(name="m8", file="m7/gpu.yaml")
    assert user.down("m7")["name"] == "m7"
    assert power(azure, "m7") == OFF
