"""Extend or end a lease, in the VM's tag and in Azure's schedule. No spec is needed."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem, problem
from gpuinfra.models.base import MAX_DURATION
from gpuinfra.models.hours import Hours
from gpuinfra.models.json_values import stamp
from gpuinfra.models.plan import Kind, Ref, Resource
from gpuinfra.models.spec import Lifecycle
from gpuinfra.models.stay import Purpose, Reason, Stay
from gpuinfra.provision import tags
from gpuinfra.provision.cloud import Cloud
from gpuinfra.provision.errors import CloudError, explain
from gpuinfra.provision.lease import BACKSTOP, hours_from_tag, restarted_at, settled, terms_from_tag, terms_of
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.ownership import Owner, owner_of, untagged_problem
from gpuinfra.provision.power import BILLED, USABLE
from gpuinfra.provision.power_log import with_power_on
from gpuinfra.provision.purpose import purpose_of, purpose_to_tag
from gpuinfra.provision.resources.common import with_others
from gpuinfra.provision.resources.shutdown_schedule import imminent_stop, latest_end, schedule_update
from gpuinfra.provision.tags import ref_of
from gpuinfra.provision.waiting import Deadline, retry

UNREACHABLE_SECONDS = 30.0


@dataclass(frozen=True)
class Renewed:
    """The result of a renewal."""

    until: datetime
    changed: bool
    capped: bool
    """Whether the cost cap shortened it."""
    needs_schedule: bool = False
    """Whether it was shortened because only Azure's schedule can stop the machine."""
    old_stop: datetime | None = None
    """When Azure's schedule may still stop the machine because it was moved too late; None if it was in time."""


def renew(  # noqa: PLR0913 options are passed by name
    cloud: Cloud,
    name: str,
    group: str | None,
    *,
    to: datetime | None = None,
    extend: timedelta | None = None,
    release: bool = False,
    hours: Hours | None = None,
    purpose: Purpose | None = None,
    deadline: Deadline,
) -> Renewed:
    """Change the end of a running machine's lease, and return the new end.

    `extend` adds time, and `to` is the earliest end. Without either, the end is at least one whole lease from now.
    `release` ends the lease now. `hours` are the spec's, because the tag lacks holidays. `purpose` is what the machine
    is on for until the new end; an extension keeps the one it has.
    """
    try:
        machine = find_machine(cloud, name, group)
        # A stopped machine is billed as well, but cannot use more time.
        _check_power(name, machine, BILLED if release else USABLE)
        # The power-on time is written as well, in case the tag was lost.
        since = None if release else restarted_at(machine) or tags.moment(machine.tags, tags.ON_SINCE)
        marks = with_others(machine, _since(since))
        found = renewal(marks, cloud.now(), to=to, extend=extend, release=release, hours=hours)
        found = found if release else _within_schedule(cloud, machine, found)
        purpose = purpose_of(machine.tags) if extend else purpose
        stop = _carry_out(cloud, machine, found.until, deadline, since=since, purpose=purpose)
    except CloudError as error:
        raise explain(error, f"renewing the lease of {name}") from error
    return replace(found, old_stop=None if release else stop)


def hold(cloud: Cloud, name: str, group: str | None, run: str, length: timedelta, deadline: Deadline) -> Stay | None:
    """Give a running machine this time from now for a look at a failed run, but never more than its cost cap.

    Hours do not extend it. Return None, without a change, if nothing in Azure would end it or no time is left.
    """
    purpose = Purpose(Reason.FAILED_JOB, run)
    try:
        machine = find_machine(cloud, name, group)
        _check_power(name, machine, USABLE)
        since, now = restarted_at(machine) or tags.moment(machine.tags, tags.ON_SINCE) or cloud.now(), cloud.now()
        terms = terms_from_tag(tags.get(machine.tags, tags.TERMS)) or terms_of(Lifecycle(), None)
        until = settled(now + length, since, terms, None)
        if until <= now or not stay_of(cloud, machine, purpose).is_ended:
            return None
        _carry_out(cloud, machine, until, deadline, since=since, purpose=purpose, is_exact=True)
        return stay_of(cloud, cloud.look(machine.ref) or machine, purpose)
    except CloudError as error:
        raise explain(error, f"keeping {name} for a look") from error


def stay_of(cloud: Cloud, machine: ObservedResource, purpose: Purpose) -> Stay:
    """Return until when a machine stays on without a client, and what in Azure ends it. Nothing is changed."""
    now = cloud.now()
    until = tags.moment(machine.tags, tags.LEASE_UNTIL) or now
    schedule = cloud.look(ref_of(Kind.SHUTDOWN_SCHEDULE, machine.ref.group, machine.ref.name))
    is_on = schedule is not None and schedule.properties.get("status") == "Enabled"
    return Stay(purpose, now, until, until + BACKSTOP if is_on else None, cloud.agent_role(machine).is_held)


def renewal(
    marks: Mapping[str, str],
    now: datetime,
    *,
    to: datetime | None = None,
    extend: timedelta | None = None,
    release: bool = False,
    hours: Hours | None = None,
) -> Renewed:
    """Return the new lease for a machine with these tags. Pure."""
    terms = terms_from_tag(tags.get(marks, tags.TERMS)) or terms_of(Lifecycle(), None)
    hours = hours or hours_from_tag(tags.get(marks, tags.HOURS))
    since, old = tags.moment(marks, tags.ON_SINCE) or now, tags.moment(marks, tags.LEASE_UNTIL)
    end = max(old or now, now)
    if release:
        # A schedule for a minute that has already begun would fire only tomorrow.
        wanted = now + timedelta(seconds=1)
    elif extend:
        wanted = end + extend
        _check_length(wanted, now)
    else:
        wanted = max(end, to or now + terms.lease)
    until = settled(wanted, since, terms, hours)
    if release and old:
        until = min(until, old)
    uncapped = settled(wanted, since, replace(terms, cap=None), hours)
    return Renewed(until, changed=until != old, capped=not release and until < uncapped)


