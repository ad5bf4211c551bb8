"""Receipts, which say how the end of a machine was verified and what it cost, and the ledger's entries."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from gpuinfra.models.json_values import camel, parse_stamp, stamp
from gpuinfra.models.stay import Reason, Stay

MORNING = 8
"""The hour at which a machine left on overnight would be noticed."""
OFF_BEFORE = "it was off already"
"""The cause in the receipt of a machine that this command did not stop."""


class OffProof(StrEnum):
    """Azure's answer that proves "off". No other answer counts."""

    DEALLOCATED = "PowerState/deallocated"
    ABSENT = "404"


@dataclass(frozen=True, slots=True)
class Residue:
    """A resource that is still billed."""

    kind: str
    name: str
    per_month: float | None
    """Approximate US dollars; None without a known price."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What ended, what it cost, what is still billed, and how "off" was verified."""

    name: str
    verified: OffProof | None
    """None if "off" is not proven."""
    at: datetime
    region: str | None = None
    size: str | None = None
    spot: bool = False
    group: str | None = None
    """The machine's resource group."""
    billed_from: datetime | None = None
    billed_to: datetime | None = None
    price_per_hour: float | None = None
    """The last price, if it changed."""
    cost_usd: float | None = None
    """The cost from all sources; None to calculate it from times and price."""
    deleted: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    """What was kept on purpose, and why."""
    left: tuple[str, ...] = ()
    """What should be gone but is not."""
    residue: tuple[Residue, ...] = ()
    deletes: bool = False
    """Whether the machine was to be deleted, not only deallocated."""
    simulated: bool = False
    cause: str = ""
    """What ended it: `gpuinfra down`, `reap: the lease is over`, …"""
    existed: bool = True
    """Whether there is evidence that the machine ever existed. Without it, "absent" does not mean "deleted"."""
    created: datetime | None = None
    principal: str = ""
    """The ID of the machine's own identity, under which its agent is in Azure's log."""
    disk_per_month: float | None = None
    address_per_month: float | None = None
    """What its disk and its public IP cost, in US dollars, whether they are deleted or not; None if unknown."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """The user's own tags."""
    left_on_until: datetime | None = None
    """Until when it might have stayed on: see `next_morning`. None if it was already off."""
    stay: Stay | None = None
    """Why it stays on as requested, and until when; None if it was to end."""

    @property
    def billed_seconds(self) -> float | None:
        """The billed seconds since power-on; None if unknown."""
        if self.billed_from is None or self.billed_to is None:
            return None
        return max(0.0, (self.billed_to - self.billed_from).total_seconds())

    @property
    def cost(self) -> float | None:
        """The list-price cost in US dollars; None if unknown."""
        if self.cost_usd is not None:
            return self.cost_usd
        if self.billed_seconds is None or self.price_per_hour is None:
            return None
        return self.billed_seconds / 3600 * self.price_per_hour

    @property
    def saves_per_day(self) -> float | None:
        """US dollars per day saved by being off; None if unknown."""
        if self.verified is None or self.price_per_hour is None or self.billed_from is None:
            return None
        return self.price_per_hour * 24

    @property
    def left_on_cost(self) -> float | None:
        """The additional cost if it had stayed on until then; None if unknown."""
        if self.saves_per_day is None or self.left_on_until is None:
            return None
        return left_on_cost(self.billed_to or self.at, self.left_on_until, self.price_per_hour)

    @property
    def remove_command(self) -> str | None:
        """The command that removes what is still billed; None if there is nothing, or "off" is not proven."""
        return self._command("down", "--delete") if self.residue and self.is_proof else None

    @property
    def next_commands(self) -> tuple[str, ...]:
        """Commands to run if "off" is not proven. They delete only what was to be deleted."""
        if self.is_proof:
            return ()
        if self.stay:
            look = (self._command("ssh"),) if self.stay.purpose.reason is Reason.FAILED_JOB else ()
            return *look, self._command("down", "--delete" if self.stay.after_run == "delete" else "")
        return self._command("down", "--delete" if self.deletes else ""), self._command("status")

    def _command(self, verb: str, option: str = "") -> str:
        words = ("gpuinfra", verb, self.name, option, "--sandbox" if self.simulated else "")
        return " ".join(word for word in words if word)

    @property
    def is_proof(self) -> bool:
        """Whether it is off and everything that should be gone is gone."""
        return self.verified is not None and not self.left

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "off": self.verified is not None,
            "existed": self.existed,
            "verifiedBy": self.verified.value if self.verified else None,
            "verifiedAt": stamp(self.at),
            "region": self.region,
            "size": self.size,
            "spot": self.spot,
            "resourceGroup": self.group,
            "cause": self.cause or None,
            "billedFrom": stamp(self.billed_from),
            "billedTo": stamp(self.billed_to),
            "billedSeconds": self.billed_seconds,
            "pricePerHourUsd": self.price_per_hour,
            "costUsd": _cents(self.cost),
            "savesPerDayUsd": _cents(self.saves_per_day),
            "leftOn": None
            if self.left_on_cost is None
            else {"until": stamp(self.left_on_until), "costUsd": _cents(self.left_on_cost)},
            "deleted": list(self.deleted),
            "kept": list(self.kept),
            "left": list(self.left),
            "residue": [{"kind": each.kind, "name": each.name, "perMonthUsd": each.per_month} for each in self.residue],
            "removeCommand": self.remove_command,
            "nextCommands": list(self.next_commands),
            "staysOn": self.stay.as_json() if self.stay else None,
            "simulated": self.simulated,
        }


def next_morning(now: datetime) -> datetime:
    """Return the next eight o'clock in the time zone of `now`."""
    day = (now if now.hour < MORNING else now + timedelta(days=1)).date()
    return datetime(day.year, day.month, day.day, MORNING, tzinfo=now.tzinfo)


def left_on_cost(now: datetime, until: datetime, price_per_hour: float | None) -> float | None:
    """Return the cost in US dollars from now until then, or None without a price."""
    if price_per_hour is None:
        return None
    # Subtract timestamps: subtracting datetimes of one zone ignores daylight saving changes.
    return max(0.0, until.timestamp() - now.timestamp()) / 3600 * price_per_hour


def _cents(dollars: float | None) -> float | None:
    return None if dollars is None else round(dollars, 4)


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


def entries_from_json(found: Iterable[Any]) -> list[LedgerEntry]:
    """Return the entries in objects that others may have written, without those that cannot be read."""
    entries = []
    for each in found:
        try:
            entry = entry_from_json(each)
            if _is_sound(entry):
                entries.append(entry)
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    return entries


_MOST_USD = 1e6


def _is_sound(entry: LedgerEntry) -> bool:
    """Return whether each value has its type: JSON that others wrote may have anything."""
    texts = (entry.machine, entry.subscription, entry.cause, *entry.tags, *entry.tags.values())
    unknown_or_text = (entry.group, entry.region, entry.size)
    prices = (entry.price_per_hour, entry.disk_per_month, entry.address_per_month)
    return (
        isinstance(entry.at, datetime)
        and all(isinstance(each, str) for each in texts)
        and all(each is None or isinstance(each, str) for each in unknown_or_text)
        and all(isinstance(each, bool) for each in (entry.spot, entry.simulated))
        and all(each is None or (type(each) in {int, float} and 0 <= each < _MOST_USD) for each in prices)
    )


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
        disk_per_month=receipt.disk_per_month,
        address_per_month=receipt.address_per_month,
        since=receipt.billed_from,
        cause=receipt.cause,
        tags=dict(receipt.tags),
        simulated=receipt.simulated,
    )
