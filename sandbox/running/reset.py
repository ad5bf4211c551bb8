"""Empty the sandbox: everything that was created is forgotten, its identity stays."""

from __future__ import annotations

from gpuinfra.sandbox.kernel.store import Store

QUOTA_LIMITS = "quota-limits"
"""The setting with limits that differ from the catalogue's: region, then family, then limit."""
KEPT = (
    *("tenant", "subscription", "client-id", "client-object-id", "client-secret", "token-key", "ssh-port", "seed"),
    "profile",
    "network-public-address",  # a guest that is being deleted may still have the last address
)
"""The settings that survive a reset."""


def forget(store: Store) -> None:
    """Remove resources, operations, bills, requests, and every setting but those of `KEPT`."""
    with store.transaction():
        store.clear()
        store.remove_settings(unless=KEPT)
