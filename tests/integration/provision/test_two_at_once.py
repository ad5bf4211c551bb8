"""Two commands for the same machine at the same time: two `up`, two `down`, or one of each.

Faults hold the first command at one request while the second runs, so each order of events is the same every time.
A few tests hold nothing and start both at once: every order must work.
"""

import itertools
from typing import Any

import pytest

from tests.integration.provision.harness import Command, Harness, Result, cases, resource_type, resources_of
from tests.variants import variant, variants

NAME, REGION = "twice", "southcentralus"
SPEC = f"{NAME}.yaml"
# The second command runs as if on another computer, which has no files of the first.
ELSEWHERE = ("--workspace", "elsewhere")
VM = "virtualMachines"
KINDS = (
    "resourceGroups",
    "networkSecurityGroups",
    "virtualNetworks",
    "publicIPAddresses",
    "networkInterfaces",
    "virtualMachines",
    "schedules",
)
HOLDS = ("hold-before", "hold-after")
EVERY_HOLD = [*itertools.product(HOLDS, KINDS)]
# By default, one of the network and one of the machine.
SOME_HOLDS = [("hold-before", "networkInterfaces"), ("hold-after", VM)]


@pytest.fixture(autouse=True)
def write_spec(harness: Harness) -> None:
    harness.spec(NAME, regions=[REGION])
    (harness.folder / "elsewhere").mkdir()


def is_clean(result: Result) -> bool:
    """Return whether it ended without an internal error, with any result."""
    return "Traceback" not in result.err and "internal error" not in result.err


def texts(*results: Result) -> str:
    return "\n".join(each.text for each in results)


def check_one_machine_runs(harness: Harness) -> None:
    assert harness.machines() == [(NAME, REGION, "running")]
    assert harness.billed() == [NAME]
    assert harness.resources() == resources_of(NAME)
    planned = harness.run("plan", "--detailed-exitcode", SPEC)
    assert planned.code == 0, planned.text


def check_machine_can_be_deleted(harness: Harness) -> None:
    """Verify that one machine runs, and with `--exhaustive` that deleting it leaves nothing.

    A running machine with an empty plan has all its tags, by which `down --delete` finds its resources.
    """
    check_one_machine_runs(harness)
    if harness.exhaustive:
        harness.succeed("down", "--delete", SPEC)
        assert harness.resources() == set()
        assert harness.billed() == []


def both_succeed(*commands: Command) -> tuple[Result, ...]:
    results = tuple(command.end() for command in commands)
    assert [each.code for each in results] == [0, 0], texts(*results)
    return results


def both_end(*commands: Command) -> str:
    """Wait for both, and return what they printed: each may fail, with a message."""
    results = [command.end() for command in commands]
    text = texts(*results)
    assert all(is_clean(each) for each in results), text
    assert {each.code for each in results} <= {0, 1, 4}, text
    return text


def check_converges(harness: Harness, text: str) -> None:
    """Verify that the next commands work."""
    try:
        harness.succeed("up", SPEC)
        check_machine_can_be_deleted(harness)
    except AssertionError as error:
        raise AssertionError(f"{error}\n\nThe two commands printed:\n{text}") from None


# Two `up`


@pytest.mark.parametrize(
    "where", [(), pytest.param(ELSEWHERE, marks=variant)], ids=["same workspace", "other workspace"]
)
def test_two_up_started_at_once_both_succeed(harness: Harness, where: tuple[str, ...]) -> None:
    both_succeed(harness.start("up", SPEC), harness.start("up", SPEC, *where))
    check_machine_can_be_deleted(harness)


@cases("kind", ["networkInterfaces"], KINDS)
def test_two_up_that_create_the_same_resource_both_succeed(harness: Harness, kind: str) -> None:
    """Both are held at the same request, and continue together."""
    for _ in range(2):
        harness.arm("hold-before", method="PUT", type=kind)
    first, second = harness.start("up", SPEC), harness.start("up", SPEC, *ELSEWHERE)
    assert harness.wait_until_held(second, faults=2 if kind != "schedules" else 1), second.end().text
    harness.clear()
    both_succeed(first, second)
    check_machine_can_be_deleted(harness)


