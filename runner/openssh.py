"""What OpenSSH's own `ssh` is told: command line, known hosts, configuration. Nothing is read or written here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpuinfra.models.target import Target
from runner.machine.host_key import HostKey

PROGRAM = "ssh"
_SECTION = re.compile(r"(?:host|match)[\s=]", re.IGNORECASE)


def command(target: Target, known_hosts: Path, words: Sequence[str]) -> list[str]:
    """The command line that logs in, or runs `words`, which the user's shell there reads as one line."""
    options = [part for name, value in _options(target, known_hosts) for part in ("-o", f"{name}={value}")]
    # After `--` nothing is taken for an option of ssh's, a command's own ones least of all.
    user = f"{target.username}@" if target.username else ""
    return [PROGRAM, *options, "-p", str(target.port), "--", f"{user}{target.address}", *words]


def host_alias(target: Target) -> str:
    """The name by which the machine is a known host, whatever its address is today. OpenSSH makes it lower case."""
    return f"gpuinfra-{target.machine}".lower()


def known_hosts_line(target: Target) -> str:
    """The machine as a known host."""
    return f"{host_alias(target)} {HostKey.parse(target.host_key)}"


def known_key(text: str, target: Target) -> str:
    """The key that a known-hosts file has for the machine; empty where it has none."""
    lines = (line.split(" ", 1) for line in text.splitlines())
    return next((words[1] for words in lines if len(words) == 2 and words[0] == host_alias(target)), "")


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
    return "\n".join([f"Host {target.machine}", *(f"    {name} {value}" for name, value in lines)]) + "\n"


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


def with_known_host(text: str, target: Target) -> str:
    """A known-hosts file in which the machine has one line, and everybody else what they had."""
    alias = host_alias(target)
    kept = [line for line in text.splitlines() if line.split(" ", 1)[0] != alias]
    return "\n".join([*kept, known_hosts_line(target)]) + "\n"


def with_config_block(text: str, target: Target, known_hosts: Path) -> str:
    """A configuration in which the machine has one block, and everybody else what they had."""
    ours = f"host {target.machine}".casefold()
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
