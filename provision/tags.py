"""Our tags: how a resource says that it is ours, and what has to be known of a machine without its spec."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

NAME = "gpuinfra:name"
DIGEST = "gpuinfra:spec-digest"
LEASE_UNTIL = "gpuinfra:lease-until"
ON_SINCE = "gpuinfra:on-since"
TERMS = "gpuinfra:terms"
"""How long its lease is, when idleness ends it, and its cost cap as a time: see `lifecycle/terms.py`."""
HOURS = "gpuinfra:hours"
HOST_KEY = "gpuinfra:host-key"
TARGET = "gpuinfra:target"
READY = "gpuinfra:ready"
"""On the address, which comes and goes with its machine: since when there is something on the disk to lose."""
PROTECT = "gpuinfra:protect"
REPOSITORY = "gpuinfra:repository"
"""Which git repository its spec came from: see `Repository.identify` in `gpuinfra/git.py`."""

# Anybody can write a tag. At the ends of the calendar a minute more or another time zone is no date any more, and one
# such machine must not keep the reaper from all others.
_EARLIEST, _LATEST = 1970, 9000


def belongs_to(tags: Mapping[str, str] | None, machine: str) -> bool:
    """Whether a resource with these tags was made for this machine. Azure does not see case in names."""
    return get(tags, NAME).casefold() == machine.casefold()


def get(tags: Mapping[str, str] | None, name: str) -> str:
    """A tag's value, or nothing. Azure keeps the case of a tag's name, but does not see it."""
    found = (value for key, value in (tags or {}).items() if key.casefold() == name.casefold())
    return next(found, "")


def moment(tags: Mapping[str, str] | None, name: str) -> datetime | None:
    """A tag that holds a moment; None where it holds none that can be read, or reckoned with."""
    try:
        found = datetime.fromisoformat(get(tags, name))
    except ValueError:
        return None
    if not _EARLIEST <= found.year <= _LATEST:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
