"""Find what costs money in Azure and is in no spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gpuinfra.app.access import CloudSession
from gpuinfra.models.inventory import UnmanagedResource
from gpuinfra.models.plan import Kind
from gpuinfra.parse.spec import LocatedSpec
from gpuinfra.provision import inventory
from gpuinfra.provision.cloud import Listed
from gpuinfra.provision.market import Prices
from gpuinfra.provision.reaping.spec_history import spec_history
from gpuinfra.provision.tags import machine_key, ref_of

AT_ONCE = 4

Rows = Sequence[Mapping[str, Any]]


def keys_of(specs: Sequence[LocatedSpec]) -> frozenset[str]:
    """Return the keys of the machines that have a spec."""
    return frozenset(machine_key(each.spec.group_name, each.spec.name) for each in specs)


def unmanaged(
    session: CloudSession,
    folder: Path,
    specs: Sequence[LocatedSpec],
    rows: Rows,
    parts: Sequence[Listed],
    prices: Prices,
) -> tuple[list[UnmanagedResource], str]:
    """Return what is in no spec of a folder, and a note if git cannot tell. `prices` are those of all GPU sizes."""
    now = session.cloud.now()
    history = spec_history(folder, now)
    found = inventory.unmanaged(rows, parts, keys_of(specs), history, now, prices)

    def priced(each: UnmanagedResource) -> UnmanagedResource:
        ref = ref_of(Kind.DISK, each.ref.group, each.ref.name) if each.ref.kind is Kind.VM else each.ref
        return inventory.with_disk(each, session.cloud.look(ref) if ref.kind is Kind.DISK else None, parts)

    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="disks") as pool:
        return list(pool.map(priced, found)), history.note if history.is_shallow else ""
