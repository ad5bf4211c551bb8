"""An entry of the ledger: a machine was switched on, or ended, by this program."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import StrEnum
from typing import Any

from gpuinfra.models.receipt import Receipt, stamp


class EntryKind(StrEnum):
    """What happened to the machine."""

    ON = "on"
    """It was switched on, so it was off before."""
    CHANGED = "changed"
    """It is on, and was on before, but is another now: another size, another price."""
    OFF = "off"
    """It was seen to be off; its disk and its address may be there."""
    GONE = "gone"
    """It was seen to be gone, with all that was made for it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What is remembered of it. Fields that nobody knew are None."""

    what: EntryKind
    at: datetime
    """By Azure's clock: from when on it is so."""
    machine: str
    group: str | None = None
    subscription: str = ""
    region: str | None = None
    size: str | None = None
    spot: bool = False
    price_per_hour: float | None = None
    """US dollars, at the time."""
    disk_per_month: float | None = None
    address_per_month: float | None = None
    since: datetime | None = None
    """Of an end: since when it was on."""
    lease_until: datetime | None = None
    """Of a beginning: when it goes off at the latest, unless its lease is renewed."""
    cause: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    """The user's own."""
    simulated: bool = False

    def as_json(self) -> dict[str, Any]:
        """For the ledger and for programs. `entry_from_json` reads it again."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        moments = {name: stamp(found[name]) for name in _MOMENTS}
        return {_camel(name): value for name, value in {**found, **moments, "what": self.what.value}.items()}


_MOMENTS = ("at", "since", "lease_until")


def entry_from_json(found: dict[str, Any]) -> Entry:
    """An entry as `as_json` wrote it. Keys that a newer gpuinfra wrote are passed over."""
    known = {each.name: found[_camel(each.name)] for each in fields(Entry) if _camel(each.name) in found}
    moments = {name: datetime.fromisoformat(known[name]) if known.get(name) else None for name in _MOMENTS}
    return Entry(**{**known, **moments, "what": EntryKind(known["what"])})


def entry_of(receipt: Receipt, subscription: str) -> Entry | None:
    """What a receipt has to say; None where nothing is proven, for then the machine may still be on."""
    if receipt.verified is None:
        return None
    gone = receipt.deletes and receipt.is_proof
    return Entry(
        what=EntryKind.GONE if gone else EntryKind.OFF,
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


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
