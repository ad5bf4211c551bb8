"""Guests for tests: a server's loop in a thread, or in a process of its own that can be killed; and real clients."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import paramiko

from gpuinfra.sandbox.guest.guest import Guests
from gpuinfra.sandbox.guest.spec import CommandResult, Gpu, GuestSpec
from tests.real import program
from tests.sshd import ReservedPort

T = TypeVar("T")
T4 = Gpu(
    model="T4",
    name="Tesla T4",
    count=1,
    memory_mib=15360,
    compute_capability="7.5",
    pci_device_id="0x1EB810DE",
    driver_version="535.161.08",
    cuda_version="12.2",
)
WAIT_SECONDS = 60.0


class GuestHost:
    """Guests whose loop runs in a thread, as in a server."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="guests")
        self._thread.start()
        self.guests = Guests()

    def call(self, work: Coroutine[Any, Any, T], seconds: float = 60.0) -> T:
        """Run one call of the guests to its end."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)

    def close(self) -> None:
        try:
            self.call(self.guests.stop_all())
            self.call(self._end())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(WAIT_SECONDS)
            self._loop.close()

    async def _end(self) -> None:
        await asyncio.get_running_loop().shutdown_default_executor()


class Session:
    """Commands one after the other on one connection."""

    def __init__(self, connection: paramiko.SSHClient) -> None:
        self._connection = connection

    def run(self, command: str) -> CommandResult:
        _, output, errors = self._connection.exec_command(command, timeout=WAIT_SECONDS)
        stdout, stderr = output.read().decode(), errors.read().decode()
        return CommandResult(stdout, stderr, output.channel.recv_exit_status())

    def output(self, command: str) -> str:
        """What a command prints that has to succeed."""
        done = self.run(command)
        assert done.exit_code == 0, done
        return done.stdout.strip()


class Client:
    """A user's key and the ways to log in with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key_file = folder / "id_ed25519"
        make_key(self.key_file)
        self.public_key = self.key_file.with_suffix(".pub").read_text().strip()

    @contextlib.contextmanager
    def connect(
        self, spec: GuestSpec, username: str | None = None, key: Path | None = None
    ) -> Iterator[paramiko.SSHClient]:
        with paramiko.SSHClient() as client:
            client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
            client.connect(
                spec.address,
                spec.port,
                username or spec.username,
                pkey=paramiko.Ed25519Key.from_private_key_file(str(key or self.key_file)),
                allow_agent=False,
                look_for_keys=False,
                timeout=WAIT_SECONDS,
            )
            yield client

    def options(self, spec: GuestSpec) -> list[str]:
        """What OpenSSH's programs need to reach a guest and nothing else."""
        settings = {
            "IdentityFile": str(self.key_file),
            "IdentitiesOnly": "yes",
            "StrictHostKeyChecking": "no",
            "UserKnownHostsFile": str(self.folder / "known_hosts"),
            "BatchMode": "yes",
            "ConnectTimeout": "10",
            "LogLevel": "ERROR",
        }
        chosen = [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]
        return ["-F", "none", *chosen, "-o", f"Port={spec.port}"]

    def ssh(self, spec: GuestSpec, *arguments: str) -> list[str]:
        """A command line of OpenSSH's ssh: options first, then the command for the guest."""
        split = next((at for at, word in enumerate(arguments) if not word.startswith("-")), len(arguments))
        target = f"{spec.username}@{spec.address}"
        ssh = program("ssh", "openssh-client")
        return [ssh, *self.options(spec), *arguments[:split], target, *arguments[split:]]

    def run(self, spec: GuestSpec, *arguments: str, given: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run(
            self.ssh(spec, *arguments), input=given, capture_output=True, timeout=WAIT_SECONDS * 2, check=False
        )

    def output(self, spec: GuestSpec, command: str) -> str:
        """What a command prints that has to succeed."""
        done = self.run(spec, command)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode().strip()


def make_key(file: Path, kind: str = "ed25519") -> None:
    keygen = program("ssh-keygen", "openssh-client")
    subprocess.run(
        [keygen, "-q", "-t", kind, "-N", "", "-C", "test", "-f", str(file)], check=True, timeout=WAIT_SECONDS
    )


_ports: list[ReservedPort] = []


def free_port() -> int:
    """A port that no other process is given while these tests run."""
    _ports.append(ReservedPort())
    return _ports[-1].number


def make_spec(root: Path, public_key: str, **changes: Any) -> GuestSpec:
    values: dict[str, Any] = {
        "vm_id": "vm-1",
        "name": "my-dsvm",
        "root": root,
        "address": "127.0.0.1",
        "port": free_port(),
        "username": "azureuser",
        "authorized_keys": (public_key,),
        "custom_data": None,
        "gpu": T4,
        "metadata_url": "http://127.0.0.1:1/metadata",
    }
    return GuestSpec(**{**values, **changes})


def eventually(holds: Callable[[], bool], seconds: float = WAIT_SECONDS) -> bool:
    """Whether it becomes true in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@contextlib.contextmanager
def server_process(root: Path, port: int, public_key: str) -> Iterator["subprocess.Popen[str]"]:
    """A server in a process of its own, ready; it is killed in the end if it is still there."""
    values = json.dumps({"root": str(root), "port": port, "public_key": public_key})
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[3]), *sys.path])}
    with subprocess.Popen(
        [sys.executable, "-m", __name__, values], stdout=subprocess.PIPE, text=True, env=environment
    ) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            yield server
        finally:
            server.send_signal(signal.SIGKILL)


async def _serve(values: dict[str, Any]) -> None:
    await Guests().start(make_spec(Path(values["root"]), values["public_key"], port=values["port"]))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.sleep(WAIT_SECONDS * 3)


if __name__ == "__main__":
    asyncio.run(_serve(json.loads(sys.argv[1])))
