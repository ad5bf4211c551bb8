"""A reset of the embedded Azure leaves nothing of its guests."""

from tests.e2e.azure import Azure, advance, change_power
from tests.e2e.user import User


def test_reset_removes_all_guests_before_it_answers(user: User, azure: Azure) -> None:
    user.up()
    user.spec(name="deleted", file="deleted.yaml")
    user.does("up", "deleted.yaml")
    machine = azure.id("Microsoft.Compute/virtualMachines", "deleted", "gpuinfra-deleted")
    assert azure.send("DELETE", machine)[0] == 202
    assert len(list((azure.folder / "guests").iterdir())) == 2, "the disk of a deleted VM has its files"
    azure.control("POST", "reset")
    assert list((azure.folder / "guests").iterdir()) == []


def test_reset_does_not_wait_for_a_guest_that_is_about_to_boot(user: User, azure: Azure) -> None:
    user.up()
    change_power(azure, "deallocate")
    # The guest would boot in an hour of this computer's time.
    azure.control("POST", "profile", {"profile": "realistic"})
    azure.control("POST", "clock", {"speed": 0.005})
    change_power(azure, "start")
    advance(azure, 600)
    assert azure.machine()["powerState"] == "PowerState/running"
    azure.control("POST", "reset")
    assert list((azure.folder / "guests").iterdir()) == []
