"""A machine of the cloud has a guest that answers SSH, from power-on to deletion and over a restart of the server."""

import asyncio
import base64
import functools
import io
import socket
import threading
import time
from pathlib import Path
from typing import Any

import paramiko
import pytest
import requests

from tests.engine import IMAGE, docker_engine
from tests.integration.sandbox.machine_help import VERSION, Place, profile
from tests.integration.sandbox.servers import WAIT_SECONDS, Sandbox, wait_until


@functools.cache
def user_key() -> paramiko.RSAKey:
    return paramiko.RSAKey.generate(2048)


class Machine:
    """A machine with a public address, and a key to it."""

    def __init__(self, sandbox: Sandbox, custom_data: str = "", faults: tuple[str, ...] = (), **more: Any) -> None:
        self.key = user_key()
        self.place = Place(sandbox)
        # Elsewhere machines have no guests, to be quick.
        sandbox.control("DELETE", "faults")
        for name in faults:
            sandbox.control("POST", "faults", {"name": name, "resource": "m", "count": 0})
        user = profile()
        user["linuxConfiguration"]["ssh"]["publicKeys"][0]["keyData"] = f"ssh-rsa {self.key.get_base64()} test"
        if custom_data:
            user["customData"] = base64.b64encode(custom_data.encode()).decode()
        network = {
            "networkInterfaces": [{"id": self.place.interface("m-nic", "m-ip"), "properties": {"primary": True}}]
        }
        self.made = self.place.make("m", osProfile=user, networkProfile=network, **more)
        address: Any = sandbox.network.public_ip_addresses.get(self.place.group, "m-ip")
        self.address, self.port = str(address.ip_address), sandbox.server.host.ssh_port

    def connect(self, seconds: float = WAIT_SECONDS) -> paramiko.SSHClient:
        """An SSH connection, once the guest is up."""
        deadline = time.monotonic() + seconds
        while True:
            client = paramiko.SSHClient()
            client.set_missing_host_key_policy(paramiko.MissingHostKeyPolicy())
            try:
                client.connect(
                    self.address,
                    self.port,
                    "ada",
                    pkey=self.key,
                    timeout=WAIT_SECONDS,
                    banner_timeout=WAIT_SECONDS,
                    auth_timeout=WAIT_SECONDS,
                    allow_agent=False,
                    look_for_keys=False,
                )
            except (OSError, EOFError, paramiko.SSHException):
                client.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
            else:
                return client

    def run(self, command: str) -> tuple[int, str]:
        """A command in the guest: exit code and standard output."""
        client = self.connect()
        try:
            _, output, _ = client.exec_command(command, timeout=WAIT_SECONDS)
            text = output.read().decode()
            return output.channel.recv_exit_status(), text
        finally:
            client.close()

    def refused(self) -> bool:
        """Whether connections are refused."""
        try:
            self.connect(seconds=0).close()
        except (OSError, EOFError, paramiko.SSHException):
            return True
        return False

    def wait_until_refused(self) -> None:
        wait_until(self.refused, "the guest still answers")


@pytest.fixture
def machine(sandbox: Sandbox) -> Machine:
    return Machine(sandbox)


def test_running_vm_answers_ssh_and_has_a_gpu(machine: Machine, sandbox: Sandbox) -> None:
    assert machine.address.startswith("127.77.")
    assert machine.run("echo hello; exit 7") == (7, "hello\n")
    code, text = machine.run("nvidia-smi --query-gpu=name,memory.total --format=csv,noheader")
    assert code == 0
    assert "T4" in text
    assert "simulated" in text
    view: Any = sandbox.compute.virtual_machines.instance_view(machine.place.group, "m")
    assert view.vm_agent.statuses[0].display_status == "Ready"


def test_home_survives_deallocation_and_is_deleted_with_the_vm(machine: Machine, sandbox: Sandbox) -> None:
    machines = machine.place.machines
    machine.run("echo kept > file; (setsid sleep 600 >/dev/null 2>&1 &)")
    machines.begin_deallocate(machine.place.group, "m").result()
    machine.wait_until_refused()
    assert [entry["state"] for entry in machine.place.bill()["timeline"]][-1] == "deallocated"
    machines.begin_start(machine.place.group, "m").result()
    assert machine.run("cat file")[1] == "kept\n"
    (root,) = (sandbox.folder / "guests").iterdir()
    body: Any = {"properties": {"storageProfile": {"osDisk": {"deleteOption": "Delete"}}}}
    machines.begin_update(machine.place.group, "m", body).result()
    machines.begin_delete(machine.place.group, "m").result()
    machine.wait_until_refused()
    wait_until(lambda: not root.exists(), "the disk is still there")


def test_deallocated_vm_does_not_answer(machine: Machine, sandbox: Sandbox) -> None:
    client = machine.connect()
    sandbox.http("POST", f"{machine.made['id']}/deallocate?{VERSION}")
    assert machine.place.bill()["powerState"] == "deallocated"
    with pytest.raises((OSError, EOFError, paramiko.SSHException)):
        client.exec_command("echo still here", timeout=WAIT_SECONDS)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((machine.address, machine.port), timeout=WAIT_SECONDS)
    client.close()


