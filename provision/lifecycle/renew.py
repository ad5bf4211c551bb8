"""A lease given more time, or ended: in the machine's tag, and in Azure's own schedule. No spec is needed for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gpuinfra.diagnostics import Code, Diagnostic, Problem
from gpuinfra.models.hours import Hours
from gpuinfra.models.receipt import stamp
from gpuinfra.models.resource import Kind, Ref, Resource
from gpuinfra.models.spec import Lifecycle
from gpuinfra.provision import tags
from gpuinfra.provision.cloud import Cloud, ObservedResource
from gpuinfra.provision.errors import CloudError
from gpuinfra.provision.lifecycle.hours import from_tag as hours_from_tag
from gpuinfra.provision.lifecycle.lease import ON, settled
from gpuinfra.provision.lifecycle.terms import from_tag as terms_from_tag
from gpuinfra.provision.lifecycle.terms import terms_of
from gpuinfra.provision.names import ref_of
from gpuinfra.provision.ownership import Owner, owner_of, untagged_problem
from gpuinfra.provision.problems import explain
from gpuinfra.provision.resources.common import with_others
from gpuinfra.provision.resources.shutdown_schedule import moved
from gpuinfra.provision.waiting.deadline import Deadline
from gpuinfra.provision.waiting.patience import patiently

UNREACHABLE_SECONDS = 30.0
# A stopped machine is billed too, but more time would do nobody any good.
_USABLE = frozenset({"running", "starting"})


@dataclass(frozen=True)
class Renewed:
    """Until when the machine may be on now."""

    until: datetime
    changed: bool
    capped: bool
    """Whether it would be later but for the cost cap."""


def renew(  # noqa: PLR0913 what is wished is by name
    cloud: Cloud,
    name: str,
    group: str | None,
    *,
    to: datetime | None = None,
    extend: timedelta | None = None,
    release: bool = False,
    hours: Hours | None = None,
    deadline: Deadline,
) -> Renewed:
    """Give a machine that is on another end. It comes later by `extend`, or not before `to`; without either, not before
    a whole lease from now. `release` lets it end now. `hours` are the spec's: a tag has no room for holidays."""
    try:
        machine = find_machine(cloud, name, group)
        _check_power(name, machine, ON if release else _USABLE)
        found = renewal(machine.tags, cloud.now(), to=to, extend=extend, release=release, hours=hours)
        _carry_out(cloud, machine, found.until, deadline, shortens=_shortens(machine, found.until))
    except CloudError as error:
        raise explain(error, f"renewing the lease of {name}") from error
    return found


def renewal(
    marks: Mapping[str, str],
    now: datetime,
    *,
    to: datetime | None = None,
    extend: timedelta | None = None,
    release: bool = False,
    hours: Hours | None = None,
) -> Renewed:
    """What becomes of the lease of a machine with these tags. Pure."""
    terms = terms_from_tag(tags.get(marks, tags.TERMS)) or terms_of(Lifecycle(), None)
    hours = hours or hours_from_tag(tags.get(marks, tags.HOURS))
    since, old = tags.moment(marks, tags.ON_SINCE) or now, tags.moment(marks, tags.LEASE_UNTIL)
    end = max(old or now, now)
    if release:
        # A schedule for a minute that has begun would wait until tomorrow.
        wanted = now + timedelta(seconds=1)
    elif extend:
        wanted = end + extend
    else:
        wanted = max(end, to or now + terms.lease)
    until = settled(wanted, since, terms, hours)
    if release and old:
        until = min(until, old)
    uncapped = settled(wanted, since, replace(terms, cap=None), hours)
    return Renewed(until, changed=until != old, capped=not release and until < uncapped)


def find_machine(cloud: Cloud, name: str, group: str | None) -> ObservedResource:
    """The machine of this name, which must be ours. Without a group, wherever it is."""
    found = cloud.look(ref_of(Kind.VM, group, name)) if group else cloud.observe(name).part(Kind.VM)
    if found and owner_of(found) is not Owner.OURS:
        raise untagged_problem(found)
    if found is None:
        raise Problem(
            Diagnostic(
                Code.NO_SUCH_MACHINE,
                "no such machine",
                note=f"no machine `{name}` of gpuinfra's is there",
                help="`gpuinfra status` lists them; `gpuinfra up SPEC` makes one",
            )
        )
    return found


def _check_power(name: str, machine: ObservedResource, powers: frozenset[str]) -> None:
    if machine.power not in powers:
        raise Problem(
            Diagnostic(
                Code.MACHINE_IS_OFF,
                "machine is not running",
                note=f"`{name}` is {machine.power}: there is no lease to change",
                help="`gpuinfra up SPEC` starts it, with a lease",
            )
        )


def _shortens(machine: ObservedResource, until: datetime) -> bool:
    old = tags.moment(machine.tags, tags.LEASE_UNTIL)
    return old is not None and until < old


def _carry_out(cloud: Cloud, machine: ObservedResource, until: datetime, deadline: Deadline, *, shortens: bool) -> None:
    """In the order in which a crash half-way leaves the earlier end in force."""
    if shortens:
        _write(cloud, machine.ref, until, deadline, shortens=True)
        _move(cloud, machine, until, deadline)
        return
    _move(cloud, machine, until, deadline)
    later = _write(cloud, machine.ref, until, deadline, shortens=False)
    if later > until:
        # Somebody else has given it more time meanwhile, and their daily stop was just moved.
        _move(cloud, machine, later, deadline)


def _write(cloud: Cloud, ref: Ref, until: datetime, deadline: Deadline, *, shortens: bool) -> datetime:
    """Which end is in the tag then: where it is not to be shortened, a later one that others have written stays."""

    def attempt() -> datetime:
        # Looked at once more: whatever others have put on it in the meantime stays.
        part = cloud.look(ref)
        if part is None:
            return until
        there = tags.moment(part.tags, tags.LEASE_UNTIL)
        if there == until or (there and there > until and not shortens):
            return there
        marked = with_others(part, {tags.LEASE_UNTIL: stamp(until) or ""})
        cloud.wait(cloud.patch(Resource(ref, {"tags": marked})), deadline)
        return until

    return patiently(attempt, deadline, cloud.interrupt.sleep, unreachable_seconds=UNREACHABLE_SECONDS)


def _move(cloud: Cloud, machine: ObservedResource, until: datetime, deadline: Deadline) -> None:
    def attempt() -> None:
        found = cloud.look(ref_of(Kind.SHUTDOWN_SCHEDULE, machine.ref.group, machine.ref.name))
        wanted = moved(machine, found, until, cloud.now(), cloud.subscription)
        if wanted:
            cloud.wait(cloud.put(wanted), deadline)

    patiently(attempt, deadline, cloud.interrupt.sleep, unreachable_seconds=UNREACHABLE_SECONDS)
