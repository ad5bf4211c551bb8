"""An order as the files that each scheduler reads. Nothing is written here."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from gpuinfra.scheduling import quoting
from gpuinfra.scheduling.mark import marked
from gpuinfra.scheduling.order import Order
from gpuinfra.templates import read_template

SERVICE, TIMER = "gpuinfra-reap.service", "gpuinfra-reap.timer"
WORKFLOW, PIPELINE = ".github/workflows/gpuinfra.yml", "azure-pipelines-gpuinfra.yml"
# At full hours every schedule in the world begins, and GitHub is late with them.
# https://docs.github.com/actions/reference/events-that-trigger-workflows#schedule
QUIET_MINUTE = 7


class Scheduler(StrEnum):
    """Who keeps time."""

    CRON = "cron"
    SYSTEMD = "systemd"
    GITHUB_ACTIONS = "github-actions"
    AZURE_PIPELINES = "azure-pipelines"

    @property
    def in_repository(self) -> bool:
        """Whether it works on a checkout of its own, elsewhere."""
        return self in {Scheduler.GITHUB_ACTIONS, Scheduler.AZURE_PIPELINES}


# GitHub runs nothing more often than every five minutes; Azure Pipelines no more than a thousand times a week.
LEAST_MINUTES = {Scheduler.GITHUB_ACTIONS: 5, Scheduler.AZURE_PIPELINES: 12}


@dataclass(frozen=True)
class Rendered:
    """A file: where it belongs, below the folder that its reader looks in, and what is in it."""

    name: str
    text: str


def render(scheduler: Scheduler, order: Order) -> tuple[Rendered, ...]:
    """Every file that it takes."""
    makers: dict[Scheduler, Callable[[Order], dict[str, str]]] = {
        Scheduler.CRON: _crontab,
        Scheduler.SYSTEMD: _units,
        Scheduler.GITHUB_ACTIONS: _workflow,
        Scheduler.AZURE_PIPELINES: _pipeline,
    }
    return tuple(Rendered(name, marked(text)) for name, text in makers[scheduler](order).items())


def _crontab(order: Order) -> dict[str, str]:
    # An `sh` of its own: a crontab may set SHELL to anything.
    command = quoting.for_cron(shlex.quote(cron_script(order)))
    values = {"cron": order.every.cron(), "script": command, "environment_file": order.environment_file}
    return {"crontab": _fill("crontab", values)}


def cron_script(order: Order) -> str:
    """What cron runs. What is said is kept in memory, not in a file: a full disk must not keep machines on."""
    file = shlex.quote(order.environment_file)
    return (
        f"PATH={shlex.quote(order.search_path)}; export PATH; set -a; [ ! -r {file} ] || . {file}; set +a; "
        f'said=$({shlex.join(order.reap)} 2>&1) || {{ code=$?; printf "%s\\n" "$said"; exit $code; }}'
    )


def _units(order: Order) -> dict[str, str]:
    values = {
        "every": str(order.every),
        "calendar": order.every.calendar(),
        "environment_file": quoting.systemd_pattern(order.environment_file),
        "path": quoting.systemd_value(f"PATH={order.search_path}"),
        "command": quoting.for_systemd(order.reap),
    }
    return {name: _fill(name, values) for name in (SERVICE, TIMER)}


def _workflow(order: Order) -> dict[str, str]:
    return {WORKFLOW: _fill("github-actions.yml", _in_repository(order, WORKFLOW))}


def _pipeline(order: Order) -> dict[str, str]:
    more = {"branch": order.branch, "connection": order.connection}
    return {PIPELINE: _fill("azure-pipelines.yml", {**_in_repository(order, PIPELINE), **more})}


def _in_repository(order: Order, own: str) -> dict[str, str]:
    specs = order.specs or "."
    below = "" if specs == "." else f"{specs}/"
    watched = [own, f"{below}**/*.yaml", f"{below}**/*.yml"]
    return {
        "cron": order.every.cron(QUIET_MINUTE),
        "package": shlex.quote(order.package),
        "paths": "\n".join(f'      - "{path}"' for path in watched),
        "reap": shlex.join(order.reap),
        "validate": shlex.join(["gpuinfra", "validate", specs]),
        "plan": shlex.join(["gpuinfra", "plan", specs]),
    }


def _fill(template: str, values: dict[str, str]) -> str:
    """`@{name}`, for every other sign means something to one of the readers."""
    return re.sub(r"@\{(\w+)\}", lambda found: values[found[1]], read_template(f"schedule/{template}"))
