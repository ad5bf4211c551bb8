"""Asks before `up --adopt` takes back a machine that has lost its tags."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import typer

from gpuinfra.app.settings import Settings
from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem
from gpuinfra.views.terminal import harmless, messages

if TYPE_CHECKING:
    from gpuinfra.models.resource import Ref
    from gpuinfra.models.spec import Spec
    from gpuinfra.views.progress import ProgressView


def consent_to_adopt(settings: Settings, spec: Spec, progress: ProgressView) -> Callable[[Sequence[Ref]], None]:
    """What is asked with the resources that would get our tags; it raises a Problem where the answer is no."""

    def consent(refs: Sequence[Ref]) -> None:
        if settings.yes:
            return
        names = ", ".join(str(ref) for ref in refs)
        if sys.stdin.isatty() and not settings.json:
            with progress.paused():
                messages().print(f"in group {harmless(spec.group_name)}, without tags: {harmless(names)}")
                if typer.confirm(f"Is this the machine {spec.name}, made by gpuinfra? Put its tags back?", err=True):
                    return
        raise Problem(
            Diagnostic(
                Code.NEEDS_CONSENT,
                "this would adopt a machine",
                note=f"in group `{spec.group_name}`, without tags: {names}; nothing was changed",
                help="if gpuinfra made it for this spec, give `--yes`",
            ),
            exit_code=Exit.USAGE,
        )

    return consent


def known_host_key(settings: Settings, spec: Spec) -> str:
    """The host key in the files of the machine's target; empty where there is none."""
    from gpuinfra.workbench.targets import find_target

    found = find_target(settings.workspace, spec.target_name)
    return found.host_key if found else ""