@variant
def test_the_lease_of_the_up_that_creates_the_machine_counts(harness: Harness) -> None:
    for _ in range(2):
        harness.arm("hold-before", method="PUT", type=VM)
    first = harness.start("up", SPEC)
    assert harness.wait_until_held(first)
    harness.advance(120)
    second = harness.start("up", SPEC, *ELSEWHERE)
    assert harness.wait_until_held(second, faults=2)
    harness.clear()
    both_succeed(first, second)
    check_machine_can_be_deleted(harness)


def test_second_up_prints_that_it_follows_the_first(harness: Harness) -> None:
    for _ in range(2):
        harness.arm("hold-before", method="PUT", type=VM)
    first, second = harness.start("up", SPEC), harness.start("up", SPEC, *ELSEWHERE)
    assert harness.wait_until_held(second, faults=2)
    harness.clear()
    results = both_succeed(first, second)
    assert sorted("already being created" in each.err for each in results) == [False, True], texts(*results)
    statuses = [each["status"] for each in harness.requests() if is_vm_put(each)]
    assert sorted(statuses) == [0, 0, 201, 412], "Azure accepts one and refuses the other"
    # Whichever of the two created the VM, both write the host key that it has.
    files = [harness.folder / folder / "aml_config" / f"{NAME}.compute" for folder in (".", "elsewhere")]
    assert len({file.read_text() for file in files}) == 1


def is_vm_put(request: dict[str, Any]) -> bool:
    return request["method"] == "PUT" and resource_type(request) == VM.lower()


@cases("kind", [VM], KINDS)
def test_up_whose_answer_is_lost_succeeds_after_the_other(harness: Harness, kind: str) -> None:
    harness.arm("hold-after", method="PUT", type=kind)
    first = harness.start("up", SPEC)
    assert harness.wait_until_held(first)
    harness.succeed("up", SPEC, *ELSEWHERE)
    check_one_machine_runs(harness)
    harness.clear()
    result = first.end()
    assert result.code == 0, result.text
    check_machine_can_be_deleted(harness)


def test_second_up_waits_while_the_first_creates_the_vm(harness: Harness) -> None:
    harness.arm("slow", operation=True, type=VM, seconds=600)
    first = harness.start("up", SPEC)
    assert first.wait_for(lambda: bool(harness.machines()), "there is a VM")
    second = harness.start("up", SPEC, *ELSEWHERE)
    assert second.wait_for(lambda: "waiting while it is Creating" in second.err, "it waits"), second.end().text
    harness.advance(600)
    both_succeed(first, second)
    assert sum(is_vm_put(each) for each in harness.requests()) == 1
    check_machine_can_be_deleted(harness)


@pytest.mark.parametrize("hold", variants("hold-before", "hold-after", None))
def test_failing_up_does_not_delete_resources_of_another_up(harness: Harness, hold: str | None) -> None:
    """The VM cannot be allocated once. One `up` deletes what it created, while the other starts."""
    harness.clock(60)  # Azure reserves the interface for 180 s after a failed VM
    harness.arm("AllocationFailed", type=VM)
    if hold:
        harness.arm(hold, method="DELETE", type=VM)
    first = harness.start("up", SPEC)
    if hold:
        assert harness.wait_until_held(first), first.end().text
    second = harness.start("up", SPEC, *ELSEWHERE)
    if hold:
        second.wait_for(lambda: bool(second.err), "it has seen the first one's resources")
        harness.clear()
    results = first.end(), second.end()
    assert all(is_clean(each) for each in results), texts(*results)
    # The failed VM or its disk may be left while the first deletes; a disk is not deleted without consent.
    refusals = ("this would lose what is on the disk", "this may lose outputs")
    assert all(each.code in {0, 1} or any(text in each.text for text in refusals) for each in results), texts(*results)
    if 0 in {each.code for each in results}:
        check_one_machine_runs(harness)
    else:
        assert harness.billed() == []
    check_converges(harness, texts(*results))


