"""Guests, each from power-on to power-off."""

import asyncio
import contextlib
import dataclasses
import hashlib
import logging
import sys
import uuid
from collections import defaultdict
from pathlib import Path

from gpuinfra.sandbox.guest import processes
from gpuinfra.sandbox.guest.cloud_init import CloudInit
from gpuinfra.sandbox.guest.disk import Disk, remove_tree, write_atomically
from gpuinfra.sandbox.guest.spec import CommandResult, GuestNotRunningError, GuestSpec
from gpuinfra.sandbox.guest.ssh_server import SshServer
from gpuinfra.sandbox.guest.systemctl import Systemctl
from gpuinfra.sandbox.guest.systemd import Services

logger = logging.getLogger(__name__)

# As in the Data Science VM's image, the admin user is not a member of `docker`.
KEY_KIND = "Provisioning.SshHostKeyPairType"
_GROUPS = "root:x:0:\ndocker:x:998:\n"
_AGENT_SETTINGS = f"{KEY_KIND}=rsa\n"
_BASHRC = """# A name for the simulated machine instead of the host's; only in interactive shells.
[ -n "$PS1" ] && PS1='{username}@{name}:\\w\\$ '
"""


class Guest:
    """The processes and servers of a VM that is powered on."""

    def __init__(self, spec: GuestSpec) -> None:
        self.spec = dataclasses.replace(spec, root=spec.root.resolve())
        self._disk = Disk(self.spec.root, spec.username)
        self._tag = processes.guest_tag(spec.vm_id, self.spec.root)
        self._ssh = SshServer(self.spec, self._disk)
        self._services = Services(self.spec, self._disk)
        self._systemctl = Systemctl(self._services, self._disk)
        self._cloud_init: asyncio.Task[None] | None = None
        self.agent_is_ready = False
        """Whether Azure's agent is up: it waits for a host key of the kind in its settings."""

    async def boot(self) -> None:
        """Power on. Returns when SSH answers; cloud-init's commands may still run."""
        # A killed server leaves processes behind; a service must not run twice.
        left = await processes.end(self._tag)
        if left:
            logger.warning("%s: ended %d processes that a former server left", self.spec.name, left)
        self._disk.prepare()
        self._provision()
        _install_programs(self.spec, self._disk)
        self.set_gpu_gone(self.spec.gpu_gone)
        if self.spec.driver_refused:
            write_atomically(self._disk.run / "driver-refused", "")
        cloud_init = CloudInit(self.spec, self._disk)
        try:
            await self._systemctl.open()
            await cloud_init.configure()
            if not self.spec.sshd_refuses:
                await self._ssh.start()
            await self._services.start_enabled()
            self.agent_is_ready = not cloud_init.has_host_keys or self._has_agent_key()
        except BaseException:
            await self.shut_down()
            raise
        self._cloud_init = asyncio.create_task(cloud_init.finish())
        self._cloud_init.add_done_callback(_log_failure)

    def disconnect(self) -> None:
        self._ssh.disconnect()

    async def shut_down(self) -> None:
        """Power off: no server or process of the guest remains. Call it again if it was interrupted."""
        await self._ssh.close()
        await self._systemctl.close()
        if self._cloud_init is not None:
            self._cloud_init.cancel()
            await asyncio.wait([self._cloud_init])
        try:
            await self._services.stop_all()
        finally:
            await processes.end(self._tag)
        await self._ssh.finish()

    async def run_command(self, script: str, deadline_seconds: float) -> CommandResult:
        """Run a script as Azure's agent does, from a file. Raises TimeoutError past the deadline."""
        folder = self._disk.root / "var" / "lib" / "waagent" / "run-command" / uuid.uuid4().hex
        file = folder / "script.sh"
        write_atomically(file, script, 0o700)
        with (folder / "stdout").open("wb") as output, (folder / "stderr").open("wb") as errors:
            code = await processes.run(
                [str(file)] if script.startswith("#!") else ["bash", str(file)],
                environment=processes.environment(self.spec, self._disk),
                folder=self._disk.home,
                output=output,
                errors=errors,
                deadline_seconds=deadline_seconds,
            )
        # For a script that a signal ended, return the exit code that a shell reports.
        return CommandResult(
            (folder / "stdout").read_text(errors="replace"),
            (folder / "stderr").read_text(errors="replace"),
            code if code >= 0 else 128 - code,
        )

    def set_gpu_gone(self, gone: bool) -> None:
        flag = self._disk.run / "gpu-gone"
        if gone:
            write_atomically(flag, "")
        else:
            with contextlib.suppress(FileNotFoundError):
                flag.unlink()

    def _has_agent_key(self) -> bool:
        folder = self._disk.root / "etc"
        lines = [line.strip().partition("=") for line in (folder / "waagent.conf").read_text().splitlines()]
        kind = next((value for name, _, value in lines if name == KEY_KIND), "rsa")
        return (folder / "ssh" / f"ssh_host_{kind}_key.pub").exists()

    def _provision(self) -> None:
        """Do what Azure's agent does on the first boot: set the user's keys and the hostname."""
        done = self._disk.root / "var" / "lib" / "waagent" / "provisioned"
        if done.exists():
            return
        keys = "".join(f"{key.strip()}\n" for key in self.spec.authorized_keys)
        write_atomically(self._disk.authorized_keys, keys, 0o600)
        write_atomically(self._disk.home / ".bashrc", _BASHRC.format(username=self.spec.username, name=self.spec.name))
        write_atomically(self._disk.root / "etc" / "hostname", f"{self.spec.name}\n")
        write_atomically(self._disk.root / "etc" / "group", _GROUPS)
        write_atomically(self._disk.root / "etc" / "waagent.conf", _AGENT_SETTINGS)
        write_atomically(done, "")


