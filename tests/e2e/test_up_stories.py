"""`plan` and `up` by the installed program: create, repeat, change, replace, resize, keep off."""

import base64
import json
import os
import pty
import re
import signal
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from tests.e2e.azure import GROUP, Azure
from tests.e2e.run_help import guest_root
from tests.e2e.user import LARGER_SIZE, PARTS, REGION, SIZE, User
from tests.variants import variant

SECURITY = ("Microsoft.Network/networkSecurityGroups", "my-dsvm-nsg")
INTERFACE = ("Microsoft.Network/networkInterfaces", "my-dsvm-nic")
ADDRESS = ("Microsoft.Network/publicIPAddresses", "my-dsvm-ip")
NETWORK = ("Microsoft.Network/virtualNetworks", "my-dsvm-vnet")
# From the sandbox's price list: a T4 per hour; 256 GiB of StandardSSD_LRS and an address per month.
PRICE = "Price (simulated): $0.631 an hour while on; about $22.85 a month for disk and address while off."
SCHEDULE = ("Microsoft.DevTestLab/schedules", "shutdown-computevm-my-dsvm")


class ProcessList(threading.Thread):
    """Collects the command lines of all processes repeatedly, as any user of this computer could."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seen: set[bytes] = set()
        self._over = threading.Event()

    def __enter__(self) -> "ProcessList":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        while not self._over.is_set():
            self.seen.update(_command_lines())
            time.sleep(0.01)


def _command_lines() -> Iterator[bytes]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                yield (folder / "cmdline").read_bytes()
            except OSError:
                continue  # it has just ended


def _files(*folders: Path) -> list[Path]:
    return [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]


def test_first_up_creates_everything_in_the_spec(user: User, azure: Azure) -> None:
    user.spec(tags={"project": "mnist"})
    environment = user.does("sandbox", "env", sandbox=False)
    del environment["schemaVersion"]
    with ProcessList() as processes:
        done = user("up", "gpu.yaml", "--json", "--verbose", sandbox=False, executed=True, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    (brought,) = json.loads(done.stdout)["machines"]

    assert azure.everything() == PARTS
    bodies = {
        "group": azure.group(),
        "security": azure.part(*SECURITY),
        "network": azure.part(*NETWORK),
        "address": azure.part(*ADDRESS),
        "interface": azure.part(*INTERFACE),
        "machine": azure.machine(),
        "disk": azure.disk(),
        "schedule": azure.part(*SCHEDULE),
    }
    for name, body in bodies.items():
        assert body["tags"]["gpuinfra:name"] == "my-dsvm", name
        assert body["tags"]["project"] == "mnist", name
        assert body["location"] == REGION, name

    _assert_closed_to_others(user, bodies["security"], bodies["interface"], bodies["machine"])
    machine = bodies["machine"]["properties"]
    (interface,) = machine["networkProfile"]["networkInterfaces"]
    assert interface["properties"]["deleteOption"] == "Delete"
    assert machine["storageProfile"]["osDisk"]["deleteOption"] == "Delete"
    assert machine["hardwareProfile"]["vmSize"] == SIZE

    # The lease in a tag and in Azure's schedule ends it, whatever happens to this computer.
    until = bodies["machine"]["tags"]["gpuinfra:lease-until"]
    assert until == brought["leaseUntil"]
    schedule = bodies["schedule"]["properties"]
    assert (schedule["status"], schedule["timeZoneId"]) == ("Enabled", "UTC")
    stop = datetime.fromisoformat(until) + timedelta(minutes=35)
    assert schedule["dailyRecurrence"]["time"] == f"{stop:%H%M}"
    assert schedule["targetResourceId"].lower() == azure.id("Microsoft.Compute/virtualMachines", "my-dsvm").lower()

    assert bodies["machine"]["powerState"] == "PowerState/running"
    assert [(each["name"], each["powerState"]) for each in azure.bill()] == [("my-dsvm", "running")]

    assert list(brought) == ["name", "changed", "plan", "target", "gpu", "files", "leaseUntil", "agent", "simulated"]
    assert brought["agent"] == "armed"
    assert (brought["name"], brought["changed"], brought["simulated"]) == ("my-dsvm", True, True)
    assert brought["plan"]["summary"] == {"add": 7, "change": 0, "replace": 0, "destroy": 0}
    assert brought["plan"]["candidate"] == {"region": REGION, "size": SIZE}
    assert brought["gpu"]["count"] == 1
    assert "simulated" in brought["gpu"]["models"][0]
    target = brought["target"]
    assert (target["address"], target["port"]) == (azure.address(), azure.description.ssh_port)
    assert (target["name"], target["type"], target["username"]) == ("my_dsvm", "remotedocker", "azureuser")
    assert target["hostKey"] == bodies["machine"]["tags"]["gpuinfra:host-key"]

    _assert_target_files(user, brought["files"])
    assert any(b"gpuinfra\0up\0gpu.yaml" in line for line in processes.seen), "the process list was read in time"
    shown = {"stdout": done.stdout.encode(), "stderr": done.stderr.encode(), "processes": b"\n".join(processes.seen)}
    _assert_no_secret(user, environment["AZURE_CLIENT_SECRET"], shown)

    # Deleting only the VM, with any tool, leaves nothing that is billed.
    azure.send("DELETE", azure.id("Microsoft.Compute/virtualMachines", "my-dsvm"))
    assert {part.split("/")[0] for part in azure.everything()}.isdisjoint(
        {"disks", "networkInterfaces", "publicIPAddresses"}
    )


def _assert_closed_to_others(
    user: User, security: dict[str, Any], interface: dict[str, Any], machine: dict[str, Any]
) -> None:
    """Check that SSH is allowed from the spec's addresses with the user's key, and nothing else."""
    (rule,) = security["properties"]["securityRules"]
    allowed = {name: rule["properties"][name] for name in ("access", "direction", "protocol", "destinationPortRange")}
    assert allowed == {"access": "Allow", "direction": "Inbound", "protocol": "Tcp", "destinationPortRange": "22"}
    assert rule["properties"]["sourceAddressPrefixes"] == ["203.0.113.7/32"]
    assert not rule["properties"].get("sourceAddressPrefix")
    assert interface["properties"]["networkSecurityGroup"]["id"].lower() == security["id"].lower()
    linux = machine["properties"]["osProfile"]["linuxConfiguration"]
    assert linux["disablePasswordAuthentication"] is True
    (key,) = linux["ssh"]["publicKeys"]
    assert key["keyData"].split() == user.private_key.with_suffix(".pub").read_text().split()


def _assert_target_files(user: User, files: list[str]) -> None:
    assert files == ["aml_config/my_dsvm.compute", "aml_config/my_dsvm.runconfig"]
    compute, runconfig = (user.workspace / file for file in files)
    assert compute.read_text().splitlines() == [
        f"address: {user.azure.address()}:{user.azure.description.ssh_port}",
        f"hostKey: {user.azure.machine()['tags']['gpuinfra:host-key']}",
        "nativeSharedDirectory: ~/.azureml/share/",
        "nvidiaDocker: true",
        f"resourceId: {user.azure.id('Microsoft.Compute/virtualMachines', 'my-dsvm')}",
        "sharedVolumes: true",
        "simulated: true",
        "type: remotedocker",
        "username: azureuser",
        f"vmId: {user.azure.machine()['properties']['vmId']}",
    ]
    assert {"Framework: Python", "Target: my_dsvm"} < set(runconfig.read_text().splitlines())


def _assert_no_secret(user: User, client_secret: str, shown: dict[str, bytes]) -> None:
    """Check that no secret is in the output, in a file other than the user's key, or in Azure's answers."""
    azure = user.azure
    # The machine's private host key, created by `up`, exists only on the machine.
    # The disk of an earlier test's machine may not be removed yet.
    (host_key,) = guest_root(azure).rglob("ssh_host_ed25519_key")
    secrets = {
        "client secret": client_secret,
        "control secret": (azure.folder / "secret").read_text(),
        "user's key": "".join(user.private_key.read_text().splitlines()[1:-1]),
        "host key": "".join(host_key.read_text().splitlines()[1:-1]),
        "any key": "PRIVATEKEY-----",
        "any token": "eyJ0eXAiOiJKV1Qi",
        "cloud-init": base64.b64encode(b"#cloud-config\n{").decode()[:18],
    }
    assert all(len(secret) >= 15 for secret in secrets.values())
    kept = {str(path): path.read_bytes() for path in _files(user.workspace, user.home) if path != user.private_key}
    assert any(name.endswith("journal.jsonl") for name in kept)
    told = {"machine": json.dumps(azure.machine()).encode(), "log": json.dumps(azure.requests()).encode()}
    for place, content in {**shown, **kept, **told}.items():
        joined = re.sub(rb"\s|\\n", b"", content)
        for name, secret in secrets.items():
            assert secret.encode() not in joined, f"{name} in {place}"


def test_second_up_writes_nothing(user: User, azure: Azure) -> None:
    user.up()
    files = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in _files(user.workspace, user.home)}
    before, bodies = azure.last_request(), azure.bodies()

    again = user.up()
    assert again["changed"] is False
    assert (again["plan"]["changes"], again["files"]) == ([], [])
    assert again["target"]["address"] == azure.address()
    assert azure.writes(before) == []
    assert len(azure.requests(before)) > 0
    assert azure.bodies() == bodies
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in _files(user.workspace, user.home)} == files


@variant
def test_lost_response_does_not_create_a_second_machine(user: User, azure: Azure) -> None:
    """The VM is created with `If-None-Match`: the repeated request is refused, and the existing VM is used."""
    azure.fault("drop-after", method="PUT", type="virtualMachines")
    brought = user.up()
    assert brought["target"]["address"] == azure.address()
    answers = [
        request["status"]
        for request in azure.requests()
        if request["method"] == "PUT" and request["path"].endswith("/virtualMachines/my-dsvm")
    ]
    assert answers[-1] == 412
    assert azure.everything() == PARTS
    assert len(azure.bill()) == 1


def test_other_addresses_change_only_the_security_group(user: User, azure: Azure) -> None:
    user.up()
    user.spec(network={"allowSshFrom": ["198.51.100.0/24", "203.0.113.9"]})
    before = azure.last_request()

    shown = user("plan", "gpu.yaml", "--detailed-exitcode")
    assert shown.returncode == 3
    assert "ssh from 203.0.113.7/32 -> 198.51.100.0/24, 203.0.113.9/32" in shown.stdout
    assert shown.stdout.splitlines()[-1] == PRICE
    assert azure.writes(before) == []

    done = user("up", "gpu.yaml")
    assert done.returncode == 0, done.stderr
    assert "my-dsvm is running (simulated)" in done.stdout
    (rule,) = azure.part(*SECURITY)["properties"]["securityRules"]
    assert rule["properties"]["sourceAddressPrefixes"] == ["198.51.100.0/24", "203.0.113.9/32"]
    tags_of_the_machine = "PATCH virtualMachines/my-dsvm"
    writes = [write for write in azure.writes(before) if write != tags_of_the_machine]
    assert writes == ["PUT networkSecurityGroups/my-dsvm-nsg"]

    settled = user("plan", "gpu.yaml", "--detailed-exitcode")
    assert settled.returncode == 0
    assert settled.stdout.splitlines() == ["No changes: Azure matches the file.", PRICE]


@variant
def test_other_addresses_change_the_rule_and_the_spec_tag(user: User) -> None:
    user.up()
    user.spec(network={"allowSshFrom": ["198.51.100.0/24"]})
    changes = {change["kind"]: [each["what"] for each in change["differences"]] for change in user.plan()["changes"]}
    assert changes == {"nsg": ["ssh from"], "vm": ["spec"]}


def test_replacement_needs_consent(user: User, azure: Azure) -> None:
    user.up()
    old, before = azure.machine(), azure.last_request()
    user.spec(image="dsvm-ubuntu-20.04")

    refused = user.fails("up", "gpu.yaml", code="needs-consent", exit_code=2)
    assert "nothing was changed" in refused["note"]
    assert "--yes" in refused["help"]
    assert azure.writes(before) == []

    code, screen = _answer(user, b"n\n", "up", "gpu.yaml")
    assert "What is on the disk of my-dsvm will be lost. Continue?" in screen
    assert "2004-gen2" in screen
    assert "forces replacement" in screen
    assert (code, "interrupted" in screen) == (2, False), "a declined question is not an error"
    assert azure.writes(before) == []
    assert azure.machine()["properties"]["vmId"] == old["properties"]["vmId"]

    brought = user.up("--yes")
    assert brought["plan"]["summary"]["replace"] >= 1
    new = azure.machine()
    assert new["properties"]["vmId"] != old["properties"]["vmId"]
    assert new["properties"]["storageProfile"]["imageReference"]["sku"] == "2004-gen2"
    assert new["tags"]["gpuinfra:host-key"] != old["tags"]["gpuinfra:host-key"]
    assert azure.everything() == PARTS
    compute = (user.workspace / "aml_config" / "my_dsvm.compute").read_text()
    assert compute.startswith(f"address: {azure.address()}:")


def test_replacing_a_leftover_disk_needs_consent(user: User, azure: Azure) -> None:
    azure.put(f"{azure.subscription}/resourcegroups/{GROUP}", {"location": REGION})
    disk = {"location": REGION, "properties": {"creationData": {"createOption": "Empty"}, "diskSizeGB": 32}}
    # A disk of a deleted machine may hold data.
    azure.put(azure.id("Microsoft.Compute/disks", "my-dsvm-disk"), {**disk, "tags": {"gpuinfra:name": "my-dsvm"}})
    before = azure.last_request()
    code, screen = _answer(user, b"n\n", "up", "gpu.yaml")
    assert "What is on the disk of my-dsvm will be lost. Continue?" in screen
    assert code == 2
    assert azure.writes(before) == []


def _answer(user: User, answer: bytes, *words: str) -> tuple[int, str]:
    """Run a command on a terminal, and answer its question."""
    main, other = pty.openpty()
    screen, answered = b"", False
    try:
        with user.start(*words, terminal=other, TERM="xterm") as program:
            os.close(other)
            while chunk := _read(main):
                screen += chunk
                if not answered and b"Continue?" in screen:
                    answered = True
                    os.write(main, answer)
            return program.wait(timeout=30), screen.decode()
    finally:
        os.close(main)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # the program has exited and closed its end of the terminal
        return b""


@variant
def test_two_concurrent_up_create_one_machine(user: User, azure: Azure, tmp_path: Path) -> None:
    words = ["up", "gpu.yaml", "--json"]
    with user.start(*words) as one, user.start(*words, "--workspace", str(tmp_path)) as other:
        ended = [program.communicate(timeout=60) for program in (one, other)]
    for program, (out, errors) in zip((one, other), ended, strict=True):
        told = json.loads(out)
        if program.returncode == 2:
            # It saw the other's disk before the other's machine, and asks before it would delete it.
            assert told["diagnostics"][0]["code"] == "needs-consent", errors
        else:
            assert program.returncode == 0, errors
            assert told["machines"][0]["target"]["address"] == azure.address()
    assert 0 in (one.returncode, other.returncode), ended
    assert azure.everything() == PARTS
    assert len(azure.bill()) == 1


@variant
def test_interrupt_names_existing_resources_and_the_command_to_run(user: User, azure: Azure) -> None:
    azure.fault("slow", operation=True, seconds=600, method="PUT", type="virtualMachines")
    with user.start("up", "gpu.yaml") as program:
        deadline = time.monotonic() + 30
        while "PUT virtualMachines/my-dsvm" not in azure.writes():
            assert time.monotonic() < deadline
            assert program.poll() is None
            time.sleep(0.05)
        program.send_signal(signal.SIGINT)
        out, errors = program.communicate(timeout=30)
    assert (program.returncode, out) == (130, "")
    assert "interrupted; in Azure exists: resource-group gpuinfra-my-dsvm," in errors
    assert "vm my-dsvm" in errors
    assert "`gpuinfra down my-dsvm --delete --sandbox`" in errors


@variant
def test_stopped_machine_is_not_reported_as_deallocated(user: User, azure: Azure) -> None:
    user.up()
    azure.send("POST", f"{azure.id('Microsoft.Compute/virtualMachines', 'my-dsvm')}/powerOff")
    shown = user("plan", "gpu.yaml")
    assert "deallocated" not in shown.stdout
    assert "stopped" in shown.stdout


def test_size_and_disk_grow_in_place(user: User, azure: Azure) -> None:
    user.up()
    machine, disk, address = azure.machine(), azure.disk(), azure.address()
    user.spec(size=LARGER_SIZE, disk={"sizeGiB": 256})
    # A restart begins a new lease, which ends in another minute.
    azure.control("POST", "clock", {"advance": 60})
    before = azure.last_request()
    brought = user.up()
    assert [(each["action"], each["kind"]) for each in brought["plan"]["changes"]] == [
        ("change", "vm"),
        ("change", "disk"),
        ("change", "shutdown-schedule"),
    ]
    assert brought["gpu"]["count"] == 1

    new, grown = azure.machine(), azure.disk()
    assert new["properties"]["hardwareProfile"]["vmSize"] == LARGER_SIZE
    assert new["properties"]["vmId"] == machine["properties"]["vmId"]
    assert (grown["properties"]["diskSizeGB"], disk["properties"]["diskSizeGB"]) == (256, 150)
    assert grown["properties"]["uniqueId"] == disk["properties"]["uniqueId"]
    assert azure.address() == address
    assert new["powerState"] == "PowerState/running"
    writes = azure.writes(before)
    assert writes[0] == "POST my-dsvm/deallocate", "both can be changed only while it is off"
    assert writes[-1] == "POST my-dsvm/start"
    assert not [write for write in writes if write.startswith(("DELETE", "PUT virtualMachines"))]
    assert user.plan()["changes"] == []


def test_up_switches_a_machine_off_when_the_spec_says_so(user: User, azure: Azure) -> None:
    user.spec(power="deallocated")
    nothing = user.up()
    assert (nothing["changed"], nothing["target"]) == (False, None)
    assert azure.everything() == []
    assert azure.writes() == []

    user.spec()
    user.up()
    user.spec(power="deallocated")
    before = azure.last_request()
    (drift,) = [change for change in user.plan()["changes"] if change["kind"] == "vm"]
    assert (drift["action"], drift["power"]) == ("change", "deallocate")
    off = user.up()
    assert off["target"] is None
    assert azure.machine()["powerState"] == "PowerState/deallocated"
    assert not azure.is_billed()
    assert azure.everything() == PARTS
    assert azure.writes(before).count("POST my-dsvm/deallocate") == 1
    assert "POST my-dsvm/start" not in azure.writes(before)

    settled = azure.last_request()
    assert user.plan()["changes"] == []
    assert azure.writes(settled) == []


def test_plan_writes_nothing_and_prints_the_price(user: User, azure: Azure) -> None:
    plan = user.plan()
    assert list(plan) == [
        "name",
        "subscription",
        "resourceGroup",
        "candidate",
        "powerState",
        "differs",
        "changes",
        "summary",
        "price",
        "passedOver",
        "notes",
        "simulated",
    ]
    assert (plan["name"], plan["resourceGroup"]) == ("my-dsvm", GROUP)
    assert plan["subscription"] == azure.description.subscription
    assert {change["action"] for change in plan["changes"]} == {"add"}
    kinds = ["resource-group", "nsg", "vnet", "public-ip", "nic", "vm", "shutdown-schedule"]
    assert [change["kind"] for change in plan["changes"]] == kinds
    assert plan["price"]["perHourUsd"] == 0.631
    assert abs(plan["price"]["residuePerMonthUsd"] - (19.2 + 3.65)) < 0.01
    assert (azure.writes(), azure.everything()) == ([], [])
    assert [path.name for path in _files(user.workspace)] == ["gpu.yaml"]
