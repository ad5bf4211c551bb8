"""Begin anew: everything that was made is forgotten, who the sandbox is stays."""

from __future__ import annotations

from sandbox.kernel.faults import Faults
from sandbox.kernel.store import Store

QUOTA_LIMITS = "quota-limits"
"""The setting with limits that differ from the catalogue's: region, then family, then limit."""


def forget(store: Store) -> None:
    """Remove resources, operations, bills, requests, faults and limits. Identity, profile and clock stay."""
    with store.transaction():
        store.clear()
        Faults(store).clear()
        store.set_setting(QUOTA_LIMITS, {})
