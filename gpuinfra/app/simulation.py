"""Keep simulated targets, in the sandbox, apart from real ones."""

from __future__ import annotations

import os
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from gpuinfra.app.settings import Settings
from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem
from gpuinfra.models.events import Question

if TYPE_CHECKING:
    from gpuinfra.app.frontend import Frontend
    from gpuinfra.models.target import Target


def is_simulated(settings: Settings) -> bool:
    """Return whether this command uses the sandbox."""
    from gpuinfra.provision.azure.access import is_local

    return settings.cloud == "sandbox" or is_local(os.environ)


def check_target(settings: Settings, target: Target) -> None:
    """Raise Problem if a real command would use a simulated machine, or a sandbox command a real one."""
    if not target.address or target.simulated == is_simulated(settings):
        return
    if target.simulated:
        note = f"`{target.name}` is a simulated machine of the embedded Azure, and this command is for real ones"
        help_line = (
            f"to use it, add `--sandbox`; for a real machine of this name, `gpuinfra detach {quote(target.name)}` first"
        )
    else:
        note = f"`{target.name}` is a real machine, and this command is for the embedded Azure"
        help_line = "to use it, leave out `--sandbox`, and unset GPUINFRA_CLOUD and GPUINFRA_ARM_ENDPOINT"
    diagnostic = Diagnostic(Code.WRONG_CLOUD, "target of another cloud", note=note, help=help_line)
    raise Problem(diagnostic, exit_code=Exit.USAGE)


def consent_to_replace(settings: Settings, workspace: Path, name: str, frontend: Frontend, *, simulated: bool) -> None:
    """Ask before a simulated target replaces a real one, or the reverse. Without a terminal, it needs `--yes`."""
    from gpuinfra.workbench.targets import find_target

    before = find_target(workspace, name)
    # A target without a host key was never used by gpuinfra: perhaps a Workbench file whose machine is long gone.
    if before is None or not (before.address and before.host_key) or before.simulated == simulated or settings.yes:
        return
    old, new = ("simulated", "real") if before.simulated else ("real", "simulated")
    question = Question(f"Replace the {old} target {name} ({before.address}) by a {new} one?")
    if frontend.can_ask and frontend.confirm(question):
        return
    raise Problem(
        Diagnostic(
            Code.NEEDS_CONSENT,
            "this would replace a target",
            note=f"`{name}` is a {old} machine at {before.address}, and would become a {new} one; nothing was changed",
            help="choose another name (`target.name` in a spec), or give `--yes` to replace it",
        ),
        exit_code=Exit.USAGE,
    )
