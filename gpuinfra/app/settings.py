"""The options that every command has."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gpuinfra.diagnostics import Code, Exit, Problem, problem
from gpuinfra.suggest import did_you_mean

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


def open_settings(
    *,
    json: bool = False,
    yes: bool = False,
    verbose: bool = False,
    sandbox: bool = False,
    workspace: Path | None = None,
    correlation_id: str,
    needs_state: bool = True,
) -> Settings:
    """Return the settings after checking the workspace: files from another user's project are not read or run.

    With `needs_state`, another user's `.gpuinfra` folder is a Problem. Commands that stop machines ignore it instead.
    """
    from gpuinfra.programs import secure_path
    from gpuinfra.workspace import check_links, check_owner

    settings = Settings(
        json=json,
        yes=yes,
        verbose=verbose,
        cloud="sandbox" if sandbox else _cloud_from_environment(),
        workspace=workspace or Path(os.environ.get("GPUINFRA_WORKSPACE") or "."),
        correlation_id=correlation_id,
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
