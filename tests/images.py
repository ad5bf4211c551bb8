"""Root file systems for images, made from this machine's files: there is no registry to pull from."""

import fcntl
import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.real import program

BUSYBOX, PYTHON = "busybox:test", "python:test"
# Parts of Python's library that no job of a test needs.
LEFT_OUT = re.compile(
    r"/(tests?|idlelib|_?tkinter[^/]*|turtledemo|lib2to3|config-[^/]*|site-packages|dist-packages|[^/]*\.opt-[12]\.pyc)$"
)
LIBRARY = re.compile(r"(?:=> )?(/\S+) \(0x")


def busybox_archive() -> Path:
    """A shell and its commands, in one file. The image has no Python."""
    return _cached("busybox", program("busybox", "busybox-static"), lambda archive: _add_busybox(archive, _SHORT))


def python_archive() -> Path:
    """The Python that runs the tests, with its library and pip, and busybox."""
    return _cached("python", f"{sys.version} {sys.base_prefix} {sysconfig.get_paths()}", _add_python)


_SHORT = ("sh", "echo", "cat", "ls", "sleep", "true")


def _cached(name: str, what: str, write: Callable[[tarfile.TarFile], None]) -> Path:
    """Return an archive that is created once for each user of this machine; a changed recipe gives a new file."""
    recipe = hashlib.sha256(Path(__file__).read_bytes() + what.encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir(), f"gpuinfra-tests-{os.geteuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    assert folder.stat().st_uid == os.geteuid(), f"{folder} belongs to another user"
    file = folder / f"{name}-{recipe}.tar"
    with _lock(file.with_suffix(".lock")):
        if not file.exists():
            new = file.with_suffix(".new")
            with tarfile.open(new, "w") as archive:
                write(archive)
            new.rename(file)
    return file


@contextmanager
def _lock(file: Path) -> Iterator[None]:
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _add_busybox(archive: tarfile.TarFile, commands: tuple[str, ...]) -> None:
    archive.add(program("busybox", "busybox-static"), "bin/busybox")
    for name in commands:
        _link(archive, f"bin/{name}", "busybox")
    for folder, mode in (("tmp", 0o1777), ("root", 0o700)):
        made = tarfile.TarInfo(folder)
        made.type, made.mode = tarfile.DIRTYPE, mode
        archive.addfile(made)


def _add_python(archive: tarfile.TarFile) -> None:
    busybox = program("busybox", "busybox-static")
    listed = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True, timeout=20).stdout.split()
    _add_busybox(archive, tuple(name for name in listed if name != "busybox"))
    interpreter, library = Path(os.path.realpath(sys.executable)), Path(sysconfig.get_paths()["stdlib"])
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    archive.add(interpreter, f"usr/local/bin/{version}")
    for name in ("python3", "python"):
        _link(archive, f"usr/local/bin/{name}", version)
    archive.add(library, f"usr/local/lib/{version}", filter=_kept)
    pip = importlib.util.find_spec("pip")
    assert pip is not None
    assert pip.origin is not None
    archive.add(Path(pip.origin).parent, f"usr/local/lib/{version}/site-packages/pip", filter=_kept)
    modules = [file for file in library.glob("lib-dynload/*.so") if not LEFT_OUT.search(str(file))]
    for path in sorted(_libraries([interpreter, *modules])):
        archive.add(os.path.realpath(path), path.lstrip("/"))


def _kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return None if LEFT_OUT.search(f"/{member.name}") else member


def _libraries(files: list[Path]) -> set[str]:
    """Return the libraries that the files are linked with, and the loader."""
    words = [program("ldd", "libc-bin"), *map(str, files)]
    said = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60).stdout
    return set(LIBRARY.findall(said))


def _link(archive: tarfile.TarFile, name: str, where: str) -> None:
    link = tarfile.TarInfo(name)
    link.type, link.linkname = tarfile.SYMTYPE, where
    archive.addfile(link)