class Guests:
    """Starts and stops guests. Calls for the same VM wait for each other."""

    def __init__(self) -> None:
        self._guests: dict[str, Guest] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def start(self, spec: GuestSpec) -> None:
        """Power on, and return when SSH answers. A running guest is not changed."""
        async with self._locks[spec.vm_id]:
            if spec.vm_id not in self._guests:
                guest = Guest(spec)
                await guest.boot()
                self._guests[spec.vm_id] = guest

    def disconnect(self, vm_id: str) -> None:
        """Drop every connection to a guest and accept no new ones; `stop` ends its processes."""
        if guest := self._guests.get(vm_id):
            guest.disconnect()

    async def stop(self, vm_id: str, root: Path | None = None) -> None:
        """Power off: end the listener, the sessions and every process.

        With `root`, also end processes that an earlier server left.
        """
        async with self._locks[vm_id]:
            await self._stop(vm_id, root)

    async def delete(self, vm_id: str, root: Path) -> None:
        async with self._locks[vm_id]:
            await self._stop(vm_id, root)
            await asyncio.to_thread(remove_tree, root)

    async def stop_all(self) -> None:
        """Power off every guest; all are tried, then the first failure is raised."""
        results = await asyncio.gather(*(self.stop(vm_id) for vm_id in list(self._guests)), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def run_command(self, vm_id: str, script: str, deadline_seconds: float) -> CommandResult:
        """Run a script in the guest as Azure's agent does. Raises TimeoutError past the deadline, after ending it."""
        guest = self._running(vm_id)
        if not guest.agent_is_ready:
            raise GuestNotRunningError(vm_id)
        return await guest.run_command(script, deadline_seconds)

    def set_gpu_gone(self, vm_id: str, gone: bool) -> None:
        """Make the GPU fall off the bus, or come back."""
        self._running(vm_id).set_gpu_gone(gone)

    def agent_is_ready(self, vm_id: str) -> bool:
        """Whether the guest is powered on and Azure's agent in it is up."""
        return vm_id in self._guests and self._guests[vm_id].agent_is_ready

    def running(self, vm_id: str) -> bool:
        return vm_id in self._guests

    async def _stop(self, vm_id: str, root: Path | None) -> None:
        guest = self._guests.get(vm_id)
        if guest is not None:
            # Removed only when it is off: a stop that was interrupted or failed can be repeated.
            await guest.shut_down()
            del self._guests[vm_id]
        elif root is not None:
            await processes.end(processes.guest_tag(vm_id, root))

    def _running(self, vm_id: str) -> Guest:
        try:
            return self._guests[vm_id]
        except KeyError:
            raise GuestNotRunningError(vm_id) from None


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.error("cloud-init of a guest broke off", exc_info=task.exception())


_HERE = Path(__file__).parent
_SCRIPTS = ("sudo", "wall", "hostname", "who", "ss", "cloud-init", "journalctl", "docker", "usermod")
# Programs that would change the host, because the guest runs as the server's user.
_REFUSED = (
    *("shutdown", "poweroff", "reboot", "halt", "init", "telinit"),
    *("apt", "apt-get", "aptitude", "dpkg", "snap", "useradd", "adduser", "userdel", "groupadd", "addgroup"),
    *("passwd", "chpasswd", "gpasswd", "crontab", "at", "mount", "umount", "swapon", "swapoff", "modprobe", "sysctl"),
    *("iptables", "ip6tables", "nft", "ufw", "hostnamectl", "timedatectl", "loginctl"),
)
_MAX_FIRST_LINE = 240


def _install_programs(spec: GuestSpec, disk: Disk) -> None:
    """Install the guest's own programs at each boot, so that they match the server's version."""
    for name in _SCRIPTS:
        write_atomically(disk.bin / name, (_HERE / "shims" / name).read_bytes(), 0o755)
    write_atomically(disk.bin / "refused", (_HERE / "shims" / "refused").read_bytes(), 0o755)
    for name in _REFUSED:
        if not (disk.bin / name).is_symlink():
            (disk.bin / name).symlink_to("refused")
    _install_python(disk.bin / "systemctl", _HERE / "systemctl_client.py")
    nvidia_smi = disk.bin / "nvidia-smi"
    facts = nvidia_smi.with_suffix(".facts")
    if spec.gpu is None:
        nvidia_smi.unlink(missing_ok=True)
        facts.unlink(missing_ok=True)
    else:
        lines = {**dataclasses.asdict(spec.gpu), **_numbers_of_gpus(spec.vm_id, spec.gpu.count)}
        write_atomically(facts, "".join(f"{name}={value}\n" for name, value in lines.items()))
        _install_python(nvidia_smi, _HERE / "nvidia_smi.py")


def _numbers_of_gpus(vm_id: str, count: int) -> dict[str, str]:
    """Return the UUIDs and serial numbers of a VM's GPUs, which are the same after each boot."""
    digests = [hashlib.sha256(f"{vm_id}/{index}".encode()) for index in range(count)]
    uuids = [uuid.UUID(bytes=digest.digest()[:16]) for digest in digests]
    serials = [f"{each.int % 10**13:013d}" for each in uuids]
    return {"uuids": " ".join(f"GPU-{each}" for each in uuids), "serials": " ".join(serials)}


def _install_python(target: Path, source: Path) -> None:
    """Install a standalone script, run by the server's Python and independent of the job's environment."""
    interpreter = f"{sys.executable} -IS"
    if " " in sys.executable or len(interpreter) > _MAX_FIRST_LINE:
        interpreter = "/usr/bin/env python3"
    write_atomically(target, f"#!{interpreter}\n".encode() + source.read_bytes(), 0o755)
