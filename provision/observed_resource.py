"""A resource as Azure shows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gpuinfra.models.resource import Ref

DELETING = "Deleting"
"""The provisioning state in which Azure accepts only another delete."""


@dataclass(frozen=True, slots=True)
class ObservedResource:
    """A resource as Azure shows it, with its body in ARM's format."""

    ref: Ref
    body: dict[str, Any] = field(repr=False)

    @property
    def properties(self) -> dict[str, Any]:
        """The body's `properties`, or an empty dict."""
        return self.body.get("properties") or {}

    @property
    def tags(self) -> dict[str, str]:
        """The resource's tags, or an empty dict."""
        return self.body.get("tags") or {}

    @property
    def region(self) -> str:
        """The region in the spelling that specs use."""
        return str(self.body.get("location") or "").replace(" ", "").lower()

    @property
    def state(self) -> str:
        """The provisioning state: Succeeded, Failed, Creating, Updating, Deleting, …."""
        return str(self.properties.get("provisioningState") or "Succeeded")

    @property
    def is_settled(self) -> bool:
        """Whether no operation on the resource is in progress."""
        return self.state in {"Succeeded", "Failed", "Canceled"}

    @property
    def failure(self) -> str:
        """Azure's code for the failure of a VM, or an empty string if it did not fail or Azure shows no code."""
        view = self.properties.get("instanceView") or {}
        codes = (str(status.get("code", "")).split("/") for status in view.get("statuses") or [])
        return next((code[2] for code in codes if code[:2] == ["ProvisioningState", "failed"] and len(code) > 2), "")

    @property
    def power(self) -> str:
        """The VM's power state: running, deallocated, …; `unknown` if Azure does not show it."""
        view = self.properties.get("instanceView") or {}
        codes = (str(status.get("code", "")) for status in view.get("statuses") or [])
        return next((code.removeprefix("PowerState/") for code in codes if code.startswith("PowerState/")), "unknown")


def same(one: Ref, other: Ref) -> bool:
    """Return whether two references mean the same resource. Azure ignores case."""
    return one.kind is other.kind and (one.group.casefold(), one.name.casefold()) == (
        other.group.casefold(),
        other.name.casefold(),
    )
