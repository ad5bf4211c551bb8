"""systemd unit files, as far as services of the guest use them."""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_HONOURED = frozenset(
    {
        *("Unit.Description", "Unit.After", "Unit.Wants", "Unit.Requires", "Unit.Before", "Unit.Documentation"),
        *("Unit.StartLimitBurst", "Unit.StartLimitIntervalSec", "Install.WantedBy"),
        *("Service.Type", "Service.ExecStart", "Service.ExecStartPre", "Service.Environment"),
        *("Service.EnvironmentFile", "Service.WorkingDirectory", "Service.Restart", "Service.RestartSec"),
        *("Service.RemainAfterExit", "Service.TimeoutStopSec"),
    }
)
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "hr": 3600, "d": 86400}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")
# `$$` is a literal dollar.
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+)|\$)")
_YES = frozenset({"yes", "true", "on", "1"})


class UnitError(ValueError):
    """A unit that cannot be started."""


@dataclass(frozen=True)
class Unit:
    """A service. Exec lines are kept as written and parsed at its start."""

    name: str
    description: str
    kind: str
    exec_start: tuple[str, ...]
    exec_start_pre: tuple[str, ...]
    environment: Mapping[str, str]
    environment_files: tuple[str, ...]
    working_directory: str | None
    restart: str
    restart_seconds: float
    stop_seconds: float
    remain_after_exit: bool
    start_limit: int
    start_limit_seconds: float
    wanted_by: tuple[str, ...]
    ignored: tuple[str, ...]

    def wants_restart(self, code: int) -> bool:
        """Whether systemd restarts it after this exit code; a negative code is a signal."""
        # systemd.service(5): a service that these signals end has ended cleanly.
        clean = code == 0 or -code in {1, 2, 13, 15}
        return (
            self.restart == "always"
            or (self.restart == "on-success" and clean)
            or (self.restart == "on-failure" and not clean)
            or (self.restart in {"on-abnormal", "on-abort"} and code < 0 and not clean)
        )


def read_unit(file: Path) -> Unit:
    """Parse a unit file."""
    values: dict[str, list[str]] = {}
    for name, value in _settings(file.read_text()):
        # An empty value clears those before it.
        values[name] = [*values.get(name, []), value] if value else []

    def one(name: str, default: str) -> str:
        return (values.get(name) or [default])[-1]

    try:
        return Unit(
            name=file.name,
            description=one("Unit.Description", file.name),
            kind=one("Service.Type", "simple"),
            exec_start=tuple(values.get("Service.ExecStart", ())),
            exec_start_pre=tuple(values.get("Service.ExecStartPre", ())),
            environment=dict(_assignments(" ".join(values.get("Service.Environment", ())))),
            environment_files=tuple(values.get("Service.EnvironmentFile", ())),
            working_directory=one("Service.WorkingDirectory", "") or None,
            restart=one("Service.Restart", "no"),
            restart_seconds=seconds(one("Service.RestartSec", "100ms")),
            stop_seconds=seconds(one("Service.TimeoutStopSec", "90")),
            remain_after_exit=one("Service.RemainAfterExit", "no") in _YES,
            start_limit=int(one("Unit.StartLimitBurst", "5")),
            start_limit_seconds=seconds(one("Unit.StartLimitIntervalSec", "10")),
            wanted_by=tuple(" ".join(values.get("Install.WantedBy", ())).split()),
            ignored=tuple(sorted(set(values) - _HONOURED)),
        )
    except ValueError as error:
        raise UnitError(f"{file.name}: {error}") from error


def seconds(text: str) -> float:
    """Parse a systemd time span: `5`, `100ms`, `1min 30s`."""
    spans = _SPAN.findall(text)
    if not spans or _SPAN.sub("", text).strip() or any(unit and unit not in _SECONDS for _, unit in spans):
        raise UnitError(f"not a span of time: {text!r}")
    return sum(float(number) * _SECONDS[unit or "s"] for number, unit in spans)


def words(line: str, variables: Mapping[str, str]) -> list[str]:
    """Return the command of an Exec line, without systemd's prefixes and with variables expanded."""
    try:
        parts = shlex.split(line.lstrip("-@:+!"))
    except ValueError as error:
        raise UnitError(f"{line!r}: {error}") from error

    def fill_in(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else variables.get(found[1] or found[2], "")

    return [_VARIABLE.sub(fill_in, part) for part in parts]


def read_environment_file(text: str) -> dict[str, str]:
    """Return the variables in a file that `EnvironmentFile=` names."""
    lines = (line.strip() for line in text.splitlines())
    return dict(pair for line in lines if line and line[0] not in "#;" for pair in _assignments(line))


def _assignments(text: str) -> Iterator[tuple[str, str]]:
    for word in shlex.split(text):
        name, equals, value = word.partition("=")
        if equals:
            yield name, value


def _settings(text: str) -> Iterator[tuple[str, str]]:
    section = ""
    for raw in text.replace("\\\n", " ").splitlines():
        line = raw.strip()
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
        elif line and line[0] not in "#;":
            name, _, value = line.partition("=")
            yield f"{section}.{name.strip()}", value.strip()
