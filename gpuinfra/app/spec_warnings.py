"""Warn about lifecycle fields of a valid spec that defeat each other. All pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from gpuinfra.diagnostics import Code, Diagnostic, Severity
from gpuinfra.models.base import format_duration

if TYPE_CHECKING:
    from gpuinfra.models.hours import Hours
    from gpuinfra.parse.spec import LocatedSpec
    from gpuinfra.provision.market import Prices

DAY = timedelta(days=1)
SUMMARY = "fields that defeat each other"


def spec_warnings(specs: Sequence[LocatedSpec], prices: Prices) -> list[Diagnostic]:
    """Return the warnings for all specs, with the fields' places."""
    return [
        Diagnostic(
            Code.DEFEATING_FIELDS,
            SUMMARY,
            next((located.places[key] for key in keys if key in located.places), located.span),
            label,
            help=help_line,
            severity=Severity.WARNING,
            machine=located.spec.name,
        )
        for located in specs
        for keys, label, help_line in _warnings(located, prices)
    ]


def longest_range(hours: Hours) -> timedelta:
    """Return the length of the longest range of the hours."""
    ranges = [each for window in hours.on for each in window.ranges]
    return max(timedelta(minutes=(end - start) % (24 * 60) or 24 * 60) for start, end in ranges)


def _warnings(located: LocatedSpec, prices: Prices) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Yield the keys to point at, the first that is present; what they do; and the fix."""
    spec, own = located.spec, located.spec.lifecycle
    hours = own.hours
    if hours is None:
        return
    length = longest_range(hours)
    long, idle = format_duration(length), format_duration(own.idle)
    if spec.power == "deallocated":
        yield (
            ("hours",),
            "`power: deallocated` keeps the machine off, also inside its hours",
            "remove `power`, or the hours",
        )
        return
    if length == DAY and hours.holidays is None and any(len(window.days) == len(_WEEK) for window in hours.on):
        yield ("hours",), "hours that never end have no effect", "remove them, or write when they end"
        return
    # An idle time that is written is a decision; the default may be a surprise.
    if "idle" not in located.places and own.idle < length:
        yield (
            ("hours",),
            f"the default `idle: {idle}` also applies inside hours: the machine goes off after {idle} without a job, a "
            "login or GPU use, and `reap --start` does not start it again before the hours begin the next time",
            f"write `idle: {long}` to keep it on during its hours, or `idle: {idle}` if it may go off",
        )
    if own.lease > length:
        yield (
            ("lease", "hours"),
            f"`lease: {format_duration(own.lease)}` is longer than the hours ({long}): it keeps a machine that `up` "
            "starts on outside them",
            f"write `lease: {long}` or less; a lease that ends inside the hours is extended to their end",
        )
    if own.after_run == "delete":
        yield (
            ("afterRun",),
            "a run deletes the machine, and `reap --start` cannot start a deleted machine",
            "write `afterRun: deallocate`, or `keep`",
        )
    paid = _paid_hours(located, prices)
    if paid is not None and paid < length:
        yield (
            ("maxCost",),
            f"`maxCost: {own.max_cost}` pays for about {format_duration(paid) or '0m'} of the hours ({long}), by the "
            "price list of gpuinfra; then the machine goes off",
            "write a higher `maxCost`, a smaller size, or shorter hours",
        )


_WEEK = range(7)


def _paid_hours(located: LocatedSpec, prices: Prices) -> timedelta | None:
    """Return how long the cost cap lasts at the highest known list price, in minutes; None without a cap or a price."""
    spec = located.spec
    found = [prices.price(size, region) for size in spec.candidate_sizes for region in spec.regions]
    known = [price for price in found if price]
    if spec.lifecycle.max_cost is None or spec.priority == "spot" or not known:
        return None
    return timedelta(minutes=int(float(spec.lifecycle.max_cost.dollars) / max(known) * 60))
