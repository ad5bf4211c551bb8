"""One guest from power-on to power-off."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import uuid

from gpuinfra.sandbox.guest import processes, shims
from gpuinfra.sandbox.guest.cloud_init import CloudInit
from gpuinfra.sandbox.guest.disk import Disk, write_whole
from gpuinfra.sandbox.guest.services import Services
from gpuinfra.sandbox.guest.spec import CommandResult, GuestSpec
from gpuinfra.sandbox.guest.ssh import SshServer
from gpuinfra.sandbox.guest.systemctl import Systemctl

logger = logging.getLogger(__name__)

# Of the image: as on the Data Science VM, the admin user is not a member of `docker`.
KEY_KIND = "Provisioning.SshHostKeyPairType"
_GROUPS = "root:x:0:\ndocker:x:998:\n"
_AGENT_SETTINGS = f"{KEY_KIND}=rsa\n"
_BASHRC = """# A name for the simulated machine instead of the host's; only where somebody reads it.
[ -n "$PS1" ] && PS1='{username}@{name}:\\w\\$ '
"""


class Guest:
    """What runs of a powered-on machine."""

    def __init__(self, spec: GuestSpec) -> None:
        self.spec = dataclasses.replace(spec, root=spec.root.resolve())
        self._disk = Disk(self.spec.root, spec.username)
        self._tag = processes.guest_tag(spec.vm_id, self.spec.root)
        self._ssh = SshServer(self.spec, self._disk)
        self._services = Services(self.spec, self._disk)
        self._systemctl = Systemctl(self._services, self._disk)
        self._cloud_init: asyncio.Task[None] | None = None
        self.agent_is_ready = False
        """Whether Azure's agent has come up: it waits for a host key of the kind that its settings name."""

    async def boot(self) -> None:
        """Power on. Returns when SSH answers; cloud-init's commands may run on after that."""
        # A server that was killed leaves processes behind; two of a service must not run at once.
        left = await processes.end(self._tag)
        if left:
            logger.warning("%s: ended %d processes that a former server left", self.spec.name, left)
        self._disk.prepare()
        self._provision()
        shims.install(self.spec, self._disk)
        self.set_gpu_gone(self.spec.gpu_gone)
        if self.spec.driver_refused:
            write_whole(self._disk.run / "driver-refused", "")
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
        """Drop every connection and accept no more."""
        self._ssh.disconnect()

    async def shut_down(self) -> None:
        """Power off: nothing of the guest answers or runs afterwards. May be called again where it was cut short."""
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
        """Run a script as Azure's agent does: from a file, its output in files; TimeoutError past the deadline."""
        folder = self._disk.root / "var" / "lib" / "waagent" / "run-command" / uuid.uuid4().hex
        file = folder / "script.sh"
        write_whole(file, script, 0o700)
        with (folder / "stdout").open("wb") as output, (folder / "stderr").open("wb") as errors:
            code = await processes.run(
                [str(file)] if script.startswith("#!") else ["bash", str(file)],
                environment=processes.environment(self.spec, self._disk),
                folder=self._disk.home,
                output=output,
                errors=errors,
                deadline_seconds=deadline_seconds,
            )
        # A script that a signal ended has the exit code that a shell gives it.
        return CommandResult(
            (folder / "stdout").read_text(errors="replace"),
            (folder / "stderr").read_text(errors="replace"),
            code if code >= 0 else 128 - code,
        )

    def set_gpu_gone(self, gone: bool) -> None:
        """Let the GPU fall off the bus, or be there again."""
        flag = self._disk.run / "gpu-gone"
        if gone:
            write_whole(flag, "")
        else:
            with contextlib.suppress(FileNotFoundError):
                flag.unlink()

    def _has_agent_key(self) -> bool:
        folder = self._disk.root / "etc"
        lines = [line.strip().partition("=") for line in (folder / "waagent.conf").read_text().splitlines()]
        kind = next((value for name, _, value in lines if name == KEY_KIND), "rsa")
        return (folder / "ssh" / f"ssh_host_{kind}_key.pub").exists()

    def _provision(self) -> None:
        """What Azure's agent does on the first boot: the user's keys and the machine's name."""
        done = self._disk.root / "var" / "lib" / "waagent" / "provisioned"
        if done.exists():
            return
        keys = "".join(f"{key.strip()}\n" for key in self.spec.authorized_keys)
        write_whole(self._disk.authorized_keys, keys, 0o600)
        write_whole(self._disk.home / ".bashrc", _BASHRC.format(username=self.spec.username, name=self.spec.name))
        write_whole(self._disk.root / "etc" / "hostname", f"{self.spec.name}\n")
        write_whole(self._disk.root / "etc" / "group", _GROUPS)
        write_whole(self._disk.root / "etc" / "waagent.conf", _AGENT_SETTINGS)
        write_whole(done, "")


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.error("cloud-init of a guest broke off", exc_info=task.exception())
