"""Whether everything is there that machines need, and that switches them off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuinfra.app.settings import Settings
from gpuinfra.diagnostics import Code, Problem

if TYPE_CHECKING:
    from gpuinfra.app.frontend import Frontend
    from gpuinfra.load.spec import Located
    from gpuinfra.models.checks import Check, Examination

SECONDS = 120.0
"""For everything, including the waits that Azure asks for."""


def examine(settings: Settings, names: Sequence[str], progress: Frontend) -> Examination:
    """Check the account, this computer, and the machines with these names; all machines without a name."""
    from gpuinfra.app.doctor_account import account
    from gpuinfra.app.doctor_machines import machines
    from gpuinfra.app.machines import common_subscription, reach
    from gpuinfra.models.checks import Examination, Verdict, problem

    specs, here = _specs(settings)
    here += _keys(settings, specs)
    try:
        reached = reach(settings, common_subscription(specs), SECONDS, progress)
    except Problem as error:
        (diagnostic, *_) = error.diagnostics
        return Examination((problem("login", f"{diagnostic.summary}: {diagnostic.note}", diagnostic.help), *here))
    simulated = reached.cloud.simulated
    progress.begin("doctor", "looking at the subscription")
    checks = (*account(reached), *here)
    if checks[0].verdict is Verdict.PROBLEM:  # nobody who has no login can look at machines
        progress.fail("doctor", "no login")
        return Examination(checks, simulated=simulated)
    progress.begin("doctor", "looking at machines")
    found = machines(reached, names, specs)
    progress.end("doctor", "looked")
    return Examination(checks, found, simulated=simulated)


def _specs(settings: Settings) -> tuple[list[Located], list[Check]]:
    """The workspace's specs, and a check where some cannot be read."""
    from gpuinfra.load.files import load_paths
    from gpuinfra.models.checks import warning
    from gpuinfra.workspace import find_workspace

    workspace = find_workspace(settings.workspace)
    loaded = load_paths([str(workspace)])
    bad = [each for each in loaded.diagnostics if each.code is not Code.NO_SPEC_FOUND]
    if not bad:
        return loaded.specs, []
    counted = "1 problem" if len(bad) == 1 else f"{len(bad)} problems"
    return loaded.specs, [
        warning("specs", f"{counted} in the workspace", f"`gpuinfra validate {workspace}` shows more")
    ]


def _keys(settings: Settings, specs: Sequence[Located]) -> list[Check]:
    """The SSH keys that machines are made with: those of the specs, or the one that a spec has if it names none."""
    from gpuinfra.models.checks import ok, problem, warning
    from gpuinfra.models.keys import lacks_key
    from gpuinfra.models.spec import Admin
    from gpuinfra.provision.login.public_key import read_public_key
    from gpuinfra.workspace import find_workspace

    wanted = list(dict.fromkeys(located.spec.admin.key() for located in specs))
    checks = []
    for key in wanted or [Admin().key()]:
        if lacks_key(key):
            checks.append(warning("ssh-key", "there is no SSH key yet", "`gpuinfra up` offers to create one"))
            continue
        shown = " ".join(key.split()[:1]) if len(key.split()) > 1 else key
        try:
            read_public_key(key, find_workspace(settings.workspace))
        except Problem as error:
            (diagnostic,) = error.diagnostics
            # Without a spec nobody has asked for this key yet.
            checks.append((problem if wanted else warning)("ssh-key", str(diagnostic.note), diagnostic.help))
        else:
            checks.append(ok("ssh-key", f"{shown} is there"))
    return checks
