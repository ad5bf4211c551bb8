"""What a machine is on for, in a tag. The tag has the lease's end and counts only until something changes that."""

from collections.abc import Mapping
from datetime import datetime

from gpuinfra.models.json_values import stamp
from gpuinfra.models.stay import Purpose, Reason
from gpuinfra.provision import tags


def purpose_to_tag(purpose: Purpose, until: datetime) -> str:
    """Return a text like `failed-job ID 2026-11-16T08:00:00Z`. The guest agent reads it, too."""
    return f"{purpose.reason.value} {purpose.run} {stamp(until)}"


def purpose_of(marks: Mapping[str, str] | None) -> Purpose | None:
    """Return what a machine with these tags is on for; None without a tag, or after its lease was changed."""
    words = tags.get(marks, tags.ON_FOR).split()
    if len(words) != 3 or words[0] not in {each.value for each in Reason}:
        return None
    until = tags.moment(marks, tags.LEASE_UNTIL)
    return Purpose(Reason(words[0]), words[1]) if until and tags.parse_moment(words[2]) == until else None


def is_held(marks: Mapping[str, str] | None) -> bool:
    """Return whether a machine with these tags is only on for a look at a failed job."""
    found = purpose_of(marks)
    return found is not None and found.reason is Reason.FAILED_JOB