def _check_length(until: datetime, now: datetime) -> None:
    """Raise Problem if a lease would be longer than any spec may ask for."""
    if until - now > MAX_DURATION:
        longest = f"{MAX_DURATION.days}d"
        raise problem(
            Code.USAGE,
            "lease too long",
            f"it would end at {stamp(until)}, more than {longest} from now; nothing was changed",
            "give a shorter time, and extend the lease again later",
            exit_code=Exit.USAGE,
        )


def _within_schedule(cloud: Cloud, machine: ObservedResource, found: Renewed) -> Renewed:
    """Return a lease with which Azure's schedule stays on, if the guest agent cannot deallocate the machine.

    A later end switches the schedule off, and then nothing in Azure would stop the machine.
    """
    old, latest = tags.moment(machine.tags, tags.LEASE_UNTIL), latest_end(cloud.now())
    if found.until <= latest or not found.changed:
        return found
    schedule = cloud.look(ref_of(Kind.SHUTDOWN_SCHEDULE, machine.ref.group, machine.ref.name))
    is_on = schedule is not None and schedule.properties.get("status") == "Enabled"
    if not is_on or cloud.allow_self_stop(machine).is_held:
        return found
    until = max(latest, old or latest)
    return replace(found, until=until, changed=until != old, needs_schedule=True)


def find_machine(cloud: Cloud, name: str, group: str | None) -> ObservedResource:
    """Return our machine with this name and its power-on time; without a group, search all groups.

    Raise Problem if it is absent or not ours.
    """
    found = cloud.look(ref_of(Kind.VM, group, name)) if group else cloud.observe(name).part(Kind.VM)
    if found and owner_of(found) is not Owner.OURS:
        raise untagged_problem(found)
    if found is None:
        raise Problem(
            Diagnostic(
                Code.NO_SUCH_MACHINE,
                "no such machine",
                note=f"gpuinfra manages no machine `{name}`",
                help="`gpuinfra status` lists them; `gpuinfra up SPEC` creates one",
            )
        )
    return with_power_on(cloud, found)


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


def _since(since: datetime | None) -> dict[str, str]:
    return {tags.ON_SINCE: stamp(since) or ""} if since else {}


def _carry_out(
    cloud: Cloud,
    machine: ObservedResource,
    until: datetime,
    deadline: Deadline,
    *,
    since: datetime | None,
    purpose: Purpose | None = None,
    is_exact: bool = False,
) -> datetime | None:
    """Write tags and schedule in the order that keeps the earlier end valid after a crash. `since` is also tagged.

    With `is_exact`, a later end from another client is not kept. Return when the old schedule may still fire although
    it was moved, or None.
    """
    marks = {tags.LEASE_UNTIL: stamp(until) or "", **_since(since)}
    if purpose:
        marks[tags.ON_FOR] = purpose_to_tag(purpose, until)
    if _shortens(machine, until):
        _write(cloud, machine.ref, until, marks, deadline, shortens=True)
        return _move(cloud, machine, until, deadline)
    stop = _move(cloud, machine, until, deadline)
    later = _write(cloud, machine.ref, until, marks, deadline, shortens=is_exact)
    if later > until:
        # Another client extended the lease meanwhile, and its schedule was just overwritten.
        _move(cloud, machine, later, deadline)
    return stop


def _write(
    cloud: Cloud, ref: Ref, until: datetime, marks: Mapping[str, str], deadline: Deadline, *, shortens: bool
) -> datetime:
    """Write the end into the tag, and return the tag's end. Unless `shortens`, keep a later end from another client."""

    def attempt() -> datetime:
        # Read again, to keep tags that others added meanwhile.
        part = cloud.look(ref)
        if part is None:
            return until
        found = tags.moment(part.tags, tags.LEASE_UNTIL)
        if found and found > until and not shortens:
            return found
        if found == until and all(tags.get(part.tags, name) == value for name, value in marks.items()):
            return until
        marked = with_others(part, marks)
        cloud.wait(cloud.patch(Resource(ref, {"tags": marked})), deadline)
        return until

    return retry(attempt, deadline, cloud.interrupt.sleep, unreachable_seconds=UNREACHABLE_SECONDS)


def _move(cloud: Cloud, machine: ObservedResource, until: datetime, deadline: Deadline) -> datetime | None:
    """Move Azure's shutdown schedule. Return when the old one may still fire because it is too close, or None."""

    def attempt() -> datetime | None:
        found = cloud.look(ref_of(Kind.SHUTDOWN_SCHEDULE, machine.ref.group, machine.ref.name))
        now = cloud.now()
        wanted = schedule_update(machine, found, until, now, cloud.subscription)
        if wanted is None:
            return None
        try:
            cloud.wait(cloud.put(wanted), deadline)
        except CloudError as error:
            if found or not error.is_lasting:
                raise
            return None  # `up` created this machine without a schedule
        return imminent_stop(found, now)

    return retry(attempt, deadline, cloud.interrupt.sleep, unreachable_seconds=UNREACHABLE_SECONDS)
