"""Removing: in the right order, and seen to be gone."""

import threading
from collections.abc import Iterable

import pytest

from gpuinfra.models.resource import Kind, Ref
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.remove import remove
from tests.unit.provision_help import BUSY, DENIED, NO_JOURNAL, UNREACHABLE, FakeCloud, Heard, made, ref

ALL = [ref(kind) for kind in Kind]


def gone(cloud: FakeCloud, refs: Iterable[Ref] = ALL, seconds: float = 3600) -> list[str]:
    heard = Heard()
    remove(cloud, refs, heard, NO_JOURNAL, cloud.time.deadline(seconds))
    return heard.lines


def order(cloud: FakeCloud) -> dict[str, int]:
    return {call.split()[1]: number for number, call in enumerate(cloud.calls) if call.startswith("delete ")}


def test_everything_goes_the_machine_first_and_the_group_last() -> None:
    cloud = made()
    lines = gone(cloud)
    assert cloud.parts == {}
    when = order(cloud)
    assert min(when, key=lambda kind: when[kind]) == "vm"
    assert max(when, key=lambda kind: when[kind]) == "resource-group"
    for kind in ("public-ip", "nsg", "vnet"):
        assert when["nic"] < when[kind]
    assert lines[:2] == ["vm my-dsvm: deleting", "vm my-dsvm: deleted"]


def test_the_daily_stop_goes_only_when_the_machine_was_seen_to_be_gone() -> None:
    cloud = made()
    gone(cloud)
    seen = max(number for number, call in enumerate(cloud.calls) if call == "look vm my-dsvm")
    assert seen < order(cloud)["shutdown-schedule"]


def test_a_machine_that_stays_keeps_its_daily_stop() -> None:
    cloud = made()
    cloud.fail("delete vm", DENIED)
    with pytest.raises(CloudError, match="AuthorizationFailed"):
        gone(cloud)
    assert order(cloud).keys() == {"vm"}
    assert Kind.SHUTDOWN_SCHEDULE in cloud.kinds


def test_what_hangs_on_nothing_goes_side_by_side() -> None:
    cloud = made()
    together = threading.Barrier(2)

    def meet(call: str) -> None:
        if call in {"delete nsg my-dsvm-nsg", "delete vnet my-dsvm-vnet"}:
            together.wait(10)

    cloud.on_call = meet
    gone(cloud)
    assert cloud.parts == {}


def test_absent_is_gone() -> None:
    cloud = FakeCloud()
    gone(cloud)
    assert len([call for call in cloud.calls if call.startswith("delete ")]) == len(Kind)


def test_each_goes_once() -> None:
    cloud = made()
    gone(cloud, [*ALL, *ALL])
    assert len([call for call in cloud.calls if call.startswith("delete ")]) == len(Kind)


def test_only_what_is_asked_for_goes() -> None:
    cloud = made()
    gone(cloud, [ref(Kind.SHUTDOWN_SCHEDULE)])
    assert cloud.kinds == [kind for kind in Kind if kind is not Kind.SHUTDOWN_SCHEDULE]


def test_what_azure_still_shows_is_not_gone() -> None:
    cloud = made()
    cloud.stays = {Kind.VM}
    with pytest.raises(CloudError) as caught:
        gone(cloud, [ref(Kind.VM)], seconds=60)
    assert (caught.value.fault, caught.value.code) == (Fault.TIMEOUT, "StillThere")
    assert caught.value.subject == "vm my-dsvm"
    assert 50 < cloud.time.seconds < 60


@pytest.mark.parametrize("error", [BUSY, UNREACHABLE])
@pytest.mark.parametrize("call", ["delete vm", "wait vm"])
def test_a_teardown_does_not_give_up_easily(call: str, error: CloudError) -> None:
    cloud = made()
    cloud.fail(call, error, times=20)
    gone(cloud, [ref(Kind.VM)])
    assert Kind.VM not in cloud.kinds


def test_a_failure_is_told() -> None:
    cloud, heard = made(), Heard()
    cloud.fail("delete disk", DENIED)
    with pytest.raises(CloudError):
        remove(cloud, [ref(Kind.DISK)], heard, NO_JOURNAL, cloud.time.deadline(60))
    assert heard.lines == ["disk my-dsvm-disk: deleting", "disk my-dsvm-disk: failed: AuthorizationFailed"]


def test_a_deletion_that_ends_in_absent_is_a_deletion() -> None:
    cloud = made()
    cloud.fail("wait vm", CloudError(Fault.ABSENT, "ResourceNotFound", "somebody else was quicker"))
    gone(cloud, [ref(Kind.VM)])


def test_a_look_that_is_lost_is_looked_again() -> None:
    cloud = made()
    cloud.fail("look vm", UNREACHABLE)
    gone(cloud, [ref(Kind.VM)])


def test_an_operation_that_is_not_found_is_no_proof_that_something_is_gone() -> None:
    cloud = made()
    cloud.stays = {Kind.VM}
    cloud.fail("wait vm", CloudError(Fault.ABSENT, "NotFound", "no such operation"))
    with pytest.raises(CloudError):
        gone(cloud, [ref(Kind.VM)], seconds=60)
