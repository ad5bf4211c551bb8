"""The disk of a guest: where things are under its root, and what its absolute paths mean on the host."""

import os
import posixpath
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

UNITS = "etc/systemd/system"
# A path in a shell line or unit file: at the start of a word, or after a character that may precede a path.
_PATH = re.compile(r"""(?<![^\s'"=<>(|&;:,`@])/[A-Za-z0-9_.@%+~-]+(?:/[A-Za-z0-9_.@%+~-]+)*""")
_PROGRAM_FOLDERS = frozenset({"/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"})
_PERSISTENT = ("bin", "etc/ssh", UNITS, "var/lib", "var/log")


@dataclass(frozen=True)
class Disk:
    """A directory on the host that is the guest's `/`."""

    root: Path
    username: str

    @property
    def home(self) -> Path:
        return self.root / "home" / self.username

    @property
    def bin(self) -> Path:
        """Programs of the guest that the host does not have, or that must not be the host's."""
        return self.root / "bin"

    @property
    def run(self) -> Path:
        """Files that do not survive a power cycle."""
        return self.root / "run"

    @property
    def log(self) -> Path:
        return self.root / "var" / "log"

    @property
    def units(self) -> Path:
        """The unit files that `systemctl` knows."""
        return self.root / UNITS

    @property
    def authorized_keys(self) -> Path:
        return self.home / ".ssh" / "authorized_keys"

    @property
    def groups(self) -> list[str]:
        try:
            lines = (self.root / "etc" / "group").read_text().splitlines()
        except FileNotFoundError:
            return []
        fields = [line.split(":") for line in lines]
        return [each[0] for each in fields if self.username in each[-1].split(",")]

    def prepare(self) -> None:
        """Create the folders for a boot; `/run` is empty at every boot."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in _PERSISTENT:
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        self.home.mkdir(parents=True, exist_ok=True)
        self.authorized_keys.parent.mkdir(mode=0o700, exist_ok=True)
        remove_tree(self.run)
        self.run.mkdir()

    def place(self, path: str) -> Path:
        """Return where a guest's path is on the host: relative paths start at home, absolute ones at the root."""
        clean = posixpath.normpath(posixpath.join(f"/home/{self.username}", path)).lstrip("/")
        already = str(self.root).lstrip("/")
        if clean == already or clean.startswith(f"{already}/"):
            return Path("/") / clean
        return self.root / clean

    def rewrite(self, text: str) -> str:
        """Return a line with its absolute paths replaced by what they mean on the host."""
        return _PATH.sub(lambda found: self._meaning(found.group()), text)

    def _meaning(self, path: str) -> str:
        """Return the guest's path if it exists, or if only the guest has its folder; otherwise the host's."""
        own = self.place(path)
        if Path("/") / path.lstrip("/") == own:
            return path
        folder, name = posixpath.split(path)
        if own.exists():
            return str(own)
        if folder in _PROGRAM_FOLDERS:
            return self._program(path, name)
        if folder != "/" and own.parent.is_dir() and not os.path.lexists(path):
            return str(own)
        return path

    def _program(self, path: str, name: str) -> str:
        """Return a program: the guest's, the host's at this path, or wherever the host has it."""
        if (self.bin / name).exists():
            return str(self.bin / name)
        return path if Path(path).exists() else shutil.which(name) or path


def write_atomically(file: Path, content: str | bytes, mode: int = 0o644) -> None:
    """Write a file atomically: a reader sees the old content or the new."""
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{file.name}.new")
    beside.unlink(missing_ok=True)
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as output:
        output.write(content.encode() if isinstance(content, str) else content)
    beside.chmod(mode)
    beside.replace(file)


def remove_tree(root: Path) -> None:
    """Remove a directory tree, even if parts are read-only. An absent one is fine."""
    if not root.exists():
        return
    root.chmod(0o700)
    for folder, names, _ in os.walk(root):
        for name in names:
            inner = Path(folder) / name
            if not inner.is_symlink():
                inner.chmod(0o700)
    shutil.rmtree(root)


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Yield a name for a Unix socket that fits the kernel's limit of 107 bytes; valid within the context."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
