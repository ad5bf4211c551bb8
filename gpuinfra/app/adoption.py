"""Asks before `up --adopt` takes back a machine that has lost its tags."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gpuinfra.app.settings import Settings
from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem
from gpuinfra.models.events import Question

if TYPE_CHECKING:
    from gpuinfra.app.frontend import Frontend
    from gpuinfra.models.resource import Ref
    from gpuinfra.models.spec import Spec


def consent_to_adopt(settings: Settings, spec: Spec, progress: Frontend) -> Callable[[Sequence[Ref]], None]:
    """What is asked with the resources that would get our tags; it raises a Problem where the answer is no."""

    def consent(refs: Sequence[Ref]) -> None:
        if settings.yes:
            return
        names = ", ".join(str(ref) for ref in refs)
        question = Question(
            f"Is this the machine {spec.name}, made by gpuinfra? Put its tags back?",
            details=f"in group {spec.group_name}, without tags: {names}",
        )
        if progress.can_ask and progress.confirm(question):
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
