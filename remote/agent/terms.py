"""The agent's input: terms and times in the VM's tags, and its configuration file."""

from __future__ import annotations

import calendar
import json
import re
import time
from dataclasses import dataclass
from typing import Any

_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.\d+)?(?:Z|[+-]00:?00)?")
_SPAN = re.compile(r"(?:(\d{1,4})d)?(?:(\d{1,5})h)?(?:(\d{1,6})m)?")


@dataclass(frozen=True)
class Terms:
    """How long the machine may be on, in seconds."""

    lease: float = 4 * 3600.0
    idle: float = 20 * 60.0
    cap: float | None = None


def stamp(moment: float) -> str:
    """Format a time as `2026-11-16T08:00:00Z`, limited to the years that this format can show."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(min(max(moment, 0.0), 253402300799.0)))


def read_moment(text: Any) -> float | None:
    """Parse a time as `stamp` formats it. Return None for other text, because anyone can write a tag."""
    found = _MOMENT.fullmatch(text) if isinstance(text, str) else None
    if not found:
        return None
    try:
        return float(calendar.timegm(time.strptime(f"{found[1]} {found[2]}", "%Y-%m-%d %H:%M:%S")))
    except (ValueError, OverflowError):
        return None


def read_span(text: str) -> float | None:
    """Return the seconds in a text like `9h30m`, or None if it is not a duration."""
    found = _SPAN.fullmatch(text)
    if not found or not text:
        return None
    days, hours, minutes = (int(part or 0) for part in found.groups())
    return days * 86400.0 + hours * 3600.0 + minutes * 60.0 or None


def read_terms(tag: str, otherwise: Terms) -> Terms:
    """Parse `lease=4h idle=20m cap=9h30m`; return `otherwise` if it is invalid."""
    words = dict(word.partition("=")[::2] for word in tag.split())
    lease, idle = read_span(words.get("lease", "")), read_span(words.get("idle", ""))
    if lease is None or idle is None:
        return otherwise
    return Terms(lease, idle, read_span(words.get("cap", "")))


def read_hold(tag: str) -> tuple[str, float] | None:
    """Return the run in `failed-job ID 2026-11-16T08:00:00Z`, and the time; None for another text."""
    words = tag.split()
    until = read_moment(words[2]) if len(words) == 3 and words[0] == "failed-job" else None
    return None if until is None else (words[1], until)


def read_config(text: str) -> tuple[Terms, str]:
    """Return the terms to use without metadata, and the user's home. Invalid values are ignored."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    found = found if isinstance(found, dict) else {}
    usual = Terms()
    lease, idle, cap = (positive(found.get(name)) for name in ("lease", "idle", "cap"))
    home = found.get("home")
    return Terms(lease or usual.lease, idle or usual.idle, cap), home if isinstance(home, str) else ""


def positive(value: Any) -> float | None:
    """Return a positive number, or None for anything else."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and 0 < value < 1e12 else None
