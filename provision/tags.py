"""Our tags. They mark a resource as ours and hold what must be known about a machine without its spec."""

from collections.abc import Mapping
from datetime import UTC, datetime

NAME = "gpuinfra:name"
DIGEST = "gpuinfra:spec-digest"
LEASE_UNTIL = "gpuinfra:lease-until"
ON_SINCE = "gpuinfra:on-since"
TERMS = "gpuinfra:terms"
"""The lease length, the idle time limit, and the cost cap as a duration: see `terms.py`."""
HOURS = "gpuinfra:hours"
HOST_KEY = "gpuinfra:host-key"
TARGET = "gpuinfra:target"
READY = "gpuinfra:ready"
"""On the public IP, which is created and deleted with its VM: since when the disk may hold data."""
PROTECT = "gpuinfra:protect"
REPOSITORY = "gpuinfra:repository"
"""The git repository that contains the spec: see `Repository.identify` in `gpuinfra/git.py`."""

# Anyone can write a tag. Near the limits of the calendar, adding a minute or changing the time zone overflows, and one
# such machine must not stop the reaper from handling all others.
_EARLIEST, _LATEST = 1970, 9000


def belongs_to(tags: Mapping[str, str] | None, machine: str) -> bool:
    """Return whether a resource with these tags was created for this machine. Azure ignores case in names."""
    return get(tags, NAME).casefold() == machine.casefold()


def get(tags: Mapping[str, str] | None, name: str) -> str:
    """Return a tag's value, or an empty string. Azure keeps the case of tag names but ignores it."""
    found = (value for key, value in (tags or {}).items() if key.casefold() == name.casefold())
    return next(found, "")


def is_protected(tags: Mapping[str, str] | None) -> bool:
    """Return whether the protect tag is set: `gpuinfra reap` then leaves the resource alone."""
    return get(tags, PROTECT).strip().casefold() not in {"", "false"}


def moment(tags: Mapping[str, str] | None, name: str) -> datetime | None:
    """Return a tag's timestamp, or None if it is missing, malformed or too far from the present."""
    return parse_moment(get(tags, name))


def parse_moment(text: str) -> datetime | None:
    """Return a timestamp from Azure, or None if it is missing, malformed or too far from the present."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    if not _EARLIEST <= found.year <= _LATEST:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
