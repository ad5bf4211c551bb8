"""Which machines are asked for their runs."""

from types import SimpleNamespace
from typing import Any

import pytest

from gpuinfra.app.consent import ask_machine
from gpuinfra.models.consent import Contact
from tests.unit.provision_help import NAME, made


@pytest.mark.parametrize("power", ["stopping", "stopped", "deallocating", "deallocated"])
def test_machine_without_a_running_job_is_off(power: str) -> None:
    cloud = made()
    cloud.set_power(power)
    reached: Any = SimpleNamespace(cloud=cloud)
    answer = ask_machine(reached, NAME, None, None)
    assert (answer.contact, answer.is_billed) == (Contact.OFF, power != "deallocated")
