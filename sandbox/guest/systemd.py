"""Services of a guest, supervised by the server's event loop as systemd would."""

import asyncio
import contextlib
import os
import time
import uuid
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuinfra.sandbox.guest import processes
from gpuinfra.sandbox.guest.disk import Disk
from gpuinfra.sandbox.guest.processes import INVOCATION, Tag
from gpuinfra.sandbox.guest.spec import GuestSpec
from gpuinfra.sandbox.guest.systemd_units import Unit, UnitError, read_environment_file, read_unit, words

# systemd waits 90 s for a service to stop or to become ready; a simulated one gets less.
_STOP_SECONDS = 5.0
_BOOT_SECONDS = 1.0
_PREPARE_SECONDS = 90.0
_ONESHOT_SECONDS = 3600.0
# systemd's own exit code for a program that cannot be started.
_EXEC_FAILED = 203


@dataclass(frozen=True)
class State:
    """The state of a service in systemd's terms."""

    active: str = "inactive"
    sub: str = "dead"
    main_pid: int = 0
    result: str = "success"


class Service:
    """One unit and its processes."""

    def __init__(self, unit: Unit, spec: GuestSpec, disk: Disk) -> None:
        self.unit = unit
        self.state = State()
        self._spec = spec
        self._disk = disk
        self._supervision: asyncio.Task[None] | None = None
        self._starts: deque[float] = deque(maxlen=max(unit.start_limit, 1))
        self._process: asyncio.subprocess.Process | None = None
        self._tag = Tag(INVOCATION, "")

    @property
    def log(self) -> Path:
        """The file with the service's output."""
        return self._disk.log / "journal" / f"{self.unit.name}.log"

    def start(self) -> asyncio.Future[bool]:
        """Start it unless it runs. The result is True once it is up, or has succeeded if it is a oneshot."""
        ready: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        supervised = self._supervision is not None and not self._supervision.done()
        if supervised or self.state.active == "active":
            ready.set_result(True)
        else:
            self._starts.clear()
            self._supervision = asyncio.create_task(self._supervise(ready))
        return ready

    async def stop(self) -> None:
        """End it with all its processes, without a restart."""
        if self._supervision is not None:
            self._supervision.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervision
            self._supervision = None
        await self._end_processes()
        if self._process is not None:
            await asyncio.wait_for(self._process.wait(), _STOP_SECONDS)
            self._process = None
        self.state = State()

    async def _supervise(self, ready: asyncio.Future[bool]) -> None:
        """Run it, and restart it as `Restart=` says, until it stays down."""
        try:
            while True:
                self._starts.append(time.monotonic())
                code = await self._run_once(ready)
                await self._end_processes()
                if not self.unit.wants_restart(code):
                    self._settle(code)
                    return
                self.state = State("activating", "auto-restart", result=_result(code))
                await asyncio.sleep(self.unit.restart_seconds)
                if self._too_often():
                    self.note("start request repeated too quickly")
                    self.state = State("failed", "failed", result="start-limit-hit")
                    return
        except (UnitError, OSError) as error:
            self.note(str(error))
            self.state = State("failed", "failed", result="exit-code")
        finally:
            if not ready.done():
                ready.set_result(self.state.active in {"active", "inactive"})

    async def _run_once(self, ready: asyncio.Future[bool]) -> int:
        self._tag = Tag(INVOCATION, uuid.uuid4().hex)
        environment = self._environment()
        folder = self._disk.place(self.unit.working_directory or "/")
        oneshot = self.unit.kind == "oneshot"
        self.state = State("activating", "start-pre")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            for line in self.unit.exec_start_pre:
                code = await self._to_the_end(line, environment, folder, _PREPARE_SECONDS)
                if code and not line.startswith("-"):
                    return code
            if oneshot:
                code = 0
                for line in self.unit.exec_start:
                    code = code or await self._to_the_end(line, environment, folder, _ONESHOT_SECONDS)
                return code
            if not self.unit.exec_start:
                raise UnitError("Service has no ExecStart= setting. Refusing.")
            try:
                process = await asyncio.create_subprocess_exec(
                    *self._command(self.unit.exec_start[0], environment),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    cwd=folder,
                    start_new_session=True,
                )
            except OSError as error:
                self.note(str(error))
                return _EXEC_FAILED
        self._process = process
        self.state = State("active", "running", process.pid)
        if not ready.done():
            ready.set_result(True)
        # A service runs until it ends or is stopped.
        return await process.wait()

    async def _to_the_end(self, line: str, environment: Mapping[str, str], folder: Path, limit: float) -> int:
        with self.log.open("ab") as log:
            try:
                return await processes.run(
                    self._command(line, environment),
                    environment=environment,
                    folder=folder,
                    output=log,
                    errors=log,
                    deadline_seconds=limit,
                )
            except TimeoutError:
                self.note(f"{line}: not done after {limit:.0f} s, ended")
                return 1

    def _command(self, line: str, environment: Mapping[str, str]) -> list[str]:
        command = words(self._disk.rewrite(line), environment)
        if not command:
            raise UnitError(f"no command in {line!r}")
        return command

    def _environment(self) -> dict[str, str]:
        own = {name: self._disk.rewrite(value) for name, value in self.unit.environment.items()}
        for name in self.unit.environment_files:
            try:
                own |= read_environment_file(Path(self._disk.rewrite(name.removeprefix("-"))).read_text())
            except FileNotFoundError:
                # A leading `-` says that the file may be missing.
                if not name.startswith("-"):
                    raise
        return {**processes.environment(self._spec, self._disk), **own, self._tag.name: self._tag.value}

    def _settle(self, code: int) -> None:
        if code == 0 or (-code in {1, 2, 13, 15}):
            stays = self.unit.kind == "oneshot" and self.unit.remain_after_exit
            self.state = State("active", "exited") if stays else State()
        else:
            self.state = State("failed", "failed", result=_result(code))

    def _too_often(self) -> bool:
        if not self.unit.start_limit_seconds or len(self._starts) < self.unit.start_limit:
            return False
        return time.monotonic() - self._starts[0] < self.unit.start_limit_seconds

    async def _end_processes(self) -> None:
        if self._tag.value:
            await processes.end(self._tag, min(self.unit.stop_seconds, _STOP_SECONDS))

    def note(self, line: str) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("a") as log:
            log.write(f"systemd (simulated): {self.unit.name}: {line}\n")


