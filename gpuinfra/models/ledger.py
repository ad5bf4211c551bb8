"""A ledger entry: gpuinfra started, changed or ended a machine."""

from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import StrEnum
from typing import Any

from gpuinfra.models.json_values import camel, parse_stamp, stamp
from gpuinfra.models.receipt import Receipt


class LedgerEntryKind(StrEnum):
    """What happened to the machine."""

    ON = "on"
    """Started; it was off before."""
    CHANGED = "changed"
    """Still on, with another size or price."""
    OFF = "off"
    """Azure reported it off; its disk and public IP may still exist."""
    GONE = "gone"
    """Azure reported it and all its resources gone."""


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One event in a machine's life. Unknown fields are None."""

    what: LedgerEntryKind
    at: datetime
    """When it happened, by Azure's clock."""
    machine: str
    group: str | None = None
    subscription: str = ""
    region: str | None = None
    size: str | None = None
    spot: bool = False
    price_per_hour: float | None = None
    """US dollars, at that time."""
    disk_per_month: float | None = None
    address_per_month: float | None = None
    since: datetime | None = None
    """For OFF and GONE: when the machine was started."""
    lease_until: datetime | None = None
    """For ON: when the lease ends, unless it is renewed."""
    cause: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    """The user's own tags."""
    simulated: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object that `entry_from_json` reads."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        moments = {name: stamp(found[name]) for name in _MOMENTS}
        return {camel(name): value for name, value in {**found, **moments, "what": self.what.value}.items()}


_MOMENTS = ("at", "since", "lease_until")


def entry_from_json(found: dict[str, Any]) -> LedgerEntry:
    """Return the entry that `as_json` wrote. Keys of a newer gpuinfra are ignored."""
    known = {each.name: found[camel(each.name)] for each in fields(LedgerEntry) if camel(each.name) in found}
    moments = {name: parse_stamp(known.get(name)) for name in _MOMENTS}
    return LedgerEntry(**{**known, **moments, "what": LedgerEntryKind(known["what"])})


def entry_from_receipt(receipt: Receipt, subscription: str) -> LedgerEntry | None:
    """Return the entry for a receipt, or None if "off" is not verified: the machine may still be on."""
    if receipt.verified is None:
        return None
    gone = receipt.deletes and receipt.is_proof
    return LedgerEntry(
        what=LedgerEntryKind.GONE if gone else LedgerEntryKind.OFF,
        at=receipt.billed_to or receipt.at,
        machine=receipt.name,
        group=receipt.group,
        subscription=subscription,
        region=receipt.region,
        size=receipt.size,
        spot=receipt.spot,
        price_per_hour=receipt.price_per_hour,
        since=receipt.billed_from,
        cause=receipt.cause,
        simulated=receipt.simulated,
    )
