"""The administrator's public key: a path to it, or the key itself. A private one is refused unseen."""

from __future__ import annotations

import re
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
