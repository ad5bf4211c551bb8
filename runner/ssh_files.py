"""The two files that OpenSSH reads about our machines."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from gpuinfra.models.target import Target
from gpuinfra.runner import openssh


class SshFiles:
    """`known_hosts` and `config` in a folder that only the user can read. Nothing secret is in them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known_hosts, self.config = folder / "known_hosts", folder / "config"

    def remember(self, target: Target, source: str = "") -> list[Path]:
        """Make the machine a known host, recorded by this source; which files that has changed."""
        with self._alone():
            return self._rewrite(self.known_hosts, lambda text: openssh.with_known_host(text, target, source))

    def forget(self, target: Target, source: str) -> None:
        """Remove the line that this source recorded for the machine, if there is one."""
        if self.known_hosts.exists():
            with self._alone():
                self._rewrite(self.known_hosts, lambda text: openssh.without_known_host(text, target, source))

    def configure(self, target: Target) -> list[Path]:
        """Give the machine a name for `ssh`; which files that has changed."""
        changed = self.remember(target)
        with self._alone():
            return changed + self._rewrite(
                self.config, lambda text: openssh.with_config_block(text, target, self.known_hosts)
            )

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
            # What somebody else wrote into it comes out as it went in, whatever its encoding.
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
