"""What `schedule install` and `uninstall` did."""

from __future__ import annotations

from dataclasses import dataclass

from gpuinfra.scheduling.rendering import Scheduler

CRONTAB = "your crontab"


@dataclass(frozen=True)
class ScheduleOutcome:
    """What was written, left or taken away, and what only the user can do."""

    scheduler: Scheduler
    written: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    active: bool | None = None
    """Whether the scheduler has it now; None where that cannot be seen from here."""
    left: tuple[str, ...] = ()
    reason: str | None = None
