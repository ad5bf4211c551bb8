"""Which private key belongs to a spec's public one."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from gpuinfra.models.keys import PATH, own_private_key
from gpuinfra.models.target import Target
from gpuinfra.runner.machine.keys import default_files


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


def with_own_key(target: Target) -> Target:
    """Let OpenSSH also try the key that gpuinfra created: the machine may have been made with it."""
    own = own_private_key()
    if own is None or target.identity == str(own):
        return target
    # With any key on its command line, OpenSSH tries none of the usual files by itself.
    usual = () if target.identity else default_files()
    return replace(target, more_identities=tuple(dict.fromkeys(map(str, (*usual, own)))))
