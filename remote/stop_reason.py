"""Why the machine itself ends a job: its agent writes that down just before it asks the job to end."""

from __future__ import annotations

import json
import os

from gpuinfra.remote import home

ENDING = "ending.json"
HOWS = frozenset({"evicted", "lease over", "idle", "cost cap"})
LONGEST_DETAIL = 1000


def read(run: str) -> dict[str, str] | None:
    """How and why; None where nobody ends it, or what is written makes no sense."""
    try:
        with open(_path(run), "rb") as file:
            found = json.loads(file.read())
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict) or found.get("how") not in HOWS:
        return None
    return {"how": str(found["how"]), "detail": str(found.get("detail") or "")[:LONGEST_DETAIL]}


def of_end(run: str, ended: float) -> dict[str, str]:
    """What it says of a job that ended then: nothing of one that had ended before it was written."""
    found = read(run)
    try:
        # By the second: some file systems keep no more of a file's time.
        is_before = os.stat(_path(run)).st_mtime - 1.0 > ended
    except OSError:
        return {}
    return {} if found is None or is_before else {key: value for key, value in found.items() if value}


def _path(run: str) -> str:
    return os.path.join(home.run_folder(run), ENDING)
