"""Dates in templates: times in .NET's formats, and ISO 8601 durations."""

import re
from datetime import UTC, datetime, timedelta

from gpuinfra.sandbox.kernel.errors import not_modelled

DEFAULT_FORMAT = "yyyyMMddTHHmmssZ"
_STANDARD = {"s": "yyyy-MM-ddTHH:mm:ss", "u": "yyyy-MM-dd HH:mm:ssZ"}
_CUSTOM = {"yyyy": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}
# What .NET interprets: date letters, quotes and escapes. All other characters are literal.
_MEANT = re.compile(r"""([dfFghHKmMstyz])\1*|["'\\%]""")
_DURATION = re.compile(r"(-?)P(?=[0-9T])(?:([0-9]+)D)?(?:T(?=[0-9])(?:([0-9]+)H)?(?:([0-9]+)M)?(?:([0-9]+)S)?)?")
_CALENDAR = re.compile(r"-?P(?:[0-9]+[YM])+(?:[0-9]+D)?(?:T.*)?")


def format_moment(moment: datetime, pattern: str = DEFAULT_FORMAT) -> str:
    """Format a time as .NET does: the standard formats `u` and `s`, and custom ones from years to seconds."""
    pattern = _STANDARD.get(pattern, pattern)

    def replace(found: re.Match[str]) -> str:
        if found[0] not in _CUSTOM:
            raise not_modelled(f"the date format '{pattern}'")
        return f"{moment:{_CUSTOM[found[0]]}}"

    if len(pattern) < 2:
        raise not_modelled(f"the date format '{pattern}'")
    return _MEANT.sub(replace, pattern)


def read_moment(text: str) -> datetime:
    """Parse an ISO 8601 time; without a zone it is UTC. Raises ValueError for anything else."""
    found = datetime.fromisoformat(text)
    return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)


def read_duration(text: str) -> timedelta:
    """Parse `PT4H`, `-P9D` or `P1DT2H3M4S`. Raises ValueError for anything else."""
    if _CALENDAR.fullmatch(text):
        raise not_modelled(f"years and months of a duration, as in '{text}'")
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(text)
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups()[1:])
    length = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    return -length if found[1] else length
