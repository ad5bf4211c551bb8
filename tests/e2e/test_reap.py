"""`reap` by the installed program: from an empty folder as in cron, from a repository of specs, and interrupted."""

import json
import signal
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.e2e.azure import Azure
from tests.e2e.repository import git
from tests.e2e.run_help import SECONDS, wait_until
from tests.e2e.user import REGION, SIZE, User, run_reap

# Neither the guest agent nor Azure's schedule ends it within two days.
LONG = {"lease": "3d", "idle": "2d"}
MACHINE = "Microsoft.Compute/virtualMachines"
OVER = "2026-01-01T00:00:00Z"
LATER = f"{datetime.now(UTC) + timedelta(days=40):%Y-%m-%dT%H:%M:%SZ}"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f me@example"


def bare(azure: Azure, *names: str, until: str = OVER) -> None:
    """Create tagged machines with expired leases and without guests."""
    azure.fault("no-boot", count=0)
    azure.put(f"{azure.subscription}/resourcegroups/bare", {"location": REGION})
    subnet = {"name": "inner", "properties": {"addressPrefix": "10.0.0.0/20"}}
    network = azure.id("Microsoft.Network/virtualNetworks", "net", "bare")
    spaces = {"addressSpace": {"addressPrefixes": ["10.0.0.0/16"]}, "subnets": [subnet]}
    azure.put(network, {"location": REGION, "properties": spaces})
    for name in names:
        interface = azure.id("Microsoft.Network/networkInterfaces", f"{name}-nic", "bare")
        inner = {"name": "first", "properties": {"subnet": {"id": f"{network}/subnets/inner"}}}
        azure.put(interface, {"location": REGION, "properties": {"ipConfigurations": [inner]}})
        azure.put(azure.id(MACHINE, name, "bare"), machine(name, interface, until))


def machine(name: str, interface: str, until: str) -> dict[str, Any]:
    image = {"publisher": "microsoft-dsvm", "offer": "ubuntu-2204", "sku": "2204-gen2", "version": "latest"}
    keys = [{"path": "/home/ada/.ssh/authorized_keys", "keyData": KEY}]
    login = {"disablePasswordAuthentication": True, "ssh": {"publicKeys": keys}}
    disk = {"createOption": "FromImage", "name": f"{name}-disk"}
    nic = {"id": interface, "properties": {"primary": True, "deleteOption": "Delete"}}
    return {
        "location": REGION,
        "tags": {"gpuinfra:name": name, "gpuinfra:lease-until": until},
        "properties": {
            "hardwareProfile": {"vmSize": SIZE},
            "storageProfile": {"imageReference": image, "osDisk": disk},
            "osProfile": {"computerName": name, "adminUsername": "ada", "linuxConfiguration": login},
            "networkProfile": {"networkInterfaces": [nic]},
        },
    }


def powers(azure: Azure) -> dict[str, Any]:
    return {each["name"]: each["powerState"] for each in azure.bill()}


def test_reap_stops_a_machine_whose_spec_was_deleted_in_git(user: User, azure: Azure) -> None:
    (user.workspace / "gpu.yaml").unlink()
    files = [user.spec(file=f"{name}.yaml", name=name, lifecycle=LONG) for name in ("kept", "gone")]
    git(user, "init", "-q")
    git(user, "add", *files)
    git(user, "commit", "-q", "-m", "two machines")
    user.does("up", "gone.yaml")
    bare(azure, "kept", until=LATER)
    git(user, "rm", "-q", "--cached", "gone.yaml")
    (user.workspace / "gone.yaml").unlink()
    assert run_reap(user, "--specs", ".", "--grace", "1m")["stopped"] == [], "it is not committed yet"
    git(user, "commit", "-q", "-m", "one is enough")
    assert run_reap(user, "--specs", ".")["stopped"] == [], "within the grace"

    azure.control("POST", "clock", {"advance": 25 * 3600})
    dry = run_reap(user, "--specs", ".", "--dry-run", "--delete")
    assert [each["name"] for each in dry["deleted"]] == ["gone"]
    assert powers(azure) == {"kept": "running", "gone": "running"}

    done = user("reap", "--specs", ".")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("gone is off (simulated)\n")
    assert "its spec was deleted at" in done.stdout
    assert "gpuinfra down gone --delete --sandbox" in done.stdout
    assert powers(azure) == {"kept": "running", "gone": "deallocated"}
    assert "nothing to do" in user("reap").stdout

    (kept,) = run_reap(user, "--specs", ".", "--delete", code=4)["kept"]
    assert kept["notDeleted"] == "nothing confirms that all outputs on its disk were fetched"
    (deleted,) = run_reap(user, "--specs", ".", "--delete", "--yes")["deleted"]
    assert (deleted["name"], deleted["verifiedBy"]) == ("gone", "404")
    assert not [each for each in azure.everything() if "gone" in each]
    assert powers(azure)["kept"] == "running"

    elsewhere = user.workspace.parent / "elsewhere"
    elsewhere.mkdir()
    (note,) = run_reap(user, "--specs", str(elsewhere), code=2)["notes"]
    assert "no machine was compared with its spec: not a git repository" in note


