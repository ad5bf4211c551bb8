"""The options that every command has, and the values of options."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gpuinfra.diagnostics import Code, Exit, Problem, did_you_mean, problem

if TYPE_CHECKING:
    from gpuinfra.provision.waiting import Interrupt

CLOUDS = ("azure", "sandbox")


@dataclass(frozen=True)
class Settings:
    """The options of one command or API call."""

    json: bool
    yes: bool
    verbose: bool
    cloud: Literal["azure", "sandbox"]
    workspace: Path
    correlation_id: str
    is_found: bool = False
    """Whether the workspace was found from the current folder: neither an option nor a variable names it."""
    ignores_state: bool = False
    """Whether `.gpuinfra` belongs to another user: it is neither read nor written."""
    interrupt: Interrupt | None = None
    """Ends the waits of all machines of a command; None if each cloud session has its own."""

    @property
    def folder(self) -> Path:
        """The workspace's folder. Raise Problem if it does not exist."""
        from gpuinfra.workspace import find_workspace

        return find_workspace(self.workspace)

    @property
    def state(self) -> Path:
        """The folder with the workspace's records of machines and runs."""
        from gpuinfra.workspace import STATE

        # Nothing can exist below a device, so nothing is read.
        return (Path(os.devnull) if self.ignores_state else self.folder) / STATE


def open_settings(  # noqa: PLR0913 options are passed by name
    *,
    json: bool = False,
    yes: bool = False,
    verbose: bool = False,
    sandbox: bool = False,
    workspace: Path | None = None,
    correlation_id: str,
    needs_state: bool = True,
    searches: bool = True,
) -> Settings:
    """Return the settings after checking the workspace: files from another user's project are not read or run.

    With `needs_state`, another user's `.gpuinfra` folder is a Problem. Commands that stop machines ignore it instead.
    Without `searches`, the workspace is the current folder unless it is given.
    """
    from gpuinfra.app.workspace_search import workspace_above
    from gpuinfra.programs import secure_path
    from gpuinfra.workspace import check_links, check_owner

    variable = os.environ.get("GPUINFRA_WORKSPACE")
    given = workspace or (Path(variable) if variable else None)
    settings = Settings(
        json=json,
        yes=yes,
        verbose=verbose,
        cloud="sandbox" if sandbox else _cloud_from_environment(),
        workspace=given or (workspace_above(Path()) if searches else Path()),
        correlation_id=correlation_id,
        is_found=given is None,
    )
    secure_path(settings.workspace)
    try:
        check_links(settings.workspace)
        check_owner(settings.workspace)
    except Problem:
        if needs_state:
            raise
        return replace(settings, ignores_state=True)
    return settings


def _cloud_from_environment() -> Literal["azure", "sandbox"]:
    match os.environ.get("GPUINFRA_CLOUD", ""):
        case "sandbox":
            return "sandbox"
        case "" | "azure":
            return "azure"
        case other:
            raise problem(
                Code.USAGE,
                "unknown cloud",
                f"GPUINFRA_CLOUD is `{other}`; it can be `azure` or `sandbox`",
                did_you_mean(other, CLOUDS),
                exit_code=Exit.USAGE,
            )


_SECONDS = re.compile(r"([0-9]{1,5})s")
_ZERO = re.compile("0[smhd]?")


def require(check: Callable[[str], None], value: str | None, shown: str, command: str) -> None:
    """Raise Problem if a value breaks a spec's rule. `shown` is the value as given; `command` is named in the help."""
    from pydantic_core import PydanticCustomError

    if value is None:
        return
    try:
        check(value)
    except PydanticCustomError as error:
        words = error.context or {}
        note, help_line = f"`{shown}`: {words['label']}", words["help"] or f"`gpuinfra {command} --help` shows how"
        raise problem(Code(error.type), words["summary"], note, help_line, exit_code=Exit.USAGE) from None


def short_seconds_of(option: str, text: str) -> float:
    """Return the seconds in a text like `30s`, or in a duration as in specs."""
    found = _SECONDS.fullmatch(text)
    return float(found[1]) if found else seconds_of(option, text)


def grace_of(text: str) -> float:
    """Return the seconds in `--grace`; `0m` means none."""
    return 0.0 if _ZERO.fullmatch(text) else short_seconds_of("--grace", text)


def seconds_of(option: str, text: str) -> float:
    """Return the seconds in a duration like `45m`. Raise Problem if it is invalid."""
    from pydantic_core import PydanticCustomError

    from gpuinfra.models.base import parse_duration

    try:
        return parse_duration(text).total_seconds()
    except PydanticCustomError as error:
        reason = (error.context or {}).get("label", "not a valid duration")
        note, help_line = f"`{option} {text}`: {reason}", "for example `20m`, `1h30m`"
        raise problem(Code.USAGE, "invalid duration", note, help_line, exit_code=Exit.USAGE) from None