def test_processes_of_the_previous_boot_get_no_token(
    machine: Machine, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, stopped = sandbox.server.host, threading.Event()
    stop, machines = host.guests.stop, machine.place.machines

    async def stop_slowly(*arguments: Any) -> None:
        while not stopped.is_set():
            await asyncio.sleep(0.01)
        await stop(*arguments)

    def metadata_status() -> int:
        url = f"{host.metadata_url}/{machine.made['properties']['vmId']}/metadata/instance?api-version=2021-02-01"
        return requests.get(url, headers={"Metadata": "true"}, timeout=WAIT_SECONDS).status_code

    assert metadata_status() == 200
    monkeypatch.setattr(host.guests, "stop", stop_slowly)
    machines.begin_deallocate(machine.place.group, "m").result()
    machines.begin_start(machine.place.group, "m").result()
    assert machine.place.status("m")[1] == "running"
    assert metadata_status() == 404
    stopped.set()
    assert machine.run("echo up") == (0, "up\n")
    assert metadata_status() == 200


def test_run_command_runs_in_the_guest(machine: Machine, sandbox: Sandbox) -> None:
    machine.run("true")
    order: Any = {"commandId": "RunShellScript", "script": ["echo out", "echo err >&2", "hostname"]}
    done: Any = sandbox.compute.virtual_machines.begin_run_command(machine.place.group, "m", order).result()
    message = done.value[0].message
    assert "[stdout]\nout\n" in message
    assert "[stderr]\nerr" in message


def test_custom_data_sets_the_host_key_and_imds_issues_a_token(sandbox: Sandbox) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519

    private = ed25519.Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    injected = paramiko.Ed25519Key(file_obj=io.StringIO(private.decode()))
    indented = "".join(f"    {line}\n" for line in private.decode().splitlines())
    machine = Machine(sandbox, f"#cloud-config\nssh_keys:\n  ed25519_private: |\n{indented}")
    client = machine.connect()
    transport = client.get_transport()
    assert transport is not None
    assert transport.get_remote_server_key().get_base64() == injected.get_base64()
    client.close()
    code, text = machine.run('curl -s -H Metadata:true "$GPUINFRA_IMDS_ENDPOINT/instance?api-version=2021-02-01"')
    assert code == 0
    assert '"vmSize": "Standard_NC4as_T4_v3"' in text or '"vmSize":"Standard_NC4as_T4_v3"' in text


def test_guests_boot_again_with_the_server(tmp_path: Path) -> None:
    first = Sandbox(tmp_path / "sandbox")
    machine = Machine(first)
    machine.run("echo kept > file")
    first.stop()
    assert machine.refused()
    second = Sandbox(tmp_path / "sandbox")
    try:
        assert machine.run("cat file") == (0, "kept\n")
    finally:
        second.stop()


QUICKEST_BOOT = 9.0
"""In the realistic profile, in the sandbox's seconds."""


def is_ready(place: Place) -> bool:
    return place.id("m").lower() in place.sandbox.server.cloud.guests_ready


def test_created_vm_is_up_when_its_operation_ends_and_started_vm_boots_after_it(sandbox: Sandbox) -> None:
    place, clock = Place(sandbox), sandbox.server.cloud.clock
    sandbox.control("DELETE", "faults")
    body = place.body("m")
    sandbox.control("POST", "profile", {"profile": "realistic"})
    sandbox.freeze()  # a boot that takes any time would never end
    assert sandbox.http("PUT", place.path("m"), body)[0] == 201
    place.advance(400)
    wait_until(lambda: is_ready(place), "the guest is not up")
    assert sandbox.http("POST", place.path("m", "/deallocate"))[0] == 202
    place.advance(400)
    sandbox.wait_for(sandbox.server.host.finish)
    assert not is_ready(place)
    sandbox.control("POST", "clock", {"speed": 100})
    for action in ("start", "restart"):
        assert sandbox.http("POST", place.path("m", f"/{action}"))[0] == 202
        ended = clock.now() + 400
        place.advance(400)
        assert place.status("m") == ("ProvisioningState/succeeded", "running")
        sandbox.wait_for(sandbox.server.host.finish)
        assert is_ready(place), action
        assert clock.now() - ended > QUICKEST_BOOT


@pytest.mark.parametrize(("fault", "answers"), [("no-boot", False), ("ssh-refuses", False), ("gpu-gone", True)])
def test_guest_faults_apply(sandbox: Sandbox, fault: str, answers: bool) -> None:
    machine = Machine(sandbox, faults=(fault,))
    if answers:
        code, _ = machine.run("nvidia-smi")
        assert code != 0
        sandbox.control("DELETE", "faults")
        wait_until(lambda: machine.run("nvidia-smi")[0] == 0, "the GPU did not come back")
    else:
        sandbox.wait_for(sandbox.server.host.finish)
        assert machine.refused()


def test_docker_works_in_the_guest_if_the_host_has_an_engine(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A path to a socket has at most a hundred characters, so its folder is a short one.
    with docker_engine(tmp_path_factory.mktemp("e")) as address:
        monkeypatch.setenv("DOCKER_HOST", address)
        sandbox = Sandbox(tmp_path / "sandbox")
        try:
            machine = Machine(sandbox)
            assert machine.run(f"sudo docker run --rm --network none {IMAGE} echo from a container") == (
                0,
                "from a container\n",
            )
        finally:
            sandbox.stop()


def test_no_other_program_is_given_the_port_of_the_guests(server: Sandbox) -> None:
    """The guests of two sandboxes have the same addresses, so the port tells them apart."""
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", server.server.host.ssh_port))
