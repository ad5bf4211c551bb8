"""The terms of a machine since power-on, stored in a tag for clients that stop it or renew its lease without a spec."""

from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal

from gpuinfra.models.quantities import format_duration, parse_duration
from gpuinfra.models.spec import Lifecycle

MINUTE = timedelta(minutes=1)
MAX_CAP = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class Terms:
    """The lease length, the idle time limit, and the time limit from the cost cap."""

    lease: timedelta
    idle: timedelta
    cap: timedelta | None = None
    """The cost cap as a duration from power-on; None without a cap or a price."""


def terms_of(lifecycle: Lifecycle, price_per_hour: float | None) -> Terms:
    """Return the terms from a spec, with the hourly price of the actual VM."""
    return Terms(lifecycle.lease, lifecycle.idle, _cap(lifecycle, price_per_hour))


def _cap(lifecycle: Lifecycle, price_per_hour: float | None) -> timedelta | None:
    """Return the time that the cost cap pays for, rounded down to minutes, but at least one minute."""
    if lifecycle.max_cost is None or not price_per_hour:
        return None
    hours = lifecycle.max_cost.dollars / Decimal(str(price_per_hour))
    minutes = int(hours * 60)
    return min(MAX_CAP, max(MINUTE, minutes * MINUTE))


def terms_to_tag(terms: Terms) -> str:
    """Return a text like `lease=4h idle=20m cap=9h30m`."""
    found = {"lease": terms.lease, "idle": terms.idle, "cap": terms.cap}
    return " ".join(f"{name}={format_duration(value)}" for name, value in found.items() if value)


def terms_from_tag(text: str) -> Terms | None:
    """Parse the text from `terms_to_tag`; return None for other text, because anyone can write a tag."""
    words = dict(word.partition("=")[::2] for word in text.split())
    try:
        cap = parse_duration(words["cap"]) if "cap" in words else None
        return Terms(parse_duration(words["lease"]), parse_duration(words["idle"]), cap)
    except (KeyError, ValueError):
        return None
