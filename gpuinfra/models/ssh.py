"""Who may log in by SSH: public keys, and the networks that connections come from."""

import re
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema

from gpuinfra.diagnostics import Code
from gpuinfra.models.base import checked, rejection, whole

# Ed25519 keys in base64 have a fixed length and start. An RSA key of 2048 bits, Azure's minimum, has 372 characters.
# Azure accepts no other types.
_COMMENT = r"(?: [^\n\r]*)?"
ED25519 = rf"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI[A-Za-z0-9+/]{{43}}{_COMMENT}"
RSA = rf"ssh-rsa AAAAB3NzaC1yc2E[A-Za-z0-9+/]{{353,}}={{0,2}}{_COMMENT}"
PATH = r"(?!ssh-|ecdsa-|sk-)[^\n\r]+\.pub"
DEFAULT_KEY = "~/.ssh/id_ed25519.pub"
OWN_KEY = "~/.gpuinfra/ssh/id_ed25519.pub"
"""The key that gpuinfra creates for users without one."""


def chosen_key(text: str, *, is_default: bool) -> str:
    """Return `admin.sshPublicKey`, or the key that gpuinfra created.

    If the spec omits the key, a key that gpuinfra created stays in use, because machines were created with it. It also
    replaces a missing default file.
    """
    replaces = is_default or not _is_file(DEFAULT_KEY)
    return OWN_KEY if text == DEFAULT_KEY and replaces and own_private_key() else text


def lacks_key(text: str) -> bool:
    """Return whether gpuinfra can create this key: it is the default or gpuinfra's own, and does not exist."""
    if text == OWN_KEY:
        return not _is_file(OWN_KEY)
    return text == DEFAULT_KEY and not _is_file(DEFAULT_KEY) and not _is_file(DEFAULT_KEY.removesuffix(".pub"))


def own_private_key() -> Path | None:
    """Return the path of the private key that gpuinfra created, or None."""
    private = OWN_KEY.removesuffix(".pub")
    return Path(private).expanduser() if _is_file(private) else None


def _is_file(text: str) -> bool:
    try:
        return Path(text).expanduser().is_file()
    except RuntimeError:  # the home folder is unknown
        return False


def check_public_key(text: str) -> None:
    """Reject anything but a path that ends in `.pub` or an Ed25519 or RSA public key."""
    if re.fullmatch(f"{ED25519}|{RSA}|{PATH}", text):
        return
    if "PRIVATE KEY" in text:
        raise rejection(
            Code.SECRET_IN_SPEC,
            "private key in a spec",
            "this is a private key; everyone who can read the file can use it",
            "write the public key instead, and create a new key pair: this one is exposed",
        )
    raise rejection(Code.BAD_SSH_KEY, "invalid SSH public key", *_broken_rule(text))


def _broken_rule(text: str) -> tuple[str, str]:
    make_one = "create one with `ssh-keygen -t ed25519`"
    if text.startswith(("ecdsa-", "sk-")):
        return f"Azure accepts Ed25519 and RSA keys, not `{text.split(' ', maxsplit=1)[0]}`", make_one
    if text.startswith("ssh-ed25519"):
        return (
            "the key is truncated or has invalid characters",
            "copy the whole line of the `.pub` file",
        )
    if text.startswith("ssh-"):
        return "expected a complete RSA key of 2048 bits or more", make_one
    if re.fullmatch(r"[^\n\r]*[/\\~][^\n\r]*|id_\w+", text):
        return "expected the path of a public key, ending in `.pub`", f"for example `{text}.pub`"
    return "expected a path ending in `.pub`, or the key itself", "for example `~/.ssh/id_ed25519.pub`"


PublicKey = Annotated[
    str,
    checked(check_public_key),
    WithJsonSchema({"type": "string", "anyOf": [{"pattern": whole(form)} for form in (PATH, ED25519, RSA)]}),
]
AUTO = "auto"
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_ADDRESS = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
SOURCE = rf"{AUTO}|{_ADDRESS}(?:/(?:3[0-2]|[12]?[0-9]))?"
# A prefix this short covers much of the internet, so it needs `allowInternet: true`.
WIDE = rf"{_ADDRESS}/[0-7]"


def check_source(text: str) -> None:
    """Reject anything but `auto` and an IPv4 address or range. The machine's public address is IPv4."""
    if re.fullmatch(SOURCE, text):
        return
    if ":" in text:
        label, help_line = "the machine's public address is IPv4, so IPv6 cannot reach it", None
    elif text.casefold() in {"*", "any", "internet"}:
        label = "expected a numeric address range"
        help_line = "for the whole internet, write `0.0.0.0/0` and `allowInternet: true`"
    else:
        label = "expected an IPv4 address or range"
        help_line = "for example `203.0.113.7/32`, or `auto` for your own address"
    raise rejection(Code.BAD_ADDRESS, "invalid address range", label, help_line)


def is_wide(text: object) -> bool:
    """Return whether this range covers more than 16 million addresses."""
    return isinstance(text, str) and re.fullmatch(WIDE, text) is not None


def _auto_alone(value: object) -> object:
    return (AUTO,) if value == AUTO else value


_SOURCE_SCHEMA = {"type": "string", "pattern": whole(SOURCE)}
SshSources = Annotated[
    tuple[Annotated[str, checked(check_source)], ...],
    Field(min_length=1),
    BeforeValidator(_auto_alone),
    WithJsonSchema(
        {
            "anyOf": [
                {"const": AUTO},
                {"type": "array", "minItems": 1, "uniqueItems": True, "items": _SOURCE_SCHEMA},
            ]
        }
    ),
]
