"""What Azure itself makes of a machine's first boot: its agent reports ready, and NVIDIA's driver loads."""

from tests.e2e.user import User


def test_the_azure_agent_of_a_new_machine_is_ready(user: User) -> None:
    user.up()
    view = user.azure.machine()["properties"]["instanceView"]
    assert [status["displayStatus"] for status in view["vmAgent"]["statuses"]] == ["Ready"]


def test_a_new_machine_has_the_security_type_standard(user: User) -> None:
    user.up()
    assert user.azure.machine()["properties"]["securityProfile"] == {"securityType": "Standard"}


def test_the_azure_agent_is_ready_after_a_restart(user: User) -> None:
    user.up()
    user.down("gpu.yaml")
    user.up()
    view = user.azure.machine()["properties"]["instanceView"]
    assert [status["displayStatus"] for status in view["vmAgent"]["statuses"]] == ["Ready"]


def test_a_subscription_with_trusted_launch_by_default_gets_a_machine_whose_gpu_works(user: User) -> None:
    user.azure.fault("trusted-launch", count=0)
    assert user.up()["gpu"]["models"]
