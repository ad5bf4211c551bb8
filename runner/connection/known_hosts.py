"""Host keys, and those that `up`, `attach` and `ssh` recorded on this computer, outside of any project."""

from __future__ import annotations

import base64
import contextlib
import hashlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from gpuinfra.models.target import Target
from gpuinfra.runner.errors import HostKeyChanged, HostKeyInvalid

# The signature algorithms of each key type, the best first; without SHA-1, which `ssh-rsa` itself uses.
ALGORITHMS = {
    "ssh-ed25519": ("ssh-ed25519",),
    "ecdsa-sha2-nistp256": ("ecdsa-sha2-nistp256",),
    "ecdsa-sha2-nistp384": ("ecdsa-sha2-nistp384",),
    "ecdsa-sha2-nistp521": ("ecdsa-sha2-nistp521",),
    "ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256"),
}


@dataclass(frozen=True, slots=True)
class HostKey:
    """The type of a key, and its bytes as SSH sends them."""

    kind: str
    blob: bytes

    @classmethod
    def parse(cls, text: str) -> HostKey:
        """Return the key of a text such as `ssh-ed25519 AAAA…`, with or without a comment, or raise HostKeyInvalid."""
        kind, _, rest = text.strip().partition(" ")
        try:
            blob = base64.b64decode(rest.split()[0], validate=True)
        except (IndexError, ValueError):  # ValueError also for a binascii.Error and for text that is not ASCII
            blob = b""
        # The bytes repeat the type; the key follows.
        prefix = len(kind).to_bytes(4, "big") + kind.encode()
        if kind not in ALGORITHMS or not blob.startswith(prefix) or len(blob) <= len(prefix):
            raise HostKeyInvalid(
                f"the machine's host key is `{text[:80]}`; expected a public key such as `ssh-ed25519 AAAA…`"
            )
        return cls(kind, blob)

    @property
    def algorithms(self) -> tuple[str, ...]:
        """The signature algorithms to offer, so that the machine shows this key and not another one."""
        return ALGORITHMS[self.kind]

    @property
    def fingerprint(self) -> str:
        """The fingerprint as `ssh-keygen -l` prints it."""
        return f"SHA256:{base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip('=')}"

    def __str__(self) -> str:
        return f"{self.kind} {base64.b64encode(self.blob).decode()}"


FOLDER = "~/.gpuinfra/ssh"
KNOWN_HOSTS = f"{FOLDER}/known_hosts"


def read_known_hosts() -> str:
    """Return the content of the known-hosts file that gpuinfra writes, or an empty string if there is none."""
    try:
        return Path(KNOWN_HOSTS).expanduser().read_text("utf-8", "replace")
    except (OSError, RuntimeError):  # RuntimeError: HOME is not set
        return ""


def recorded_keys(target: Target) -> list[KnownHost]:
    """Return the host keys that were recorded for the machine's name."""
    return known_keys(read_known_hosts(), target)


def check_known_key(
    target: Target, source: str = "its target file", known: Collection[HostKey] = (), accepted: str | None = None
) -> None:
    """Raise HostKeyChanged with both fingerprints if the target's host key is not a known one.

    The keys recorded for the machine's name decide. `known` counts only if there are none, or if their machines may not
    have been created. If the user accepted a key, or its fingerprint, only that one counts. `source` names the origin
    of the target's key in the message.
    """
    now = HostKey.parse(target.host_key)
    if accepted:
        if accepted.strip() not in {now.fingerprint, str(now)}:
            raise _changed(target, source, [accepted.strip()], now)
        return
    recorded = recorded_keys(target)
    expected = [each.key for each in recorded]
    if all(each.is_pending for each in recorded):
        expected += known
    if expected and now not in expected:
        raise _changed(target, source, [key.fingerprint for key in expected], now)


def _changed(target: Target, source: str, expected: Collection[str], now: HostKey) -> HostKeyChanged:
    before, shown = " or ".join(dict.fromkeys(expected)), now.fingerprint
    return HostKeyChanged(
        f"`{target.machine}` has the recorded host key {before}, but {source} now has {shown}; nothing was sent to it",
        "another machine may have this name. Accept the new key only if you know that the machine's key changed: "
        f"`gpuinfra up SPEC --host-key {shown}` for a machine with a spec, "
        f"`gpuinfra attach {quote(target.name)} … --host-key {shown}` for an attached one; "
        f"`ssh-keygen -R {host_alias(target)} -f {KNOWN_HOSTS}` removes all recorded keys of the name",
    )


