"""The project's folder on disk: its state folder, its owner, and safe writes."""

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
import tempfile
from pathlib import Path

from gpuinfra.diagnostics import Code, Exit, problem

STATE = ".gpuinfra"
OWNER = "id"
"""The file with a state folder's id. A file named by that id in `~/.gpuinfra/workspaces` makes it the user's own."""
TRUST = "GPUINFRA_TRUST_STATE"
ID_BYTES = 32
_ID = re.compile(f"[0-9a-f]{{{ID_BYTES}}}")


def find_workspace(path: Path) -> Path:
    """Return the workspace. Raises a Problem if it does not exist."""
    if not path.is_dir():
        raise problem(
            Code.FILE_NOT_FOUND,
            "no such workspace",
            f"`{path}` is not a directory",
            "a workspace is the project's folder; create it first, or omit `--workspace`",
            exit_code=Exit.USAGE,
        )
    return path


def check_links(workspace: Path) -> None:
    """Raise a Problem for symbolic links in `.gpuinfra`: in a foreign project they could lead to any file."""
    state = workspace / STATE
    for pattern in ("", "*", "runs/*", "runs/*/*"):
        for path in state.glob(pattern) if pattern else [state]:
            if path.is_symlink():
                note = f"`{path.relative_to(workspace)}` is a symbolic link; gpuinfra writes there"
                help_line = "remove it; if the project came with a `.gpuinfra` folder, remove that folder"
                raise problem(Code.FILE_UNREADABLE, "link in gpuinfra's folder", note, help_line)


def check_owner(workspace: Path) -> None:
    """Raise a Problem if `.gpuinfra` was not created by this user on this computer.

    Databases, indexes and links in a folder that came with a project could name any file of the user.
    """
    state = workspace / STATE
    if not os.path.lexists(state) or _is_own(state):
        return
    if os.environ.get(TRUST):
        _claim(state)
        return
    note = f"`{state}` came with the project, or from another computer; nothing in it was read"
    help_line = f"remove or rename it; if you copied it yourself, `{TRUST}=1 gpuinfra runs` makes it yours"
    raise problem(Code.FOREIGN_STATE, "foreign state folder", note, help_line)


def _is_own(state: Path) -> bool:
    if state.is_symlink():
        return False
    if is_home_state(state):
        return True
    home = _home()
    try:
        about = (state / OWNER).lstat()
        if not stat.S_ISREG(about.st_mode) or about.st_size != ID_BYTES:
            return False  # a pipe would never end, a link could lead to anything
        found = (state / OWNER).read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    return bool(home and _ID.fullmatch(found) and (home / "workspaces" / found).is_file())


def is_home_state(state: Path) -> bool:
    """Return whether this is the state folder of a workspace that is the home folder itself."""
    home = _home()
    return home is not None and state.resolve() == home.resolve()


def _home() -> Path | None:
    try:
        return Path("~").expanduser() / STATE
    except RuntimeError:  # neither HOME nor an entry for this user
        return None


def _claim(state: Path) -> None:
    """Give a state folder an id, and record it as this user's. Raises OSError."""
    home, own = _home(), secrets.token_hex(16)
    if home is None:
        raise FileNotFoundError(errno.ENOENT, "there is no home folder; set HOME", "~")
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    (home / "workspaces").mkdir(mode=0o700, exist_ok=True)
    (home / "workspaces" / own).touch(mode=0o600)
    write_text(state / OWNER, own, replace=True)
    write_text(state / ".gitignore", "*\n", replace=True)


def state_folder(workspace: Path) -> Path:
    """Create `.gpuinfra` in the workspace, before something is written to it. Readers use `workspace / STATE`."""
    return make_state_folder(workspace / STATE)


def make_state_folder(folder: Path) -> Path:
    """Create the folder for the records of machines and runs. It has no secrets, and git ignores it."""
    if folder.is_dir():
        return folder
    # Rename it into place with its id: a folder without one would be refused.
    made = Path(tempfile.mkdtemp(prefix=f"{STATE}.", dir=folder.parent))
    try:
        made.chmod(0o777 & ~_umask())
        _claim(made)
        made.rename(folder)
    except OSError:
        if not folder.is_dir():  # otherwise another process made it meanwhile
            raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def check_state_folder(workspace: Path) -> None:
    """Raise OSError if `.gpuinfra` could not be created or written. Nothing is created."""
    folder = workspace / STATE
    place = folder if folder.exists() else workspace
    if not place.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(place))
    if not os.access(place, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(place))


def write_text(path: Path, text: str, *, replace: bool) -> None:
    """Write a file atomically. Without `replace`, an existing file raises FileExistsError."""
    write_bytes(path, text.encode("utf-8"), replace=replace)


def write_bytes(path: Path, content: bytes, *, replace: bool) -> None:
    """Write bytes atomically. A replaced file keeps its mode. A symbolic link raises OSError."""
    if path.is_symlink():
        # It could lead to any file of the user, in a project that comes from others.
        raise OSError(errno.ELOOP, f"it is a symbolic link to `{path.readlink()}`", str(path))
    before = check_writable(path) if replace else None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path.parent)) from error
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        _be_like(Path(name), before)
        if replace:
            Path(name).replace(path)
        else:
            # Unlike a rename, a link never replaces what another process has just put there.
            os.link(name, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()


def check_inside(path: Path, project: Path) -> None:
    """Raise a Problem if a link leads from the project, which may be foreign, to outside."""
    written, real = Path(os.path.abspath(path)), Path(os.path.realpath(path))  # noqa: PTH100 `..` is not a link
    if written.is_relative_to(os.path.abspath(project)) and not real.is_relative_to(project.resolve()):  # noqa: PTH100
        note = f"`{path}` leads out of the project, to `{real}`, by a symbolic link"
        help_line = "use that path directly, or another one"
        raise problem(Code.FILE_UNWRITABLE, "link out of the project", note, help_line)


def check_folder(folder: Path) -> None:
    """Raise OSError if files cannot be created in a folder or its nearest existing parent.

    Creates a temporary file: permissions alone do not show a full or read-only disk.
    """
    while not os.path.lexists(folder):
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from error


def check_writable(path: Path) -> os.stat_result | None:
    """Return the status of a file, or None without a file. A read-only file raises PermissionError."""
    if not path.exists():
        return None
    found = path.stat()
    if not found.st_mode & stat.S_IWUSR:
        raise PermissionError(errno.EACCES, "it is read-only", str(path))
    return found


def _be_like(path: Path, before: os.stat_result | None) -> None:
    """Set mode and owner of the replaced file, or the umask's mode for a new file."""
    path.chmod(stat.S_IMODE(before.st_mode) if before else 0o666 & ~_umask())
    if before:
        with contextlib.suppress(OSError):  # only root can, and only root needs to
            os.chown(path, before.st_uid, before.st_gid)


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
