"""The administrator's public key: the one that the spec holds, or the file that it names."""

from __future__ import annotations

import re
from pathlib import Path

from gpuinfra.diagnostics import Code, Diagnostic, Problem
from gpuinfra.models.keys import DEFAULT_KEY, ED25519, PATH, RSA


def read_public_key(text: str, folder: Path) -> str:
    """The key itself. A path is from the project's folder, or from the user's home with `~`."""
    if not re.fullmatch(PATH, text):
        return text
    path = folder / text
    try:
        path = folder / Path(text).expanduser()
        content = path.read_text("utf-8").strip()
    except RuntimeError:  # `~somebody` who is not known here
        raise _problem(f"`{text}`: there is no such home", _make(Path(DEFAULT_KEY))) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise _problem(f"`{path}`: {reason}", _make(path)) from None
    if not re.fullmatch(f"{ED25519}|{RSA}", content):
        raise _problem(f"`{path}` does not hold one Ed25519 or RSA public key", _make(path))
    return content


def _make(path: Path) -> str:
    private = path.with_suffix("")
    make = f"-y -f {private} > {path}" if private.is_file() else f"-t ed25519 -f {private}"
    return f"`ssh-keygen {make}` makes one; or name another in `admin.sshPublicKey`"


def _problem(note: str, help_line: str) -> Problem:
    return Problem(Diagnostic(Code.NO_PUBLIC_KEY, "no public key", note=note, help=help_line))
