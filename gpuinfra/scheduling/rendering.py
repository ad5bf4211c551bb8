"""Render a schedule as the files of each scheduler, and describe what `install` did."""

import hashlib
import re
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from gpuinfra.scheduling.schedule import ReapSchedule
from gpuinfra.templates import read_template

SERVICE, TIMER, FAILURE = "gpuinfra-reap.service", "gpuinfra-reap.timer", "gpuinfra-reap-failure.service"
UNITS = (SERVICE, TIMER, FAILURE)
# Without a command, the journal has a line with the priority of an error.
_REPORT = (
    'if [ -n "$GPUINFRA_ON_FAILURE" ]; '
    f'then journalctl --user --unit {SERVICE} --lines 50 --no-pager | sh -c "$GPUINFRA_ON_FAILURE"; '
    'else echo "<3>A scheduled reap failed, so machines may be billed; no GPUINFRA_ON_FAILURE is set"; fi'
)
WORKFLOW, PIPELINE = ".github/workflows/gpuinfra.yml", "azure-pipelines-gpuinfra.yml"
# GitHub delays jobs at full hours, when most schedules start.
# https://docs.github.com/actions/reference/events-that-trigger-workflows#schedule
QUIET_MINUTE = 7


class Scheduler(StrEnum):
    """A program that runs `gpuinfra reap` regularly."""

    CRON = "cron"
    SYSTEMD = "systemd"
    GITHUB_ACTIONS = "github-actions"
    AZURE_PIPELINES = "azure-pipelines"

    @property
    def in_repository(self) -> bool:
        """Whether it runs in a CI system, with its own checkout."""
        return self in {Scheduler.GITHUB_ACTIONS, Scheduler.AZURE_PIPELINES}


# GitHub runs at most every five minutes, Azure Pipelines at most a thousand times a week.
MIN_MINUTES = {Scheduler.GITHUB_ACTIONS: 5, Scheduler.AZURE_PIPELINES: 12}


@dataclass(frozen=True)
class RenderedFile:
    """A file: its path below the scheduler's folder, and its content."""

    name: str
    text: str


def render(scheduler: Scheduler, schedule: ReapSchedule) -> tuple[RenderedFile, ...]:
    """Return all files for a scheduler."""
    makers: dict[Scheduler, Callable[[ReapSchedule], dict[str, str]]] = {
        Scheduler.CRON: _crontab,
        Scheduler.SYSTEMD: _units,
        Scheduler.GITHUB_ACTIONS: _workflow,
        Scheduler.AZURE_PIPELINES: _pipeline,
    }
    return tuple(RenderedFile(name, marked(text)) for name, text in makers[scheduler](schedule).items())


def _crontab(schedule: ReapSchedule) -> dict[str, str]:
    # Use `sh` explicitly: a crontab may set another SHELL.
    command = quote_for_cron(shlex.quote(cron_script(schedule)))
    values = {"cron": schedule.every.cron(), "script": command, "environment_file": schedule.environment_file}
    return {"crontab": _fill("crontab", values)}


def cron_script(schedule: ReapSchedule) -> str:
    """Return the script for cron. It keeps output in memory: a full disk must not keep machines on."""
    file = shlex.quote(schedule.environment_file)
    return (
        f"PATH={shlex.quote(schedule.search_path)}; export PATH; set -a; [ ! -r {file} ] || . {file}; set +a; "
        f'said=$({shlex.join(schedule.reap)} 2>&1) || {{ code=$?; printf "%s\\n" "$said"; '
        '[ -z "$GPUINFRA_ON_FAILURE" ] || printf "%s\\n" "$said" | sh -c "$GPUINFRA_ON_FAILURE"; exit $code; }'
    )


def _units(schedule: ReapSchedule) -> dict[str, str]:
    values = {
        "every": str(schedule.every),
        "calendar": schedule.every.calendar(),
        "environment_file": systemd_pattern(schedule.environment_file),
        "path": systemd_value(f"PATH={schedule.search_path}"),
        "command": quote_for_systemd(schedule.reap),
        "report": quote_for_systemd(["/bin/sh", _REPORT]).partition(" ")[2],
    }
    return {name: _fill(name, values) for name in UNITS}


def _workflow(schedule: ReapSchedule) -> dict[str, str]:
    return {WORKFLOW: _fill("github-actions.yml", _in_repository(schedule, WORKFLOW))}


def _pipeline(schedule: ReapSchedule) -> dict[str, str]:
    more = {
        "branch": schedule.branch,
        "connection": schedule.connection,
        "plan_connection": schedule.plan_connection,
    }
    return {PIPELINE: _fill("azure-pipelines.yml", {**_in_repository(schedule, PIPELINE), **more})}


def _in_repository(schedule: ReapSchedule, own: str) -> dict[str, str]:
    specs = schedule.specs or "."
    below = "" if specs == "." else f"{specs}/"
    # A spec's holidays can be in a text file.
    watched = [own, *(f"{below}**/*.{suffix}" for suffix in ("yaml", "yml", "txt"))]
    return {
        "cron": schedule.every.cron(QUIET_MINUTE),
        "package": shlex.quote(schedule.package),
        "paths": "\n".join(f'      - "{path}"' for path in watched),
        "reap": shlex.join(schedule.reap),
        "validate": shlex.join(["gpuinfra", "validate", specs]),
        "plan": shlex.join(["gpuinfra", "plan", specs]),
    }


def _fill(template: str, values: dict[str, str]) -> str:
    """Fill in `@{name}`. All other markers have a meaning in one of the formats."""
    return re.sub(r"@\{(\w+)\}", lambda found: values[found[1]], read_template(f"schedule/{template}"))


_LINE = re.compile(r"# Made by `gpuinfra schedule` \(([0-9a-f]{16})\)\..*")


def marked(text: str) -> str:
    """Return the text with a first line that has its digest."""
    return (
        f"# Made by `gpuinfra schedule` ({_digest(text)}). If you change this file, it asks before overwriting.\n{text}"
    )


def is_untouched(text: str) -> bool:
    """Return whether the text is unchanged since gpuinfra wrote it."""
    first, _, rest = text.partition("\n")
    found = _LINE.fullmatch(first)
    return found is not None and found[1] == _digest(rest)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def quote_for_cron(command: str) -> str:
    """Quote a command for a crontab, where `%` ends the line."""
    return command.replace("%", r"\%")


def quote_for_systemd(words: Iterable[str]) -> str:
    """Quote words for `ExecStart=`. Variables are expanded in all but the first."""
    program, *arguments = words
    return " ".join([_quoted(program), *(_quoted(word.replace("$", "$$")) for word in arguments)])


def systemd_value(text: str) -> str:
    """Quote a value for `Environment=`."""
    return _quoted(text)


def systemd_pattern(path: str) -> str:
    """Escape a path for `EnvironmentFile=`, which has no quotes and expands patterns."""
    return re.sub(r"([\\*?\[\]])", r"\\\1", path.replace("%", "%%"))


def _quoted(word: str) -> str:
    escaped = word.replace("%", "%%").replace("\\", "\\\\").replace('"', '\\"')
    return escaped if re.fullmatch(r"[A-Za-z0-9_./:=@%+,-]+", escaped) else f'"{escaped}"'


CRONTAB = "your crontab"


@dataclass(frozen=True)
class ScheduleOutcome:
    """What was written, left or removed, and what the user must do."""

    scheduler: Scheduler
    written: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    active: bool | None = None
    """Whether the schedule is active; None if unknown."""
    left: tuple[str, ...] = ()
    reason: str | None = None
