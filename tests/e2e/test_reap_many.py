"""`reap` of many machines: stops exactly those with an expired lease, with one list call per page."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from gpuinfra.sandbox import running
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.store import Resource
from tests.e2e.azure import Azure
from tests.e2e.user import User
from tests.integration.sandbox.conftest import Sandbox
from tests.integration.sandbox.machine_help import Place
from tests.variants import variant

ALL, SOME = 5000, 600
RUNNING, OVER = 500, 50
PAGE = 250
OLD = "2026-01-01T00:00:00Z"
LATER = f"{datetime.now(UTC) + timedelta(days=40):%Y-%m-%dT%H:%M:%SZ}"


def fill(folder: Path, machines: int) -> None:
    """Add this many machines to a sandbox, as `up` creates them, with a disk and an address."""
    sandbox = Sandbox(folder)
    place = Place(sandbox)
    place.make("m")
    address: Any = {"location": "eastus", "sku": {"name": "Standard"}}
    address["properties"] = {"publicIPAllocationMethod": "Static"}
    sandbox.network.public_ip_addresses.begin_create_or_update("demo", "m-ip", address).result()
    cloud = sandbox.server.cloud
    machine = _kept(cloud, place.id("m"))
    disk = _kept(cloud, machine.properties["storageProfile"]["osDisk"]["managedDisk"]["id"])
    found = _kept(cloud, f"{machine.id.split('/providers')[0]}/providers/Microsoft.Network/publicIPAddresses/m-ip")
    with cloud.store.transaction():
        for number in range(machines):
            _copy(cloud, machine, disk, found, number)
    sandbox.stop()


def _kept(cloud: Cloud, resource_id: str) -> Resource:
    found = cloud.store.get(resource_id)
    assert found is not None
    return found


def _copy(cloud: Cloud, machine: Resource, disk: Resource, address: Resource, number: int) -> None:
    name, power = f"m{number:04}", "running" if number < RUNNING else "deallocated"
    marks = {"gpuinfra:name": name, "gpuinfra:on-since": OLD, "gpuinfra:lease-until": OLD if number < OVER else LATER}
    for model, own in ((machine, name), (disk, f"{name}-disk"), (address, f"{name}-ip")):
        place = f"{model.id.rpartition('/')[0]}/{own}"
        hidden = {**model.hidden, "power": power} if model is machine else dict(model.hidden)
        text = json.dumps(model.body).replace(disk.id.rpartition("/")[2], f"{name}-disk")
        body = {**json.loads(text.replace(model.id, place)), "name": own, "tags": marks}
        if model is machine:
            body["properties"]["osProfile"]["computerName"] = name
            nic_id = place.replace("Microsoft.Compute/virtualMachines", "Microsoft.Network/networkInterfaces") + "-nic"
            nic = {"id": nic_id, "properties": {"primary": True, "deleteOption": "Delete"}}
            body["properties"]["networkProfile"] = {"networkInterfaces": [nic]}
        cloud.store.put(Resource(place, model.location, body, hidden), cloud.now)
    key = f"{machine.id.rpartition('/')[0]}/{name}".lower()
    cloud.meter.change(key, name, power, 0.5, cloud.now)


@variant
def test_reap_stops_expired_machines_among_many(tmp_path: Path, exhaustive: bool) -> None:
    machines = ALL if exhaustive else SOME
    folder = tmp_path / "sandbox"
    fill(folder, machines)
    azure = Azure(folder)
    try:
        user = User(azure, tmp_path / "user", tmp_path / "project", key=False)
        found = user.does("reap")
        requests = azure.requests()
        on = {each["name"] for each in azure.bill() if each["powerState"] not in {"deallocated", "deleted"}}
    finally:
        running.stop(folder)
    lists = [each for each in requests if "statusonly" in each["query"].lower()]
    assert found["machines"] == machines
    assert [each["name"] for each in found["stopped"]] == [f"m{number:04}" for number in range(OVER)]
    assert on == {"m", *(f"m{number:04}" for number in range(OVER, RUNNING))}
    assert len(lists) == (machines + 1) // PAGE + 1, "one call per page"
