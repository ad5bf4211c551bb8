"""Where a machine is, and who logs in there: words that go into other programs' files and command lines."""

from __future__ import annotations

import ipaddress
import re

# Names of hosts are letters, digits, `-` and `.`; `_` is wrong, and common in laboratories.
_HOST = re.compile(r"\w(?:[\w.-]*\w)?\.?", re.ASCII)
_ZONE = re.compile(r"[A-Za-z0-9_.-]+")
_USER = re.compile(r"[^\s\x00-\x20\x7f-][^\s\x00-\x1f\x7f]*")


def is_host(text: str) -> bool:
    """Whether it is a host's name or address, and nothing that a file or a command line would read otherwise."""
    address, has_zone, zone = text.partition("%")
    try:
        version = ipaddress.ip_address(address).version
    except ValueError:
        return len(text) < 254 and _HOST.fullmatch(text) is not None
    return not has_zone or (version == 6 and _ZONE.fullmatch(zone) is not None)


def is_user(text: str) -> bool:
    """Whether somebody can have this name on some machine: no spaces, nothing that looks like an option."""
    return _USER.fullmatch(text) is not None
