"""How long `up` waits for a machine that answers and refuses the login."""

from datetime import timedelta

import pytest

from gpuinfra.models.plan import Kind
from gpuinfra.provision.login import BOOTED, FIRST_BOOT, RESTART, is_created_with, login_seconds
from gpuinfra.provision.observed_resource import ObservedResource
from tests.unit.provision_help import KEY, NOW, FakeCloud, made, planned, ref

OTHER = KEY.replace("a" * 43, "b" * 43)
SOON, LATER = NOW + timedelta(minutes=1), NOW + timedelta(hours=1)


def machine_in(cloud: FakeCloud) -> ObservedResource:
    machine = cloud.look(ref(Kind.VM))
    assert machine
    return machine


@pytest.mark.parametrize("public_key", [KEY, OTHER])
def test_first_boot_of_a_created_machine_is_waited_for(public_key: str) -> None:
    plan, machine = planned(FakeCloud()), machine_in(made())
    assert login_seconds(plan, machine, public_key, SOON) == FIRST_BOOT


@pytest.mark.parametrize(
    ("public_key", "power", "now", "seconds"),
    [
        (KEY, "running", SOON, FIRST_BOOT),
        (KEY, "running", LATER, BOOTED),
        (OTHER, "running", SOON, BOOTED),
        (OTHER, "running", LATER, BOOTED),
        (KEY, "deallocated", LATER, FIRST_BOOT),
        (OTHER, "deallocated", LATER, RESTART),
    ],
)
def test_refusal_of_a_machine_that_was_there_is_final_once_it_has_booted(
    public_key: str, power: str, now: object, seconds: float
) -> None:
    cloud = made()
    cloud.set_power(power)
    assert login_seconds(planned(cloud), machine_in(cloud), public_key, now) == seconds  # type: ignore[arg-type]


def test_key_is_compared_without_its_comment() -> None:
    machine = machine_in(made())
    assert is_created_with(machine, f"{KEY} other comment")
    assert not is_created_with(machine, OTHER)