def test_reap_without_a_workspace_reports_a_machine_that_it_cannot_stop(user: User, azure: Azure) -> None:
    bare(azure, "first", "second", "dear")
    path = azure.id(MACHINE, "dear", "bare")
    azure.send("PATCH", path, {"tags": {**azure.get(path)["tags"], "gpuinfra:protect": "the demo on friday"}})
    azure.fault("ScopeLocked", method="POST", resource="first", count=0)
    user.workspace = user.workspace.parent / "cron"
    user.workspace.mkdir()

    found = run_reap(user, code=4)
    assert [each["name"] for each in found["stopped"]] == ["second"]
    assert found["stopped"][0]["verifiedBy"] == "PowerState/deallocated"
    assert [(each["name"], each["code"]) for each in found["failed"]] == [("first", "ScopeLocked")]
    assert [(each["name"], each["action"]) for each in found["protected"]] == [("dear", "stop")]
    assert powers(azure) == {"first": "running", "second": "deallocated", "dear": "running"}

    azure.clear_faults()
    done = user("reap")
    assert done.returncode == 0, done.stderr
    assert "protected     dear would be stopped: lease is over" in done.stdout
    assert powers(azure) == {"first": "deallocated", "second": "deallocated", "dear": "running"}
    before = azure.last_request()
    assert "nothing to do; checked 3 machines" in user("reap").stdout
    assert azure.writes(before) == []
    assert list(user.workspace.iterdir()) == [], "no state is written outside a workspace"


def has_looked_since(azure: Azure) -> bool:
    """Whether the program has looked at the machine after it asked for its deallocation: then it has the answer."""
    paths = [f"{each['method']} {each['path'].lower()}" for each in azure.requests()]
    begun = next((place for place, path in enumerate(paths) if path.endswith("/my-dsvm/deallocate")), len(paths))
    return any(path.startswith("GET") and path.endswith("/my-dsvm") for path in paths[begun:])


def test_interrupted_reap_names_operations_that_continue(user: User, azure: Azure) -> None:
    bare(azure, "my-dsvm")
    azure.fault("never-ends", method="POST", resource="my-dsvm", operation=True)
    program = user.start("reap")
    wait_until(lambda: has_looked_since(azure), "it looks whether the machine is off")
    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=SECONDS)
    assert program.returncode == 130, out + err
    assert "interrupted; Azure is still deallocating: my-dsvm" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("words", [("--start",), ("--grace", "soon")])
def test_invalid_usage_is_refused(user: User, words: tuple[str, ...]) -> None:
    user.fails("reap", *words, code="usage", exit_code=2)


def test_missing_specs_folder_does_not_keep_machines_on(user: User, azure: Azure) -> None:
    user.up()
    azure.fault("InternalServerError", method="POST", type="virtualMachines", count=0)  # no other layer can stop it
    azure.control("POST", "clock", {"advance": 5 * 3600})
    azure.clear_faults()
    done = user("reap", "--specs", "nowhere", "--json")
    assert done.returncode == 2, done.stderr
    found = json.loads(done.stdout)
    assert "`nowhere` is not a directory" in found["notes"][0]
    assert not azure.is_billed()
