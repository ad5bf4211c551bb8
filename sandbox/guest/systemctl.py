"""The server behind a guest's `systemctl`: it receives the arguments and returns what to print."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from gpuinfra.sandbox.guest.disk import Disk, short_path
from gpuinfra.sandbox.guest.spec import CommandResult
from gpuinfra.sandbox.guest.systemd import Service, Services
from gpuinfra.sandbox.guest.systemd_units import UnitError

logger = logging.getLogger(__name__)

SOCKET = "systemd.socket"
_REQUEST_SECONDS = 10.0
# systemctl(1) and the LSB codes it cites.
_FAILED, _NOT_ACTIVE, _NO_SUCH_UNIT, _NOT_FOUND = 1, 3, 4, 5
_SUFFIXES = (".service", ".target", ".timer", ".socket", ".path", ".mount")


@dataclass(frozen=True)
class Request:
    """The arguments of one `systemctl` call."""

    verb: str
    units: list[str] = field(default_factory=list)
    properties: list[str] = field(default_factory=list)
    now: bool = False
    quiet: bool = False
    value_only: bool = False


Verb = Callable[[Service, Request], Awaitable[CommandResult]]


class Systemctl:
    """Handles `systemctl` calls of one guest, on a socket in its `/run`."""

    def __init__(self, services: Services, disk: Disk) -> None:
        self._services = services
        self._disk = disk
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        file = self._disk.run / SOCKET
        with short_path(file) as name:
            listener.bind(name)
        file.chmod(0o600)
        self._server = await asyncio.start_unix_server(self._serve, sock=listener)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            words = (await asyncio.wait_for(reader.read(), _REQUEST_SECONDS)).decode("utf-8", "replace")
            result = await self.answer(words.split("\0") if words else [])
            output, errors = (text.replace("\0", "") for text in (result.stdout, result.stderr))
            writer.write(f"{result.exit_code}\0{output}\0{errors}".encode())
            await writer.drain()
        except (TimeoutError, ValueError, ConnectionError) as error:
            logger.warning("a call of systemctl was lost: %s", error)
        finally:
            writer.close()

    async def answer(self, arguments: list[str]) -> CommandResult:
        """Return what `systemctl` prints with these arguments, and its exit code."""
        request = _parse(arguments)
        if request.verb in {"daemon-reload", "daemon-reexec", "reset-failed"}:
            # Unit files are read whenever a service starts.
            return CommandResult()
        verb = self._verbs().get(request.verb)
        if verb is None:
            return CommandResult("", f"Unknown command verb '{request.verb}', or it is not simulated.\n", _FAILED)
        if not request.units:
            return CommandResult("", "Too few arguments.\n", _FAILED)
        results = [await self._one(verb, name, request) for name in request.units]
        codes = [result.exit_code for result in results]
        # For is-active one active unit is enough; otherwise the last failure counts: systemctl(1).
        code = 0 if request.verb == "is-active" and 0 in codes else max(codes)
        output = "" if request.quiet else "".join(result.stdout for result in results)
        return CommandResult(output, "".join(result.stderr for result in results), code)

    def _verbs(self) -> Mapping[str, Verb]:
        return {
            "start": self._start,
            "stop": self._stop,
            "restart": self._restart,
            "enable": self._enable,
            "disable": self._disable,
            "is-active": self._is_active,
            "is-enabled": self._is_enabled,
            "is-failed": self._is_failed,
            "status": self._status,
            "show": self._show,
        }

    async def _one(self, verb: Verb, name: str, request: Request) -> CommandResult:
        try:
            service = self._services.find(name)
        except UnitError as error:
            return CommandResult("", f"Failed to {request.verb} {name}: Bad unit file setting: {error}\n", _FAILED)
        return _unknown(name, request) if service is None else await verb(service, request)

    async def _start(self, service: Service, _: Request) -> CommandResult:
        if await service.start():
            return CommandResult()
        message = (
            f"Job for {service.unit.name} failed because the control process exited with error code.\n"
            f'See "systemctl status {service.unit.name}" and "journalctl -xeu {service.unit.name}" for details.\n'
        )
        return CommandResult("", message, _FAILED)

    async def _stop(self, service: Service, _: Request) -> CommandResult:
        await service.stop()
        return CommandResult()

    async def _restart(self, service: Service, request: Request) -> CommandResult:
        await service.stop()
        # The file may have changed since the start.
        return await self._start(self._services.find(service.unit.name) or service, request)

    async def _enable(self, service: Service, request: Request) -> CommandResult:
        links = self._services.enable(service.unit)
        if not links:
            message = "The unit files have no installation config (WantedBy=), nothing to enable.\n"
            return CommandResult(stderr=message)
        target = f"/etc/systemd/system/{service.unit.name}"
        told = "".join(
            f"Created symlink /etc/systemd/system/{link.parent.name}/{link.name} → {target}.\n" for link in links
        )
        started = await self._start(service, request) if request.now else CommandResult()
        return CommandResult("", told + started.stderr, started.exit_code)

    async def _disable(self, service: Service, request: Request) -> CommandResult:
        links = self._services.disable(service.unit.name)
        if request.now:
            await service.stop()
        told = "".join(f'Removed "/etc/systemd/system/{link.parent.name}/{link.name}".\n' for link in links)
        return CommandResult(stderr=told)

    async def _is_active(self, service: Service, _: Request) -> CommandResult:
        active = service.state.active
        return CommandResult(f"{active}\n", "", 0 if active == "active" else _NOT_ACTIVE)

    async def _is_failed(self, service: Service, _: Request) -> CommandResult:
        return CommandResult(f"{service.state.active}\n", "", 0 if service.state.active == "failed" else _FAILED)

    async def _is_enabled(self, service: Service, _: Request) -> CommandResult:
        enabled = self._services.enabled(service.unit.name)
        word = "enabled" if enabled else "disabled" if service.unit.wanted_by else "static"
        return CommandResult(f"{word}\n", "", _FAILED if word == "disabled" else 0)

    async def _status(self, service: Service, _: Request) -> CommandResult:
        state, name = service.state, service.unit.name
        enabled = "enabled" if self._services.enabled(name) else "disabled"
        lines = [
            f"● {name} - {service.unit.description}",
            f"     Loaded: loaded (/etc/systemd/system/{name}; {enabled}; simulated)",
            f"     Active: {state.active} ({state.sub})",
        ]
        if state.main_pid:
            lines.append(f"   Main PID: {state.main_pid}")
        if service.log.exists():
            lines += ["", *service.log.read_text(errors="replace").splitlines()[-10:]]
        return CommandResult("\n".join(lines) + "\n", "", 0 if state.active == "active" else _NOT_ACTIVE)

    async def _show(self, service: Service, request: Request) -> CommandResult:
        state = service.state
        known = {
            "Id": service.unit.name,
            "Description": service.unit.description,
            "LoadState": "loaded",
            "ActiveState": state.active,
            "SubState": state.sub,
            "MainPID": str(state.main_pid),
            "Result": state.result,
            "UnitFileState": "enabled" if self._services.enabled(service.unit.name) else "disabled",
        }
        return CommandResult(_shown(known, request), "", 0)


def _unknown(name: str, request: Request) -> CommandResult:
    """Return what systemctl prints for an unknown unit; it differs by verb."""
    known = {"Id": name, "LoadState": "not-found", "ActiveState": "inactive", "SubState": "dead", "MainPID": "0"}
    no_file = CommandResult("", f"Failed to {request.verb} unit: Unit file {name} does not exist.\n", _FAILED)
    no_state = f"Failed to get unit file state for {name}: No such file or directory\n"
    special = {
        "is-active": CommandResult("inactive\n", "", _NO_SUCH_UNIT),
        "is-failed": CommandResult("inactive\n", "", _FAILED),
        "is-enabled": CommandResult("", no_state, _FAILED),
        "show": CommandResult(_shown(known, request), "", 0),
        "status": CommandResult("", f"Unit {name} could not be found.\n", _NO_SUCH_UNIT),
        "enable": no_file,
        "disable": no_file,
    }
    message = f"Failed to {request.verb} {name}: Unit {name} not found.\n"
    return special.get(request.verb, CommandResult("", message, _NOT_FOUND))


def _shown(known: Mapping[str, str], request: Request) -> str:
    names = [name for name in request.properties or known if name in known]
    return "".join(f"{known[name]}\n" if request.value_only else f"{name}={known[name]}\n" for name in names)


def _parse(arguments: list[str]) -> Request:
    words: list[str] = []
    properties: list[str] = []
    flags: set[str] = set()
    rest = iter(arguments)
    for argument in rest:
        if argument in {"-p", "--property"}:
            properties += next(rest, "").split(",")
        elif argument.startswith("--property="):
            properties += argument.partition("=")[2].split(",")
        elif argument.startswith("-p"):
            properties += argument[2:].split(",")
        elif argument.startswith("-"):
            flags.add(argument)
        else:
            words.append(argument)
    units = [name if name.endswith(_SUFFIXES) else f"{name}.service" for name in words[1:]]
    return Request(
        verb=words[0] if words else "list-units",
        units=units,
        properties=properties,
        now="--now" in flags,
        quiet=bool(flags & {"-q", "--quiet"}),
        value_only="--value" in flags,
    )
