"""Five thousand machines are listed within seconds, by a server that stays small."""

import json
import os
import ssl
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from sandbox.kernel.store import Resource
from sandbox.web.authority import Authority
from tests.integration.sandbox.conftest import Sandbox
from tests.integration.sandbox.machine_help import Place

MACHINES = 5000


def fill(sandbox: Sandbox) -> None:
    """As many machines as it takes, each like one that was really made."""
    place = Place(sandbox)
    place.make("m")
    cloud = sandbox.server.cloud
    model = cloud.store.get(place.id("m"))
    assert model is not None
    with cloud.store.transaction():
        for number in range(MACHINES - 1):
            body = json.loads(json.dumps(model.body).replace(model.id, f"{model.id}{number}"))
            machine = Resource(
                f"{model.id}{number}", model.location, {**body, "name": f"m{number}"}, dict(model.hidden)
            )
            cloud.store.put(machine, cloud.now)
            cloud.meter.change(machine.key, machine.name, "deallocated", 0.5, cloud.now)


def peak_memory(pid: int) -> int:
    """The most that a process ever had, in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmHWM")]
    return int(line.split()[1]) // 1024


@pytest.mark.alone
def test_all_pages_in_five_seconds_on_one_core(tmp_path: Path) -> None:
    folder = tmp_path / "sandbox"
    sandbox = Sandbox(folder)
    fill(sandbox)
    cloud = sandbox.server.cloud
    subscription = sandbox.subscription
    token = Authority(cloud.store, cloud.clock).token("owner", "owner", owner=True)["access_token"]
    sandbox.stop()
    with subprocess.Popen([sys.executable, "-m", "sandbox", "serve", "--folder", str(folder)]) as server:
        try:
            os.sched_setaffinity(server.pid, {min(os.sched_getaffinity(0))})
            description = wait_for(folder / "server.json")
            tls = ssl.create_default_context(cafile=str(folder / "ca.pem"))
            path = f"/subscriptions/{subscription}/providers/Microsoft.Compute/virtualMachines"
            for query in ("", "&statusOnly=true"):
                url = f"{description['endpoint']}{path}?api-version=2024-11-01{query}"
                started, count = time.monotonic(), 0
                while url:
                    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
                    with urllib.request.urlopen(request, context=tls, timeout=30) as response:
                        page = json.load(response)
                    count += len(page["value"])
                    url = page.get("nextLink")
                assert count == MACHINES
                assert time.monotonic() - started < 5
            assert peak_memory(server.pid) < 500
        finally:
            server.terminate()
            server.wait(timeout=20)


def wait_for(file: Path) -> dict[str, str]:
    deadline = time.monotonic() + 30
    while not file.exists():
        assert time.monotonic() < deadline, "the server did not start"
        time.sleep(0.05)
    content: dict[str, str] = json.loads(file.read_text())
    return content
