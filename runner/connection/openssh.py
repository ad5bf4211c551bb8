"""The command line of OpenSSH's `ssh`, and the configuration and known-hosts files that gpuinfra writes for it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gpuinfra.models.target import Target
from gpuinfra.runner.connection.known_hosts import (
    HostKey,
    host_alias,
    host_name,
    known_hosts_line,
    with_known_host,
    without_known_host,
)

PROGRAM, COPY = "ssh", "scp"
_SECTION = re.compile(r"(?:host|match)[\s=]", re.IGNORECASE)


def command(target: Target, known_hosts: Path, arguments: Sequence[str], *, terminal: bool = False) -> list[str]:
    """Return the command line that logs in, or that runs `arguments` as one line in the user's remote shell.

    With `terminal`, the arguments get one.
    """
    options = [*_given_options(target, known_hosts), *(["-t"] if terminal else [])]
    # After `--`, ssh does not take an argument of the command for its own option.
    return [PROGRAM, *options, "-p", str(target.port), "--", f"{_user(target)}{target.address}", *arguments]


def copy_command(target: Target, known_hosts: Path, remote: str, local: str, *, is_upload: bool) -> list[str]:
    """Return the command line that copies a file or folder, with times and modes, from or to the machine."""
    host = f"[{target.address}]" if ":" in target.address else target.address
    # Without a `/`, scp takes what is before a `:` for a machine.
    there, here = f"{_user(target)}{host}:{remote}", f"./{local}" if ":" in local and "/" not in local else local
    paths = (here, there) if is_upload else (there, here)
    return [COPY, *_given_options(target, known_hosts), "-P", str(target.port), "-r", "-p", "--", *paths]


def _given_options(target: Target, known_hosts: Path) -> list[str]:
    return [part for name, value in _options(target, known_hosts) for part in ("-o", f"{name}={value}")]


def _user(target: Target) -> str:
    return f"{target.username}@" if target.username else ""


def config_block(target: Target, known_hosts: Path) -> str:
    """Return the `Host` block that makes `ssh MACHINE` work, and with it scp, rsync, git and editors."""
    settings = {
        "HostName": target.address.replace("%", "%%"),
        "Port": str(target.port),
        # Without it, OpenSSH uses the local user name; an empty value is an error.
        **({"User": _quoted(target.username)} if target.username else {}),
    }
    lines = [*settings.items(), *_options(target, known_hosts)]
    if not "".join([target.machine, *(value for _, value in lines)]).isprintable():
        raise ValueError("a value with a line break would add another setting")
    return "\n".join([f"Host {host_name(target)}", *(f"    {name} {value}" for name, value in lines)]) + "\n"


def standalone_block(target: Target) -> str:
    """Return a `Host` block that contains the host key and needs no known-hosts file."""
    line = known_hosts_line(target)
    # OpenSSH runs this without a shell. Names and keys contain nothing to quote.
    command = f"    KnownHostsCommand /bin/echo {line}\n"
    return (
        "# For ~/.ssh/config. OpenSSH before 8.5 and on Windows has no KnownHostsCommand: remove that line, put the\n"
        "# next line, without its #, into a file, and set UserKnownHostsFile to that file.\n"
        f"# {line}\n{config_block(target, Path('/dev/null'))}{command}"
    )


def with_config_block(text: str, target: Target, known_hosts: Path) -> str:
    """Return an SSH configuration with one block for the machine; other blocks are kept."""
    ours = f"host {host_name(target)}".casefold()
    blocks = [block.strip("\n") for block in _blocks(text)]
    kept = [block for block in blocks if block and block.partition("\n")[0].strip().casefold() != ours]
    return "\n\n".join([*kept, config_block(target, known_hosts)])


def includes(text: str, file: Path, home: Path) -> bool:
    """Return whether an SSH configuration includes the file for all hosts, before the first `Host` or `Match`."""
    for line in text.splitlines():
        if _SECTION.match(line.strip()):
            return False
        name, *paths = re.split(r"[\s=]+", line.strip())
        named = [re.sub(r"^~(?=/)", str(home), path.strip('"')) for path in paths]
        # OpenSSH resolves a relative path in the folder of the user's configuration.
        if name.lower() == "include" and str(file) in (str(home / ".ssh" / path) for path in named):
            return True
    return False


def _options(target: Target, known_hosts: Path) -> Iterator[tuple[str, str]]:
    if target.identity:
        # Not `-i`, which looks for the file before it resolves `%%`.
        yield "IdentityFile", _quoted(target.identity)
        yield "IdentitiesOnly", "yes"
    for more in target.more_identities:
        yield "IdentityFile", _quoted(more)
    yield "HostKeyAlias", host_alias(target)
    yield "HostKeyAlgorithms", ",".join(HostKey.parse(target.host_key).algorithms)
    yield "UserKnownHostsFile", _quoted(str(known_hosts))
    yield "StrictHostKeyChecking", "yes"


def _quoted(path: str) -> str:
    """Return a path quoted for `ssh_config`, where `%` starts a token and a space ends a value."""
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
    """The files `known_hosts` and `config`, in a folder that only the user can read. They contain no secrets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known_hosts, self.config = folder / "known_hosts", folder / "config"

    def remember(self, target: Target, source: str = "") -> list[Path]:
        """Record the machine's host key with its source, and return the files that changed."""
        with self._locked():
            return self._rewrite(self.known_hosts, lambda text: with_known_host(text, target, source))

    def forget(self, target: Target, source: str) -> None:
        """Remove the lines that this source recorded for the machine."""
        if self.known_hosts.exists():
            with self._locked():
                self._rewrite(self.known_hosts, lambda text: without_known_host(text, target, source))

    def configure(self, target: Target) -> list[Path]:
        """Record the host key and a `Host` block for `ssh NAME`, and return the files that changed."""
        changed = self.remember(target)
        with self._locked():
            return changed + self._rewrite(self.config, lambda text: with_config_block(text, target, self.known_hosts))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the folder, so that two processes do not overwrite each other's changes."""
        self.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self.folder.chmod(0o700)
        lock = os.open(self.folder / ".lock", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # held only while a small file is written
            yield
        finally:
            os.close(lock)

    def _rewrite(self, file: Path, change: Callable[[str], str]) -> list[Path]:
        try:
            # Lines that gpuinfra did not write keep their bytes, in any encoding.
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
