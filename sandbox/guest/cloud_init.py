"""What cloud-init does in a guest: settings before SSH answers, commands after that."""

import json
import shlex
import time
from collections.abc import Iterable

from gpuinfra.sandbox.guest import processes
from gpuinfra.sandbox.guest.cloud_config import Command, File, read_custom_data
from gpuinfra.sandbox.guest.disk import Disk, write_atomically
from gpuinfra.sandbox.guest.spec import GuestSpec

# bootcmd delays the boot, so it gets less time than runcmd.
_BOOT_SECONDS = 60.0
_RUN_SECONDS = 3600.0


class CloudInit:
    """cloud-init during one boot of a guest."""

    def __init__(self, spec: GuestSpec, disk: Disk) -> None:
        self._spec = spec
        self._disk = disk
        self._config = read_custom_data(spec.custom_data, spec.username)
        self._instance = disk.root / "var" / "lib" / "cloud" / "instance"
        self._errors: list[str] = []

    @property
    def has_host_keys(self) -> bool:
        """Whether the custom data contains host keys. Otherwise cloud-init generates one of every kind."""
        return bool(self._config.host_keys)

    async def configure(self) -> None:
        """Apply files, keys and hostname on the first boot; then run bootcmd, as on every boot."""
        self._say_status("running")
        for line in self._config.ignored:
            self._log("WARNING", f"ignored: {line}")
        for line in self._config.problems:
            self._fail(line)
        if not self._done("config"):
            self._apply()
            self._mark_done("config")
        await self._run_commands("bootcmd", self._config.boot_commands, _BOOT_SECONDS)

    async def finish(self) -> None:
        """Execute runcmd once; if that was interrupted, the next boot starts it again."""
        if not self._done("scripts"):
            if self._config.script is not None:
                script = self._instance / "scripts" / "part-001"
                write_atomically(script, self._config.script, 0o700)
                await self._run_script("user script", [str(script)], _RUN_SECONDS)
            await self._run_commands("runcmd", self._config.run_commands, _RUN_SECONDS)
            self._mark_done("scripts")
        write_atomically(self._instance / "boot-finished", f"{time.time():.2f} - v. simulated\n")
        self._say_status("error" if self._errors else "done")
        self._log("INFO", "boot finished")

    def _apply(self) -> None:
        if self._config.hostname:
            write_atomically(self._disk.root / "etc" / "hostname", f"{self._config.hostname}\n")
        for name, text in self._config.host_keys.items():
            kind, part = name.split("_")
            suffix = {"private": "", "public": ".pub", "certificate": "-cert.pub"}[part]
            mode = 0o600 if part == "private" else 0o644
            write_atomically(
                self._disk.root / "etc" / "ssh" / f"ssh_host_{kind}_key{suffix}", text.strip() + "\n", mode
            )
        if self._config.authorized_keys:
            with self._disk.authorized_keys.open("a") as keys:
                keys.writelines(f"{key.strip()}\n" for key in self._config.authorized_keys)
        for file in self._config.files:
            try:
                self._write(file)
            except OSError as error:
                self._fail(f"write_files {file.path}: {error}")

    def _write(self, file: File) -> None:
        if not file.path.startswith("/"):
            self._log("WARNING", f"write_files {file.path}: not absolute, written under /")
        target = self._disk.place("/" + file.path.lstrip("/"))
        before = target.read_bytes() if file.append and target.exists() else b""
        write_atomically(target, before + file.content, file.mode)
        self._log("INFO", f"wrote {file.path}: {len(file.content)} bytes, {file.mode:04o}")

    async def _run_commands(self, name: str, commands: Iterable[Command], deadline_seconds: float) -> None:
        """Run all commands as one script, as cloud-init does: a failing command does not stop the next."""
        lines = [self._shell(command) for command in commands]
        if lines:
            script = self._instance / "scripts" / name
            write_atomically(script, "\n".join(["#!/bin/sh", *lines, ""]), 0o700)
            await self._run_script(name, ["/bin/sh", str(script)], deadline_seconds)

    def _shell(self, command: Command) -> str:
        if isinstance(command, str):
            return self._disk.rewrite(command)
        return shlex.join(self._disk.rewrite(word) for word in command)

    async def _run_script(self, name: str, command: list[str], deadline_seconds: float) -> None:
        with (self._disk.log / "cloud-init-output.log").open("ab") as output:
            try:
                code = await processes.run(
                    command,
                    environment=processes.environment(self._spec, self._disk),
                    folder=self._disk.home,
                    output=output,
                    errors=output,
                    deadline_seconds=deadline_seconds,
                )
            except TimeoutError:
                self._fail(f"{name}: not done after {deadline_seconds:.0f} s, ended")
            except OSError as error:
                self._fail(f"{name}: {error}")
            else:
                self._log("INFO", f"{name}: exit code {code}") if code == 0 else self._fail(f"{name}: exit code {code}")

    def _fail(self, line: str) -> None:
        self._errors.append(line)
        self._log("ERROR", line)

    def _log(self, level: str, line: str) -> None:
        with (self._disk.log / "cloud-init.log").open("a") as log:
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} - cloud-init[{level}]: {line}\n")

    def _say_status(self, status: str) -> None:
        """Write the status for the guest's `cloud-init` program, and cloud-init's own result file."""
        folder = self._disk.run / "cloud-init"
        write_atomically(folder / "errors", "".join(f"{line}\n" for line in self._errors))
        if status != "running":
            result = {"v1": {"datasource": "DataSourceAzure [simulated]", "errors": self._errors}}
            write_atomically(folder / "result.json", json.dumps(result, indent=1) + "\n")
        write_atomically(folder / "status", f"{status}\n")

    def _done(self, stage: str) -> bool:
        return (self._instance / "sem" / stage).exists()

    def _mark_done(self, stage: str) -> None:
        write_atomically(self._instance / "sem" / stage, "")
