"""Names and times in JSON."""

from datetime import UTC, datetime


def camel(name: str) -> str:
    """Return a field's name as a JSON key: `exit_code` is `exitCode`."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def stamp(moment: datetime | None) -> str | None:
    """Return a time as `2026-11-16T08:00:00Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if moment else None


def exact_stamp(moment: datetime | None) -> str | None:
    """Return a time with milliseconds: jobs can be short."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z") if moment else None


def parse_stamp(text: str | None) -> datetime | None:
    """Return the time in UTC, also of text without a time zone."""
    if not text:
        return None
    moment = datetime.fromisoformat(text)
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
