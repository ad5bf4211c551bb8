"""The port to a whole subscription, which the reaper needs in addition to the Cloud port."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from gpuinfra.models.resource import Ref


@dataclass(frozen=True, slots=True)
class Listed:
    """A resource with our tag, from a listing."""

    ref: Ref
    tags: dict[str, str] = field(default_factory=dict)
    since: datetime | None = None
    """When it was created or last changed, whichever is later; None if Azure does not show it."""


class Fleet(Protocol):
    """A whole subscription. Every method raises only CloudError and is thread-safe."""

    def machines(self) -> list[dict[str, Any]]:
        """Return the bodies of all VMs, including others', with instance views. Sends one request per page."""

    def parts(self) -> list[Listed]:
        """Return all resources with our tag, of the kinds that gpuinfra creates. Sends one request per page."""

    def ask_off(self, ref: Ref) -> None:
        """Request the deallocation of a VM. Returns once Azure accepts the request; the operation is not polled."""

    def ask_delete(self, ref: Ref) -> None:
        """Request the deletion of a VM whose deletion is unfinished. Returns once Azure accepts the request."""
