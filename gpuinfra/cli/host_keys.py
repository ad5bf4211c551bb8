"""Stops where a machine's host key in Azure is not the one that this computer knows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpuinfra.diagnostics import Code, Diagnostic, Problem

if TYPE_CHECKING:
    from gpuinfra.cli.options import Settings
    from gpuinfra.models.target import Target

KNOWN_HOSTS = "~/.gpuinfra/ssh/known_hosts"


def check_host_key(settings: Settings, target: Target) -> Target:
    """The target, if its host key is the known one or none is known; a Problem with both fingerprints otherwise.

    `up` writes the key of a machine that it has reached to the target's file, so that file is asked first.
    """
    from gpuinfra.workbench.targets import find_target
    from runner.machine.connection import HostKeyInvalid
    from runner.machine.host_key import HostKey
    from runner.openssh import host_alias, known_key

    # The name may come from a tag, which others can write: the usual one is looked for as well.
    names = (target.name, target.machine.replace("-", "_"))
    attached = next((found for name in names if (found := find_target(settings.workspace, name))), None)
    if attached and attached.host_key:
        known, forget = attached.host_key, "`gpuinfra up SPEC` writes the target again"
    else:
        known = known_key(_known_hosts(), target)
        forget = f"`ssh-keygen -R {host_alias(target)} -f {KNOWN_HOSTS}` forgets the old key"
    try:
        before, now = HostKey.parse(known) if known else None, HostKey.parse(target.host_key)
    except HostKeyInvalid:
        return target  # the caller reports an invalid key
    if before is None or before == now:
        return target
    raise Problem(
        Diagnostic(
            Code.OTHER_HOST_KEY,
            "the machine's host key has changed",
            note=f"`{target.machine}` was known by {before.fingerprint}; Azure now says {now.fingerprint}; "
            "nothing was sent to it",
            help=f"another machine may answer under this name; if you know that it was made again: {forget}",
        )
    )


def _known_hosts() -> str:
    try:
        return Path(KNOWN_HOSTS).expanduser().read_text("utf-8", "replace")
    except (OSError, RuntimeError):
        return ""
