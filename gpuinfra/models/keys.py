"""The administrator's public key: a path to it, or the key itself. A private one is refused unseen."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import WithJsonSchema

from gpuinfra.diagnostics import Code
from gpuinfra.models.base import checked, rejection, whole

# The base64 of an Ed25519 key has one length and one beginning. An RSA key of 2048 bits, Azure's least, has
# 372 characters. Azure takes no other kinds.
_COMMENT = r"(?: [^\n\r]*)?"
ED25519 = rf"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI[A-Za-z0-9+/]{{43}}{_COMMENT}"
RSA = rf"ssh-rsa AAAAB3NzaC1yc2E[A-Za-z0-9+/]{{353,}}={{0,2}}{_COMMENT}"
PATH = r"(?!ssh-|ecdsa-|sk-)[^\n\r]+\.pub"

DEFAULT_KEY = "~/.ssh/id_ed25519.pub"
OWN_KEY = "~/.gpuinfra/ssh/id_ed25519.pub"
"""The key that gpuinfra creates for a user who has none."""


def chosen_key(text: str, *, is_default: bool) -> str:
    """Return `admin.sshPublicKey`, or gpuinfra's own key instead.

    Where the spec leaves the key out, a key that gpuinfra has created stays in use: machines were made with it. It also
    stands in for the default file where that is missing.
    """
    replaces = is_default or not _is_file(DEFAULT_KEY)
    return OWN_KEY if text == DEFAULT_KEY and replaces and own_private_key() else text


def lacks_key(text: str) -> bool:
    """Return whether a chosen key is one that gpuinfra can create: the default or its own, and there is none yet."""
    if text == OWN_KEY:
        return not _is_file(OWN_KEY)
    return text == DEFAULT_KEY and not _is_file(DEFAULT_KEY) and not _is_file(DEFAULT_KEY.removesuffix(".pub"))


def own_private_key() -> Path | None:
    """Return the private key that gpuinfra has created, if there is one."""
    private = OWN_KEY.removesuffix(".pub")
    return Path(private).expanduser() if _is_file(private) else None


def _is_file(text: str) -> bool:
    try:
        return Path(text).expanduser().is_file()
    except RuntimeError:  # the home folder is unknown
        return False


def check_public_key(text: str) -> None:
    """A path that ends in `.pub`, or an Ed25519 or RSA public key."""
    if re.fullmatch(f"{ED25519}|{RSA}|{PATH}", text):
        return
    if "PRIVATE KEY" in text:
        raise rejection(
            Code.SECRET_IN_SPEC,
            "private key in a spec",
            "this is a private key; anybody who can read the file can use it",
            "give the public key instead, and replace this pair: it has been in a file",
        )
    raise rejection(Code.BAD_SSH_KEY, "invalid SSH public key", *_broken_rule(text))


def _broken_rule(text: str) -> tuple[str, str]:
    make_one = "make one with `ssh-keygen -t ed25519`"
    if text.startswith(("ecdsa-", "sk-")):
        return f"Azure takes Ed25519 and RSA keys, not `{text.split(' ', maxsplit=1)[0]}`", make_one
    if text.startswith("ssh-ed25519"):
        return (
            "the key is cut off or has characters that do not belong",
            "copy the whole line of the `.pub` file",
        )
    if text.startswith("ssh-"):
        return "not an RSA key of 2048 bits or more, or cut off", make_one
    if re.fullmatch(r"[^\n\r]*[/\\~][^\n\r]*|id_\w+", text):
        return "expected the path of a public key, which ends in `.pub`", f"for example `{text}.pub`"
    return "expected a path that ends in `.pub`, or the key itself", "for example `~/.ssh/id_ed25519.pub`"


PublicKey = Annotated[
    str,
    checked(check_public_key),
    WithJsonSchema({"type": "string", "anyOf": [{"pattern": whole(form)} for form in (PATH, ED25519, RSA)]}),
]
