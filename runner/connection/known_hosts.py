"""The host keys that this computer knows: what `up`, `attach` and `ssh` recorded, outside of any project."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from gpuinfra.models.target import Target
from gpuinfra.runner.connection.host_key import HostKey
from gpuinfra.runner.errors import HostKeyChanged, HostKeyInvalid

FOLDER = "~/.gpuinfra/ssh"
KNOWN_HOSTS = f"{FOLDER}/known_hosts"


def read_known_hosts() -> str:
    """Return the user's known-hosts file of gpuinfra; empty if there is none."""
    try:
        return Path(KNOWN_HOSTS).expanduser().read_text("utf-8", "replace")
    except (OSError, RuntimeError):  # RuntimeError: HOME is not set
        return ""


def recorded_keys(target: Target) -> list[KnownHost]:
    """Return the host keys that were recorded for the machine's name."""
    return known_keys(read_known_hosts(), target)


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
        f"`gpuinfra attach {quote(target.name)} … --host-key {shown}` for another one; "
        f"`ssh-keygen -R {host_alias(target)} -f {KNOWN_HOSTS}` forgets all keys of the name",
    )


def is_own_machine(target: Target) -> bool:
    """Whether the user created this machine with `up` or attached it with `attach` on this computer."""
    return is_own_key(read_known_hosts(), target)


OWN = ("up:", "attach:")
PENDING = "#"
"""Behind the source of a key that a command recorded before it created the machine; a mark of that command follows."""


SANDBOX = ".sandbox"


def host_name(target: Target) -> str:
    """Return the name for `ssh NAME`. A simulated machine and a real one of the same name have different ones."""
    return f"{target.machine}{SANDBOX}" if target.simulated else target.machine


def host_alias(target: Target) -> str:
    """The name by which the machine is a known host, whatever its address is today. OpenSSH makes it lower case."""
    return f"gpuinfra-{host_name(target)}".lower()


def known_hosts_line(target: Target, source: str = "") -> str:
    """The machine as a known host; with the command that recorded it, if any, as the line's comment."""
    return f"{host_alias(target)} {HostKey.parse(target.host_key)} {source}".rstrip()


@dataclass(frozen=True, slots=True)
class KnownHost:
    """A line of a known-hosts file."""

    alias: str
    key: HostKey
    source: str
    """The command of the user that recorded the key, as `up:SUBSCRIPTION/GROUP`; empty if only `ssh` met it."""

    @property
    def is_pending(self) -> bool:
        """Whether the machine may not have been created."""
        return PENDING in self.source

    @property
    def is_own(self) -> bool:
        """Whether the user created or attached the machine."""
        return self.source.startswith(OWN)


def known_hosts(text: str) -> Iterator[KnownHost]:
    """Yield the lines of a known-hosts file that gpuinfra wrote."""
    for line in text.splitlines():
        words = line.split(" ")
        if len(words) in {3, 4}:
            with contextlib.suppress(HostKeyInvalid):
                yield KnownHost(words[0], HostKey.parse(" ".join(words[1:3])), "".join(words[3:]))


def known_keys(text: str, target: Target) -> list[KnownHost]:
    """Return what a known-hosts file has for a machine: the lines that `up` or `attach` recorded, or else all.

    `-`, `_` and `.` are the same in names: machines have only the first.
    """
    alias = _with_hyphens(host_alias(target))
    found = [known for known in known_hosts(text) if _with_hyphens(known.alias) == alias]
    return [known for known in found if known.is_own] or found


def is_own_key(text: str, target: Target) -> bool:
    """Whether `up` or `attach` recorded this host key, under any name: the key is what identifies a machine."""
    try:
        key = HostKey.parse(target.host_key)
    except HostKeyInvalid:
        return False
    return any(known.key == key and known.is_own for known in known_hosts(text))


def with_known_host(text: str, target: Target, source: str = "") -> str:
    """Return a known-hosts file with this machine in it.

    Two machines of one name may come from two sources: a line is replaced only by the source that recorded it, and a
    line without a source by any.
    """
    line, alias = known_hosts_line(target, source), host_alias(target)
    lines = text.splitlines()
    if not source and any(each.startswith(f"{line} ") for each in lines):
        return text
    kept = [each for each in lines if not _is_of(each, alias, source) and not _is_of(each, alias, "")]
    return "\n".join([*kept, line]) + "\n"


def without_known_host(text: str, target: Target, source: str) -> str:
    """Return a known-hosts file without the lines of this machine, and of its targets, that this source recorded."""
    alias, end = host_alias(target), f" {target_source(target, source)}"
    kept = [line for line in text.splitlines() if not _is_of(line, alias, source) and not line.endswith(end)]
    return "".join(f"{line}\n" for line in kept)


def target_source(target: Target, source: str) -> str:
    """Return how a key is marked that this source recorded for the name of the machine's target."""
    return f"{source}/{host_name(target)}".casefold()


def is_same_name(one: str, other: str) -> bool:
    """Whether two names have the same known keys: `-`, `_` and `.` are the same, as are capital letters."""
    return _with_hyphens(one).casefold() == _with_hyphens(other).casefold()


def _with_hyphens(name: str) -> str:
    plain = name.removesuffix(SANDBOX)
    return plain.replace("_", "-").replace(".", "-") + name[len(plain) :]


def _is_of(line: str, alias: str, source: str) -> bool:
    """Whether this source recorded the line, also before it created the machine."""
    words = line.split(" ", 3)
    recorded = "".join(words[3:])
    return words[0] == alias and (recorded == source or (bool(source) and recorded.startswith(source + PENDING)))
