"""What reaping asks of a subscription besides what a cloud can do to one machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from gpuinfra.models.resource import Ref


@dataclass(frozen=True, slots=True)
class Listed:
    """A resource of ours as a listing shows it."""

    ref: Ref
    tags: dict[str, str] = field(default_factory=dict)
    since: datetime | None = None
    """When it was made or last changed, whichever is later; None where Azure does not say."""


class Fleet(Protocol):
    """A whole subscription. Every method raises CloudError and nothing else; calls may come from many threads."""

    def machines(self) -> list[dict[str, Any]]:
        """Bodies of all machines there are, others' as well, each with its instance view. One call a page."""

    def parts(self) -> list[Listed]:
        """All resources that carry our tag and are of a kind that is made here. One call a page."""

    def ask_off(self, ref: Ref) -> None:
        """Have a machine deallocated. Returns once Azure has accepted it; nobody asks after the operation."""

    def ask_delete(self, ref: Ref) -> None:
        """Have a machine deleted whose deletion has not ended. Returns once Azure has accepted it."""
