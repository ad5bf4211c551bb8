"""Read the administrator's public key, from the spec itself or from the file that it names."""

from __future__ import annotations

import errno
import re
import stat
from pathlib import Path

from gpuinfra.diagnostics import Code, Diagnostic, Problem
from gpuinfra.models.keys import DEFAULT_KEY, ED25519, PATH, RSA

LARGEST = 64 << 10


def read_public_key(text: str, folder: Path) -> str:
    """Return the key itself. A path is relative to the project folder, or to the user's home with `~`."""
    if not re.fullmatch(PATH, text):
        return text
    path = folder / text
    try:
        path = folder / Path(text).expanduser()
        content = _content(path).decode("utf-8").strip()
    except RuntimeError:  # `~somebody` who is not known here
        raise _problem(f"`{text}`: there is no such home", _make(Path(DEFAULT_KEY))) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise _problem(f"`{path}`: {reason}", _make(path)) from None
    if not re.fullmatch(f"{ED25519}|{RSA}", content):
        raise _problem(f"`{path}` does not hold one Ed25519 or RSA public key", _make(path))
    return content


def _content(path: Path) -> bytes:
    """Return the content of a plain file. The path may come from a project of others: its file may have no end."""
    # Check before opening: to open a pipe is to wait for a writer.
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "Is a directory")
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a plain file")
    with path.open("rb") as stream:
        content = stream.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise OSError(errno.EFBIG, "larger than a public key")
    return content


def _make(path: Path) -> str:
    private = path.with_suffix("")
    make = f"-y -f {private} > {path}" if private.is_file() else f"-t ed25519 -f {private}"
    return f"`ssh-keygen {make}` makes one; or name another in `admin.sshPublicKey`"


def _problem(note: str, help_line: str) -> Problem:
    return Problem(Diagnostic(Code.NO_PUBLIC_KEY, "no public key", note=note, help=help_line))
