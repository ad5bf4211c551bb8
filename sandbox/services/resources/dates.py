"""Dates of templates: moments in the formats of .NET, and durations of ISO 8601."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from gpuinfra.sandbox.kernel.errors import ArmError

DEFAULT_FORMAT = "yyyyMMddTHHmmssZ"
_STANDARD = {"s": "yyyy-MM-ddTHH:mm:ss", "u": "yyyy-MM-dd HH:mm:ssZ"}
_CUSTOM = {"yyyy": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}
# What .NET gives a meaning to: letters of dates, quotes, and marks of escape. All else stands for itself.
_MEANT = re.compile(r"""([dfFghHKmMstyz])\1*|["'\\%]""")
_DURATION = re.compile(r"(-?)P(?=[0-9T])(?:([0-9]+)D)?(?:T(?=[0-9])(?:([0-9]+)H)?(?:([0-9]+)M)?(?:([0-9]+)S)?)?")
_CALENDAR = re.compile(r"-?P(?:[0-9]+[YM])+(?:[0-9]+D)?(?:T.*)?")


def format_moment(moment: datetime, pattern: str = DEFAULT_FORMAT) -> str:
    """`moment` as .NET writes it: `u` and `s` of the standard formats, and years to seconds of the custom ones."""
    pattern = _STANDARD.get(pattern, pattern)

    def replace(found: re.Match[str]) -> str:
        if found[0] not in _CUSTOM:
            raise _not_modelled(f"the date format '{pattern}'")
        return f"{moment:{_CUSTOM[found[0]]}}"

    if len(pattern) < 2:
        raise _not_modelled(f"the date format '{pattern}'")
    return _MEANT.sub(replace, pattern)


def read_moment(text: str) -> datetime:
    """A moment in one of the spellings of ISO 8601; one without a zone is UTC. Raises ValueError for anything else."""
    found = datetime.fromisoformat(text)
    return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)


def read_duration(text: str) -> timedelta:
    """`PT4H`, `-P9D`, `P1DT2H3M4S`. Raises ValueError for what is no duration."""
    if _CALENDAR.fullmatch(text):
        raise _not_modelled(f"years and months of a duration, as in '{text}'")
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(text)
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups()[1:])
    length = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    return -length if found[1] else length


def _not_modelled(what: str) -> ArmError:
    return ArmError(501, "NotInSandbox", f"The embedded Azure does not model {what}. Nothing was done.")