def is_own_machine(target: Target) -> bool:
    """Return whether the user created this machine with `up` or attached it with `attach` on this computer."""
    return is_own_key(read_known_hosts(), target)


OWN = ("up:", "attach:")
PENDING = "#"
"""Follows the source of a key that a command recorded before it created the machine; the command's id comes next."""
SANDBOX = ".sandbox"


def host_name(target: Target) -> str:
    """Return the name for `ssh NAME`, which differs between a real machine and a simulated one of the same name."""
    return f"{target.machine}{SANDBOX}" if target.simulated else target.machine


def host_alias(target: Target) -> str:
    """Return the machine's name in known-hosts files, in lower case as OpenSSH needs it. Addresses may change."""
    return f"gpuinfra-{host_name(target)}".lower()


def known_hosts_line(target: Target, source: str = "") -> str:
    """Return the machine's line in a known-hosts file, with the command that recorded it as a comment."""
    return f"{host_alias(target)} {HostKey.parse(target.host_key)} {source}".rstrip()


@dataclass(frozen=True, slots=True)
class KnownHost:
    """A line of a known-hosts file."""

    alias: str
    key: HostKey
    source: str
    """The command that recorded the key, such as `up:SUBSCRIPTION/GROUP`; empty if only `ssh` did."""

    @property
    def is_pending(self) -> bool:
        """Whether the machine may not have been created."""
        return PENDING in self.source

    @property
    def is_own(self) -> bool:
        """Whether the user created or attached the machine."""
        return self.source.startswith(OWN)


def known_hosts(text: str) -> Iterator[KnownHost]:
    """Yield the hosts of a known-hosts file that gpuinfra wrote."""
    for line in text.splitlines():
        words = line.split(" ")
        if len(words) in {3, 4}:
            with contextlib.suppress(HostKeyInvalid):
                yield KnownHost(words[0], HostKey.parse(" ".join(words[1:3])), "".join(words[3:]))


def known_keys(text: str, target: Target) -> list[KnownHost]:
    """Return the lines for a machine that `up` or `attach` recorded, or all its lines if there are none.

    `-`, `_` and `.` are equal in names, because machines have only `-`.
    """
    alias = _with_hyphens(host_alias(target))
    found = [known for known in known_hosts(text) if _with_hyphens(known.alias) == alias]
    return [known for known in found if known.is_own] or found


def is_own_key(text: str, target: Target) -> bool:
    """Return whether `up` or `attach` recorded this host key under any name. The key identifies the machine."""
    try:
        key = HostKey.parse(target.host_key)
    except HostKeyInvalid:
        return False
    return any(known.key == key and known.is_own for known in known_hosts(text))


def with_known_host(text: str, target: Target, source: str = "") -> str:
    """Return a known-hosts file with a line for this machine.

    It replaces lines of the same source and lines without a source: two sources may have a machine of the same name.
    """
    line, alias = known_hosts_line(target, source), host_alias(target)
    lines = text.splitlines()
    if not source and any(each.startswith(f"{line} ") for each in lines):
        return text
    kept = [each for each in lines if not _is_recorded_by(each, alias, source) and not _is_recorded_by(each, alias, "")]
    return "\n".join([*kept, line]) + "\n"


def without_known_host(text: str, target: Target, source: str) -> str:
    """Return a known-hosts file without the lines that this source recorded for the machine and its targets."""
    alias, end = host_alias(target), f" {target_source(target, source)}"
    kept = [line for line in text.splitlines() if not _is_recorded_by(line, alias, source) and not line.endswith(end)]
    return "".join(f"{line}\n" for line in kept)


def target_source(target: Target, source: str) -> str:
    """Return the source of a key that was recorded for the name of the machine's target."""
    return f"{source}/{host_name(target)}".casefold()


def is_same_name(one: str, other: str) -> bool:
    """Return whether two names share their known keys: case is ignored, and `-`, `_` and `.` are equal."""
    return _with_hyphens(one).casefold() == _with_hyphens(other).casefold()


def _with_hyphens(name: str) -> str:
    plain = name.removesuffix(SANDBOX)
    return plain.replace("_", "-").replace(".", "-") + name[len(plain) :]


def _is_recorded_by(line: str, alias: str, source: str) -> bool:
    """Return whether this source recorded the line, including before it created the machine."""
    words = line.split(" ", 3)
    recorded = "".join(words[3:])
    return words[0] == alias and (recorded == source or (bool(source) and recorded.startswith(source + PENDING)))