class Services:
    """All units of a guest."""

    def __init__(self, spec: GuestSpec, disk: Disk) -> None:
        self._spec = spec
        self._disk = disk
        self._services: dict[str, Service] = {}

    def find(self, name: str) -> Service | None:
        """Return the service of a unit, or None. Unless it runs, its file is read again."""
        file = self._disk.units / name
        known = self._services.get(name)
        if not file.is_file():
            return known
        if known is None or known.state.active in {"inactive", "failed"}:
            unit = read_unit(file)
            if known is None or known.unit != unit:
                known = Service(unit, self._spec, self._disk)
                self._services[name] = known
                if unit.ignored:
                    known.note(f"not simulated, ignored: {', '.join(unit.ignored)}")
        return known

    def enabled(self, name: str) -> bool:
        """Whether it starts at boot."""
        return any(self._disk.units.glob(f"*.wants/{name}"))

    def enable(self, unit: Unit) -> list[Path]:
        """Create the links that start it at boot."""
        links = [self._disk.units / f"{target}.wants" / unit.name for target in unit.wanted_by]
        for link in links:
            link.parent.mkdir(exist_ok=True)
            if not os.path.lexists(link):
                link.symlink_to(Path("..") / unit.name)
        return links

    def disable(self, name: str) -> list[Path]:
        """Remove the links that start it at boot."""
        links = list(self._disk.units.glob(f"*.wants/{name}"))
        for link in links:
            link.unlink()
        return links

    async def start_enabled(self) -> None:
        """Start all enabled services. A failure is logged and does not stop the boot."""
        names = sorted({link.name for link in self._disk.units.glob("*.wants/*.service")})
        for name in names:
            try:
                service = self.find(name)
            except UnitError as error:
                with (self._disk.log / "systemd.log").open("a") as log:
                    log.write(f"{error}\n")
                continue
            if service is not None:
                # A oneshot may take long: the boot continues meanwhile.
                await asyncio.wait([service.start()], timeout=_BOOT_SECONDS)

    async def stop_all(self) -> None:
        """Stop supervising all services; their processes end with the guest's."""
        await asyncio.gather(*(service.stop() for service in self._services.values()))


def _result(code: int) -> str:
    return "success" if code == 0 else "signal" if code < 0 else "exit-code"
