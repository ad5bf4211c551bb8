"""The first boot of a machine: the Azure agent reports ready, and the NVIDIA driver loads."""

from tests.e2e.user import User
from tests.variants import variant


def test_azure_agent_of_a_new_machine_is_ready(user: User) -> None:
    user.up()
    view = user.azure.machine()["properties"]["instanceView"]
    assert [status["displayStatus"] for status in view["vmAgent"]["statuses"]] == ["Ready"]


@variant
def test_new_machine_has_the_security_type_standard(user: User) -> None:
    user.up()
    assert user.azure.machine()["properties"]["securityProfile"] == {"securityType": "Standard"}


def test_azure_agent_is_ready_after_a_restart(user: User) -> None:
    user.up()
    user.down("gpu.yaml")
    user.up()
    view = user.azure.machine()["properties"]["instanceView"]
    assert [status["displayStatus"] for status in view["vmAgent"]["statuses"]] == ["Ready"]


def test_gpu_works_where_trusted_launch_is_the_default(user: User) -> None:
    user.azure.fault("trusted-launch", count=0)
    assert user.up()["gpu"]["models"]
