"""Five thousand machines are listed at little cost, by a server that stays small."""

import json
import os
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path

from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.store import Resource
from tests.integration.sandbox.machine_help import Place
from tests.integration.sandbox.servers import WAIT_SECONDS, Sandbox, wait_until
from tests.variants import variant

MACHINES = 5000
CPU_SECONDS = 3.0
"""What one list of all machines may cost the server. It takes less than one, whatever else the computer does."""


def fill(sandbox: Sandbox) -> None:
    """Add as many machines as it takes, each like one that was really made."""
    place = Place(sandbox)
    place.make("m")

    def add(cloud: Cloud) -> None:
        model = cloud.store.get(place.id("m"))
        assert model is not None
        text = json.dumps(model.body)
        for number in range(MACHINES - 1):
            name = f"m{number}"
            body = json.loads(text.replace(model.id, f"{model.id}{number}"))
            machine = Resource(f"{model.id}{number}", model.location, {**body, "name": name}, dict(model.hidden))
            cloud.store.put(machine, cloud.now)
            cloud.meter.change(machine.key, machine.name, "deallocated", 0.5, cloud.now)

    sandbox.inside(add)


def peak_memory(pid: int) -> int:
    """The most that a process ever had, in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmHWM")]
    return int(line.split()[1]) // 1024


def cpu_seconds(pid: int) -> float:
    """The processor time that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@variant
def test_listing_many_vms_needs_little_time_and_memory(tmp_path: Path) -> None:
    folder = tmp_path / "sandbox"
    sandbox = Sandbox(folder)
    fill(sandbox)
    subscription, token = sandbox.subscription, sandbox.token()
    sandbox.stop()
    with subprocess.Popen([sys.executable, "-m", "gpuinfra.sandbox", "serve", "--folder", str(folder)]) as server:
        try:
            wait_until((folder / "server.json").exists, "the server did not start")
            endpoint = json.loads((folder / "server.json").read_text())["endpoint"]
            tls = ssl.create_default_context(cafile=str(folder / "ca.pem"))
            path = f"/subscriptions/{subscription}/providers/Microsoft.Compute/virtualMachines"
            for query in ("", "&statusOnly=true"):
                url = f"{endpoint}{path}?api-version=2024-11-01{query}"
                before, count = cpu_seconds(server.pid), 0
                while url:
                    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
                    with urllib.request.urlopen(request, context=tls, timeout=WAIT_SECONDS) as response:
                        page = json.load(response)
                    count += len(page["value"])
                    url = page.get("nextLink")
                assert count == MACHINES
                assert cpu_seconds(server.pid) - before < CPU_SECONDS
            assert peak_memory(server.pid) < 500
        finally:
            server.terminate()
            server.wait(timeout=WAIT_SECONDS)
