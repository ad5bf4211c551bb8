"""A machine whose deletion Azure does not finish is billed: `reap` asks for the deletion again, or fails."""

import json
import signal

from tests.e2e.azure import Azure
from tests.e2e.run_help import Start, project
from tests.e2e.user import User


def stuck(user: User, azure: Azure, start: Start) -> None:
    """A machine whose deletion never finishes, ten hours later."""
    project(user)
    user.up()
    azure.fault("never-ends", method="DELETE", type="virtualMachines")
    client = start("down", "my-dsvm", "--delete", "--yes")
    client.until(lambda: azure.machine()["properties"]["provisioningState"] == "Deleting")
    client.send(signal.SIGINT)
    assert client.end() == 130, client.said
    azure.clear_faults()
    azure.control("POST", "clock", {"advance": 10 * 3600})
    assert azure.is_billed()


def test_reap_stops_a_machine_whose_deletion_hangs(user: User, azure: Azure, start: Start) -> None:
    stuck(user, azure, start)
    (stopped,) = user.does("reap")["stopped"]
    assert (stopped["name"], stopped["verifiedBy"]) == ("my-dsvm", "404")
    assert "its deletion has not ended" in stopped["cause"]
    assert not azure.is_billed()


def test_reap_and_down_say_that_only_a_delete_helps(user: User, azure: Azure, start: Start) -> None:
    stuck(user, azure, start)
    azure.fault("AuthorizationFailed", method="DELETE", type="virtualMachines", count=0)
    done = user("reap")
    assert done.returncode == 4, done.stdout + done.stderr
    assert "run: gpuinfra down my-dsvm --delete --sandbox" in " ".join(done.stdout.split())
    azure.clear_faults()
    off = user("down", "my-dsvm", "--yes", "--json")
    assert off.returncode == 4, off.stdout + off.stderr
    (receipt,) = json.loads(off.stdout)["receipts"]
    assert receipt["nextCommands"][0] == "gpuinfra down my-dsvm --delete --sandbox"
    assert user.down("my-dsvm", "--delete", "--yes")["verifiedBy"] == "404"
    assert not azure.is_billed()
