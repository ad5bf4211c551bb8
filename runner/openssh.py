"""What OpenSSH's own `ssh` is told: command line, known hosts, configuration. Nothing is read or written here."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuinfra.models.target import Target
from gpuinfra.runner.machine.connection import HostKeyInvalid
from gpuinfra.runner.machine.host_key import HostKey

PROGRAM = "ssh"
OWN = ("up:", "attach:")
PENDING = "#"
"""Behind the source of a key that a command recorded before it created the machine; a mark of that command follows."""
_SECTION = re.compile(r"(?:host|match)[\s=]", re.IGNORECASE)


def command(target: Target, known_hosts: Path, words: Sequence[str]) -> list[str]:
    """The command line that logs in, or runs `words`, which the user's shell there reads as one line."""
    options = [part for name, value in _options(target, known_hosts) for part in ("-o", f"{name}={value}")]
    # After `--` nothing is taken for an option of ssh's, a command's own ones least of all.
    user = f"{target.username}@" if target.username else ""
    return [PROGRAM, *options, "-p", str(target.port), "--", f"{user}{target.address}", *words]


def host_name(target: Target) -> str:
    """Return the name for `ssh NAME`. A simulated machine and a real one of the same name have different ones."""
    return f"{target.machine}.sandbox" if target.simulated else target.machine


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

    `-` and `_` are the same in names: targets use the latter.
    """
    alias = host_alias(target).replace("_", "-")
    found = [known for known in known_hosts(text) if known.alias.replace("_", "-") == alias]
    return [known for known in found if known.is_own] or found


def is_own_machine(text: str, target: Target) -> bool:
    """Whether `up` or `attach` recorded this host key, under any name: the key is what identifies a machine."""
    try:
        key = HostKey.parse(target.host_key)
    except HostKeyInvalid:
        return False
    return any(known.key == key and known.is_own for known in known_hosts(text))


def config_block(target: Target, known_hosts: Path) -> str:
    """What makes `ssh MACHINE` work, and everything that is built on it: scp, rsync, git, editors."""
    settings = {
        "HostName": target.address.replace("%", "%%"),
        "Port": str(target.port),
        # Left out, OpenSSH takes the user's own; without a value, it takes nothing at all any more.
        **({"User": _quoted(target.username)} if target.username else {}),
    }
    lines = [*settings.items(), *_options(target, known_hosts)]
    if not "".join([target.machine, *(value for _, value in lines)]).isprintable():
        raise ValueError("a line break in a value would be a line of its own, whatever it says")
    return "\n".join([f"Host {host_name(target)}", *(f"    {name} {value}" for name, value in lines)]) + "\n"


def standalone_block(target: Target) -> str:
    """A block that needs no other file: it brings the host key along, and no other key is taken."""
    line = known_hosts_line(target)
    # A command that OpenSSH runs itself, without a shell; neither names nor keys have anything in them to quote.
    command = f"    KnownHostsCommand /bin/echo {line}\n"
    return (
        "# For ~/.ssh/config. An OpenSSH before 8.5, or one on Windows, has no KnownHostsCommand: leave it out, put\n"
        "# the next line, without its #, into a file, and name that file after UserKnownHostsFile.\n"
        f"# {line}\n{config_block(target, Path('/dev/null'))}{command}"
    )


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
    """Whether two names have the same known keys: `-` and `_` are the same, as are capital letters."""
    return one.replace("_", "-").casefold() == other.replace("_", "-").casefold()


def _is_of(line: str, alias: str, source: str) -> bool:
    """Whether this source recorded the line, also before it created the machine."""
    words = line.split(" ", 3)
    recorded = "".join(words[3:])
    return words[0] == alias and (recorded == source or (bool(source) and recorded.startswith(source + PENDING)))


def with_config_block(text: str, target: Target, known_hosts: Path) -> str:
    """A configuration in which the machine has one block, and everybody else what they had."""
    ours = f"host {host_name(target)}".casefold()
    blocks = [block.strip("\n") for block in _blocks(text)]
    kept = [block for block in blocks if block and block.partition("\n")[0].strip().casefold() != ours]
    return "\n\n".join([*kept, config_block(target, known_hosts)])


def includes(text: str, file: Path, home: Path) -> bool:
    """Whether a user's configuration includes the file for every host: before the first `Host` or `Match`."""
    for line in text.splitlines():
        if _SECTION.match(line.strip()):
            return False
        name, *paths = re.split(r"[\s=]+", line.strip())
        named = [re.sub(r"^~(?=/)", str(home), path.strip('"')) for path in paths]
        # OpenSSH looks for a name without a folder beside the user's configuration.
        if name.lower() == "include" and str(file) in (str(home / ".ssh" / path) for path in named):
            return True
    return False


def _options(target: Target, known_hosts: Path) -> Iterator[tuple[str, str]]:
    if target.identity:
        # By an option and not by -i, which looks for the file before it has understood `%%`.
        yield "IdentityFile", _quoted(target.identity)
        yield "IdentitiesOnly", "yes"
    for more in target.more_identities:
        yield "IdentityFile", _quoted(more)
    yield "HostKeyAlias", host_alias(target)
    yield "HostKeyAlgorithms", ",".join(HostKey.parse(target.host_key).algorithms)
    yield "UserKnownHostsFile", _quoted(str(known_hosts))
    yield "StrictHostKeyChecking", "yes"


def _quoted(path: str) -> str:
    """A path as `ssh_config` reads it: `%` begins a token, and a space ends the value."""
    path = path.replace("%", "%%")
    if not re.search(r"[\s\"'#\\]", path):
        return path
    return '"{}"'.format(path.replace("\\", "\\\\").replace('"', '\\"'))


def _blocks(text: str) -> Iterator[str]:
    block: list[str] = []
    for line in text.splitlines():
        if _SECTION.match(line.strip()) and block:
            yield "\n".join(block)
            block = []
        block.append(line)
    yield "\n".join(block)