# What the first `up` deletes. With a VM that failed, Azure deletes its NIC and public IP.
DELETED = {
    "RequestDisallowedByPolicy": ("networkInterfaces", "publicIPAddresses", "virtualNetworks", "resourceGroups"),
    "AllocationFailed": ("virtualMachines", "virtualNetworks", "resourceGroups"),
}
ROLLBACKS = [(fault, hold, kind) for fault, kinds in DELETED.items() for hold in HOLDS for kind in kinds]


@cases(
    "fault, hold, kind",
    [("AllocationFailed", "hold-after", VM)],
    ROLLBACKS,
)
def test_rollback_that_loses_its_connection_keeps_the_machine_of_another_up(
    harness: Harness, fault: str, hold: str, kind: str
) -> None:
    """While one `up` waits for the answer to a deletion, another creates the machine. The deletion is then retried."""
    harness.clock(60)  # Azure reserves the interface for 180 s after a failed VM
    harness.arm(fault, type=VM, **({} if fault == "AllocationFailed" else {"method": "PUT"}))
    harness.arm(hold, method="DELETE", type=kind)
    first = harness.start("up", SPEC)
    assert harness.wait_until_held(first), first.end().text
    # The failed VM or its disk may be left, and a disk is not deleted without consent.
    harness.succeed("up", SPEC, *ELSEWHERE, "--delete")
    harness.clear()
    result = first.end()
    assert result.code in {1, 4}, result.text
    check_one_machine_runs(harness)


def test_refused_up_does_not_delete_resources_of_another_up(harness: Harness) -> None:
    """Both get as far as the VM; one creates it, the other is refused."""
    for _ in range(2):
        harness.arm("hold-before", method="PUT", type=VM)
    harness.arm("RequestDisallowedByPolicy", method="PUT", type=VM, skip=1)
    first, second = harness.start("up", SPEC), harness.start("up", SPEC, *ELSEWHERE)
    assert harness.wait_until_held(second, faults=2)
    harness.release()
    results = first.end(), second.end()
    assert sorted(each.code for each in results) in ([0, 1], [0, 4]), texts(*results)
    check_machine_can_be_deleted(harness)


def test_failing_up_keeps_the_group_that_another_machine_is_about_to_use(harness: Harness) -> None:
    """One `up` creates the shared group and fails. Another has seen the group, and created nothing in it yet."""
    shared = [harness.spec(name, regions=[REGION], resourceGroup="shared") for name in (NAME, "other")]
    harness.arm("hold-before", method="PUT", resource=f"{NAME}-nsg")
    first = harness.start("up", shared[0])
    assert harness.wait_until_held(first)
    for kind in ("nsg", "vnet", "ip"):
        for _ in range(2):  # again when the first hold is released
            harness.arm("hold-before", method="PUT", resource=f"other-{kind}")
    second = harness.start("up", shared[1], *ELSEWHERE)
    assert harness.wait_until_held(second, faults=4)
    harness.arm("RequestDisallowedByPolicy", method="PUT", resource=f"{NAME}-nsg")
    harness.release()
    result = first.end()
    assert result.code == 1, result.text
    assert "the group shared is kept" in result.err
    harness.clear()
    result = second.end()
    assert result.code == 0, result.text
    assert harness.machines() == [("other", REGION, "running")]
    assert "group/shared" in harness.resources()


# `up` and `down --delete`


@pytest.mark.parametrize("first", variants("up", "down"))
def test_up_and_delete_started_at_once_both_end(harness: Harness, first: str) -> None:
    commands = [("up", SPEC), ("down", "--delete", SPEC)]
    if first == "down":
        harness.succeed("up", SPEC)
        commands.reverse()
    text = both_end(harness.start(*commands[0]), harness.start(*commands[1], *ELSEWHERE))
    check_converges(harness, text)


@cases("hold, kind", SOME_HOLDS, EVERY_HOLD)
def test_delete_while_up_is_held(harness: Harness, hold: str, kind: str) -> None:
    harness.arm(hold, method="PUT", type=kind)
    up = harness.start("up", SPEC)
    assert harness.wait_until_held(up)
    down = harness.run("down", "--delete", SPEC, *ELSEWHERE)
    assert is_clean(down), down.text
    harness.clear()
    text = both_end(up)
    check_converges(harness, f"{down.text}\n{text}")


