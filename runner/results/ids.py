"""Names of runs: they sort by time, and two at once differ."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime


def new_run_id(now: datetime) -> str:
    """`20261116-121530-3f9c`: the moment in UTC, and a few random digits."""
    return f"{now.astimezone(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
