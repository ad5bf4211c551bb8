"""The names and tags by which gpuinfra finds its resources.

Tags mark a resource as ours and hold what must be known about a machine without its spec.
"""

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime

from gpuinfra.models.plan import Kind, Ref

NAME = "gpuinfra:name"
DIGEST = "gpuinfra:spec-digest"
LEASE_UNTIL = "gpuinfra:lease-until"
ON_SINCE = "gpuinfra:on-since"
TERMS = "gpuinfra:terms"
"""The lease length, the idle time limit, and the cost cap as a duration: see `terms.py`."""
ON_FOR = "gpuinfra:on-for"
"""What the machine is on for without a client: see `purpose.py`."""
HOURS = "gpuinfra:hours"
HOST_KEY = "gpuinfra:host-key"
TARGET = "gpuinfra:target"
READY = "gpuinfra:ready"
"""On the public IP, which is created and deleted with its VM: since when the disk may hold data."""
EMPTY_SINCE = "gpuinfra:outputs-fetched"
"""On the disk of a machine that is off: the machine confirmed before that no run was active and all outputs were
fetched. The value says for which time off: see `resources/disk.py`."""
PROTECT = "gpuinfra:protect"
REPOSITORY = "gpuinfra:repository"
"""The git repository that contains the spec: see `Repository.identify` in `gpuinfra/programs.py`."""
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


# https://learn.microsoft.com/azure/azure-resource-manager/management/resource-name-rules
_SUFFIXES = {
    Kind.NSG: ("-nsg", 80),
    Kind.VNET: ("-vnet", 64),
    Kind.PUBLIC_IP: ("-ip", 80),
    Kind.NIC: ("-nic", 80),
    Kind.DISK: ("-disk", 80),
    Kind.VM: ("", 64),
}


def same_name(found: object, wanted: str) -> bool:
    """Return whether a value from Azure, or None, is this name. Azure ignores case."""
    return str(found or "").casefold() == wanted.casefold()


_GROUP, _SCHEDULE = "gpuinfra-", "shutdown-computevm-"


def default_group(machine: str) -> str:
    """Return the resource group for a machine whose spec names none."""
    return f"{_GROUP}{machine}"


def machine_of_group(group: str) -> str:
    """Return the machine that has this default group."""
    return group[len(_GROUP) :]


def machine_of_schedule(schedule: str) -> str:
    """Return the machine that has a daily shutdown schedule with this name."""
    return schedule[len(_SCHEDULE) :]


def machine_key(group: str, machine: str) -> str:
    """Return a key that identifies a machine: its name, with the group unless it is the default. Azure ignores case."""
    return (machine if same_name(group, default_group(machine)) else f"{group}/{machine}").casefold()


def name_of(kind: Kind, machine: str) -> str:
    """Return the name of a machine's resource."""
    if kind is Kind.SHUTDOWN_SCHEDULE:
        return f"{_SCHEDULE}{machine}"  # Azure accepts the daily shutdown schedule only under this name
    suffix, longest = _SUFFIXES[kind]
    if len(machine) + len(suffix) <= longest:
        return machine + suffix
    # Long names with the same beginning must stay different.
    mark = hashlib.sha256(machine.casefold().encode()).hexdigest()[:6]
    return f"{machine[: longest - len(suffix) - 7]}-{mark}{suffix}"


def ref_of(kind: Kind, group: str, machine: str) -> Ref:
    """Return the reference to a machine's resource."""
    return Ref(kind, group, group if kind is Kind.RESOURCE_GROUP else name_of(kind, machine))