# Azure deletes the NIC and the public IP with the VM.
WITH_VM = {"networkInterfaces", "publicIPAddresses"}
EVERY_DELETION = [each for each in EVERY_HOLD if each[1] not in WITH_VM]


@cases("hold, kind", [("hold-after", "networkSecurityGroups"), ("hold-before", VM)], EVERY_DELETION)
def test_up_while_delete_is_held(harness: Harness, hold: str, kind: str) -> None:
    harness.succeed("up", SPEC)
    harness.arm(hold, method="DELETE", type=kind)
    down = harness.start("down", "--delete", SPEC)
    assert harness.wait_until_held(down)
    up = harness.run("up", SPEC, *ELSEWHERE)
    assert is_clean(up), up.text
    harness.clear()
    text = both_end(down)
    check_converges(harness, f"{up.text}\n{text}")


# `down --delete` lists what carries the tag, and then everything in the group; the second list is held.
GROUP_LIST: dict[str, Any] = {"method": "GET", "type": "resources", "skip": 1}


def test_delete_accepts_resources_that_another_up_has_just_created(harness: Harness) -> None:
    harness.arm("hold-before", method="PUT", type="networkInterfaces")
    unfinished = harness.start("up", SPEC)
    assert harness.wait_until_held(unfinished)
    unfinished.kill()
    harness.clear()
    harness.arm("hold-before", **GROUP_LIST)
    down = harness.start("down", "--delete", SPEC)
    assert harness.wait_until_held(down)
    harness.succeed("up", SPEC, *ELSEWHERE)
    harness.clear()
    text = both_end(down)
    assert "contains resources of others" not in text, text
    check_converges(harness, text)


@variant
def test_delete_succeeds_when_another_has_deleted_everything(harness: Harness) -> None:
    harness.succeed("up", SPEC)
    harness.arm("hold-before", **GROUP_LIST)
    down = harness.start("down", "--delete", SPEC)
    assert harness.wait_until_held(down)
    harness.succeed("down", "--delete", SPEC, *ELSEWHERE)
    assert harness.resources() == set()
    harness.clear()
    result = down.end()
    assert result.code == 0, result.text


@cases("words", ["down --delete"], ["down", "down --delete"])
def test_up_stops_waiting_for_ssh_when_another_ends_the_machine(harness: Harness, words: str) -> None:
    """Without a look at the VM it would wait for ten minutes."""
    harness.arm("ssh-refuses")
    up = harness.start("up", SPEC)
    assert up.wait_for(lambda: "waiting for SSH" in up.err, "it waits for SSH"), up.end().text
    harness.succeed(*words.split(), SPEC, *ELSEWHERE)
    result = up.end()
    assert result.code == 1, result.text


# Two `down`

TWO_DOWN = [*itertools.product(["down", "down --delete"], HOLDS)]


@pytest.mark.parametrize("words", variants("down", "down --delete"))
def test_two_down_started_at_once_both_succeed(harness: Harness, words: str) -> None:
    harness.succeed("up", SPEC)
    both_succeed(harness.start(*words.split(), SPEC), harness.start(*words.split(), SPEC, *ELSEWHERE))
    check_is_down(harness, words)


@cases("words, hold", TWO_DOWN[2:3], TWO_DOWN)
def test_second_down_succeeds_while_the_first_is_held(harness: Harness, words: str, hold: str) -> None:
    harness.succeed("up", SPEC)
    harness.arm(hold, method="DELETE" if "--delete" in words else "POST", type=VM)
    first = harness.start(*words.split(), SPEC)
    assert harness.wait_until_held(first), first.end().text
    harness.succeed(*words.split(), SPEC, *ELSEWHERE)
    check_is_down(harness, words)
    harness.clear()
    result = first.end()
    assert result.code == 0, result.text
    check_is_down(harness, words)


def check_is_down(harness: Harness, words: str) -> None:
    assert harness.billed() == []
    assert harness.resources() == (set() if "--delete" in words else resources_of(NAME))
