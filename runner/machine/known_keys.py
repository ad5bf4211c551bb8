"""The host keys that this computer knows: what `up`, `attach` and `ssh` recorded, outside of any project."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from gpuinfra.models.target import Target
from gpuinfra.runner import openssh
from gpuinfra.runner.machine.connection import HostKeyChanged
from gpuinfra.runner.machine.host_key import HostKey

FOLDER = "~/.gpuinfra/ssh"
KNOWN_HOSTS = f"{FOLDER}/known_hosts"


def read_known_hosts() -> str:
    """Return the user's known-hosts file of gpuinfra; empty if there is none."""
    try:
        return Path(KNOWN_HOSTS).expanduser().read_text("utf-8", "replace")
    except (OSError, RuntimeError):  # RuntimeError: HOME is not set
        return ""


def recorded_keys(target: Target) -> list[openssh.KnownHost]:
    """Return the host keys that were recorded for the machine's name."""
    return openssh.known_keys(read_known_hosts(), target)


def check_known_key(
    target: Target, says: str = "its target file", known: Collection[HostKey] = (), accepted: str | None = None
) -> None:
    """Raise HostKeyChanged with both fingerprints if the target's host key is not a known one.

    Keys that were recorded for the machine's name decide. `known` counts only where there are none, or only those of
    machines that may not have been created. A key that the user accepted, or its fingerprint, decides alone.
    """
    now = HostKey.parse(target.host_key)
    if accepted:
        if accepted.strip() not in {now.fingerprint, str(now)}:
            raise _changed(target, says, [accepted.strip()], now)
        return
    recorded = recorded_keys(target)
    expected = [each.key for each in recorded]
    if all(each.is_pending for each in recorded):
        expected += known
    if expected and now not in expected:
        raise _changed(target, says, [key.fingerprint for key in expected], now)


def _changed(target: Target, says: str, expected: Collection[str], now: HostKey) -> HostKeyChanged:
    before, shown = " or ".join(dict.fromkeys(expected)), now.fingerprint
    return HostKeyChanged(
        f"`{target.machine}` is expected with {before}; {says} now says {shown}; nothing was sent to it",
        "another machine may answer under this name. Only if you know that it has a new key, accept it: "
        f"`gpuinfra up SPEC --host-key {shown}` for a machine of a spec, "
        f"`gpuinfra attach {target.name} … --host-key {shown}` for another one; "
        f"`ssh-keygen -R {openssh.host_alias(target)} -f {KNOWN_HOSTS}` forgets all keys of the name",
    )


def is_own_machine(target: Target) -> bool:
    """Whether the user created this machine with `up` or attached it with `attach` on this computer."""
    return openssh.is_own_machine(read_known_hosts(), target)
