"""What a machine was promised at power-on, kept in a tag: whoever has to end it, or to renew its lease, has no spec."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal

from gpuinfra.models.durations import format_duration, parse_duration
from gpuinfra.models.spec import Lifecycle

MINUTE = timedelta(minutes=1)
LONGEST = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class Terms:
    """How long a lease is, when idleness ends it, and how long it may be on for its money."""

    lease: timedelta
    idle: timedelta
    cap: timedelta | None = None
    """The cost cap as a time, counted from power-on; None where there is no cap, or no price."""


def terms_of(lifecycle: Lifecycle, price_per_hour: float | None) -> Terms:
    """A spec's own, at the price of the machine that was had."""
    return Terms(lifecycle.lease, lifecycle.idle, _cap(lifecycle, price_per_hour))


def _cap(lifecycle: Lifecycle, price_per_hour: float | None) -> timedelta | None:
    """Cap by price, in whole minutes, never more than is paid for; one minute at least, or it would never begin."""
    if lifecycle.max_cost is None or not price_per_hour:
        return None
    hours = lifecycle.max_cost.dollars / Decimal(str(price_per_hour))
    minutes = int(hours * 60)
    return min(LONGEST, max(MINUTE, minutes * MINUTE))


def to_tag(terms: Terms) -> str:
    """`lease=4h idle=20m cap=9h30m`."""
    found = {"lease": terms.lease, "idle": terms.idle, "cap": terms.cap}
    return " ".join(f"{name}={format_duration(value)}" for name, value in found.items() if value)


def from_tag(text: str) -> Terms | None:
    """What `to_tag` wrote; None for anything else, since anybody can write a tag."""
    words = dict(word.partition("=")[::2] for word in text.split())
    try:
        cap = parse_duration(words["cap"]) if "cap" in words else None
        return Terms(parse_duration(words["lease"]), parse_duration(words["idle"]), cap)
    except (KeyError, ValueError):
        return None
