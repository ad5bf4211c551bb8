"""Which private key belongs to a spec's public one."""

from __future__ import annotations

import re
from pathlib import Path

from gpuinfra.models.keys import PATH


def identity_of(public_key: str, workspace: Path | None = None) -> str | None:
    """The private key beside `admin.sshPublicKey`: its path without `.pub`, if that file is there.

    A relative path begins in the workspace; left out, that is the current folder. None for a key that stands in the
    spec itself: then the SSH agent or the user's own keys have to do.
    """
    if not re.fullmatch(PATH, public_key):
        return None
    try:
        private = Path(public_key.removesuffix(".pub")).expanduser()
    except RuntimeError:  # `~somebody` who is not known here
        return None
    private = (workspace or Path()).absolute() / private
    return str(private) if private.is_file() else None
