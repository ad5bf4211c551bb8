"""Machines that this workspace switched on and that no spec here describes, for example after a rename."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress

from gpuinfra.app.access import is_simulated, open_cloud
from gpuinfra.app.machine_costs import ledger_entries
from gpuinfra.app.settings import Settings
from gpuinfra.diagnostics import Problem
from gpuinfra.models.ledger import LedgerEntry, LedgerEntryKind
from gpuinfra.models.resource import Kind
from gpuinfra.models.spec import Spec
from gpuinfra.parse.files import load_paths
from gpuinfra.provision.errors import CloudError
from gpuinfra.provision.names import default_group, machine_key, ref_of
from gpuinfra.provision.ownership import Owner, owner_of
from gpuinfra.provision.power import BILLED
from gpuinfra.provision.progress import Progress

SECONDS = 20.0


def note_left_on(settings: Settings, names: Iterable[str], progress: Progress) -> None:
    """Print a line for each such machine that is on, according to Azure.

    `names` are the machines of this command, which reports them itself. What cannot be read prints nothing.
    """
    if settings.ignores_state:
        return
    simulated = is_simulated(settings)
    with suppress(Problem, CloudError, OSError):
        entries = ledger_entries(settings, simulated=simulated)
        if not entries:
            return
        specs = [each.spec for each in load_paths([str(settings.folder)]).specs]
        for entry in without_spec(entries, specs, {name.casefold() for name in names}):
            if _is_on(settings, entry):
                command = f"gpuinfra down {entry.machine}{' --sandbox' if simulated else ''}"
                progress.note(f"{entry.machine} was switched on from this workspace and is still on: `{command}`")


def without_spec(entries: Sequence[LedgerEntry], specs: Iterable[Spec], names: Collection[str]) -> list[LedgerEntry]:
    """Return the last entry of each machine that was switched on and not off, and has no spec."""
    described = {machine_key(spec.group_name, spec.name) for spec in specs}
    last: dict[tuple[str, str], LedgerEntry] = {}
    for entry in entries:
        key = machine_key(entry.group or default_group(entry.machine), entry.machine)
        last[entry.subscription, key] = entry
    return [
        entry
        for (_, key), entry in last.items()
        if entry.what in {LedgerEntryKind.ON, LedgerEntryKind.CHANGED}
        and key not in described
        and entry.machine.casefold() not in names
    ]


def _is_on(settings: Settings, entry: LedgerEntry) -> bool:
    cloud = open_cloud(settings, entry.subscription or None, SECONDS)
    if entry.subscription and entry.subscription != cloud.subscription:
        return False
    found = cloud.look(ref_of(Kind.VM, entry.group or default_group(entry.machine), entry.machine))
    return found is not None and owner_of(found) is Owner.OURS and found.power in BILLED
