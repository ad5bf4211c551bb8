"""Checks of host and user names, which end up in files and command lines of other programs."""

from __future__ import annotations

import ipaddress
import re

# Host names are letters, digits, `-` and `.`. `_` is against the rules, but common.
_HOST = re.compile(r"\w(?:[\w.-]*\w)?\.?", re.ASCII)
_ZONE = re.compile(r"[A-Za-z0-9_.-]+")
_USER = re.compile(r"[^\s\x00-\x20\x7f-][^\s\x00-\x1f\x7f]*")


def is_host(text: str) -> bool:
    """Return whether this is a host name or an address, safe in files and command lines."""
    address, has_zone, zone = text.partition("%")
    try:
        version = ipaddress.ip_address(address).version
    except ValueError:
        return len(text) < 254 and _HOST.fullmatch(text) is not None
    return not has_zone or (version == 6 and _ZONE.fullmatch(zone) is not None)


def is_user(text: str) -> bool:
    """Return whether this can be a user name: no spaces, not like an option."""
    return _USER.fullmatch(text) is not None
