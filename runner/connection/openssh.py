"""OpenSSH's own `ssh`: its command line, and the files that it reads about our machines."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gpuinfra.models.target import Target
from gpuinfra.runner.connection.host_key import HostKey
from gpuinfra.runner.connection.known_hosts import (
    host_alias,
    host_name,
    known_hosts_line,
    with_known_host,
    without_known_host,
)

PROGRAM = "ssh"
_SECTION = re.compile(r"(?:host|match)[\s=]", re.IGNORECASE)


def command(target: Target, known_hosts: Path, words: Sequence[str]) -> list[str]:
    """The command line that logs in, or runs `words`, which the user's shell there reads as one line."""
    options = [part for name, value in _options(target, known_hosts) for part in ("-o", f"{name}={value}")]
    # After `--` nothing is taken for an option of ssh's, a command's own ones least of all.
    user = f"{target.username}@" if target.username else ""
    return [PROGRAM, *options, "-p", str(target.port), "--", f"{user}{target.address}", *words]


def config_block(target: Target, known_hosts: Path) -> str:
    """What makes `ssh MACHINE` work, and everything that is built on it: scp, rsync, git, editors."""
    settings = {
        "HostName": target.address.replace("%", "%%"),
        "Port": str(target.port),
        # Left out, OpenSSH takes the user's own; an empty value is an error.
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


def with_config_block(text: str, target: Target, known_hosts: Path) -> str:
    """Return a configuration in which the machine has one block; other blocks are kept."""
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
        # OpenSSH looks for a name without a folder next to the user's configuration.
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


class SshFiles:
    """`known_hosts` and `config` in a folder that only the user can read. Nothing secret is in them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known_hosts, self.config = folder / "known_hosts", folder / "config"

    def remember(self, target: Target, source: str = "") -> list[Path]:
        """Make the machine a known host, recorded by this source; which files that has changed."""
        with self._alone():
            return self._rewrite(self.known_hosts, lambda text: with_known_host(text, target, source))

    def forget(self, target: Target, source: str) -> None:
        """Remove the line that this source recorded for the machine, if there is one."""
        if self.known_hosts.exists():
            with self._alone():
                self._rewrite(self.known_hosts, lambda text: without_known_host(text, target, source))

    def configure(self, target: Target) -> list[Path]:
        """Give the machine a name for `ssh`; which files that has changed."""
        changed = self.remember(target)
        with self._alone():
            return changed + self._rewrite(self.config, lambda text: with_config_block(text, target, self.known_hosts))

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Two commands at once must not each write what it alone has read."""
        self.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self.folder.chmod(0o700)
        lock = os.open(self.folder / ".lock", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # held for as long as a small file takes to write
            yield
        finally:
            os.close(lock)

    def _rewrite(self, file: Path, change: Callable[[str], str]) -> list[Path]:
        try:
            # The content of others is kept as it is, in any encoding.
            old = file.read_text("utf-8", "surrogateescape")
        except FileNotFoundError:
            old = ""
        new = change(old)
        if new == old:
            file.chmod(0o600)
            return []
        descriptor, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape", newline="\n") as stream:
                stream.write(new)
                stream.flush()
                os.fsync(stream.fileno())
            Path(name).replace(file)
        finally:
            with contextlib.suppress(FileNotFoundError):
                Path(name).unlink()
        return [file]
