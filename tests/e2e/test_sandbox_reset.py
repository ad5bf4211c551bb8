"""A reset of the embedded Azure leaves nothing of its guests."""

from tests.e2e.azure import Azure
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
