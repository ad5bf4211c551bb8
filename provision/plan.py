"""Compare the spec with the state in Azure. Pure: no requests, no changes."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from gpuinfra.diagnostics import Code, Diagnostic, Problem
from gpuinfra.models.plan import ARM_TYPES, Action, Change, Difference, Kind, Plan, Power, Price, Resource
from gpuinfra.provision import tags
from gpuinfra.provision.lease import BACKSTOP, Lease, is_last_day
from gpuinfra.provision.login import is_created_with
from gpuinfra.provision.observed import Observed, namesakes
from gpuinfra.provision.observed_resource import ObservedResource, refers_to, same
from gpuinfra.provision.ownership import Owner, is_made_by_us, left_alone, owner_of, untagged_problem
from gpuinfra.provision.power import DEALLOCATED, NOT_BILLED, SHUT_DOWN, STOPPED_BUT_BILLED, USABLE
from gpuinfra.provision.preflight import spot_price_problem
from gpuinfra.provision.remove import attached_by_others
from gpuinfra.provision.resources import MODULES, shutdown_schedule, vnet
from gpuinfra.provision.resources.common import PlanInput
from gpuinfra.provision.tags import ref_of

# Azure deletes these with the VM, because of its delete options.
_WITH_MACHINE = (Kind.DISK, Kind.NIC, Kind.PUBLIC_IP)
_NETWORK = (Kind.NSG, Kind.VNET, Kind.PUBLIC_IP, Kind.NIC)
CREATION_FAILED = Difference("state", "creation failed", "created again", replaces=True)
_AFTER = f"{BACKSTOP.total_seconds() / 60:.0f}"


def make_plan(plan_input: PlanInput, observed: Observed, price: Price | None = None) -> Plan:
    """Return the changes that this machine needs at this place."""
    stranger = observed.untagged
    if stranger and (is_made_by_us(stranger) or owner_of(stranger) is Owner.UNRECOGNISED):
        raise untagged_problem(stranger)
    check_names(observed)
    check_elsewhere(observed)
    spec, found = plan_input.spec, observed.part(Kind.VM)
    changes = tuple(_off(plan_input, observed) if spec.power == "deallocated" else _changes(plan_input, observed))
    _check_replaced(changes, observed)
    return Plan(
        name=spec.name,
        subscription=plan_input.subscription,
        group=spec.group_name,
        candidate=plan_input.candidate,
        changes=changes,
        price=price or Price(),
        notes=(*_notes(plan_input, observed), *_detached(changes, observed)),
        wants_running=spec.power == "running",
        needs_agent=spec.power == "running" and _lacks_schedule(plan_input, observed),
        power_state=found.power if found else None,
        rests=_rests(plan_input, found),
        hours_left=_hours_left(plan_input.lease) if spec.power == "running" else 0.0,
    )


def _hours_left(lease: Lease) -> float:
    """Return how long the machine may be on. The end of a lease is rounded up to a whole minute."""
    return max(0, (lease.until - (lease.decided or lease.on_since)) // timedelta(minutes=1)) / 60


def _rests(plan_input: PlanInput, found: ObservedResource | None) -> bool:
    """Return whether the machine is off as designed: after its run, its lease or its hours."""
    if found is None:
        return plan_input.spec.lifecycle.after_run == "delete"
    return found.power in NOT_BILLED and found.state != "Failed"


def _lacks_schedule(plan_input: PlanInput, observed: Observed) -> bool:
    return not plan_input.has_schedule and observed.part(Kind.SHUTDOWN_SCHEDULE) is None


def check_names(observed: Observed) -> None:
    """Raise Problem if a resource has one of our names but is not ours: it must never be changed."""
    taken = [
        part
        for part in (observed.part(kind) for kind in Kind if kind is not Kind.RESOURCE_GROUP)
        if part and not observed.is_ours(part) and not is_own_disk(observed, part)
    ]
    if taken:
        names = ", ".join(f"{ARM_TYPES[part.ref.kind]} `{part.ref.name}`" for part in taken)
        raise Problem(
            Diagnostic(
                Code.NAME_TAKEN,
                "name is taken",
                note=f"in group `{observed.group}` there is {names}, which gpuinfra did not create; it was not changed",
                help="`gpuinfra up --adopt SPEC` restores the tags of resources of this machine that lost them"
                if observed.machine and is_made_by_us(observed.machine) and not observed.adopts
                else "give the machine another name, or another `resourceGroup`",
            )
        )


def check_elsewhere(observed: Observed) -> None:
    """Raise Problem if a machine with this name exists in another group: both would be billed."""
    groups = ", ".join(f"`{part.ref.group}`" for part in namesakes(observed))
    if groups:
        raise Problem(
            Diagnostic(
                Code.NAME_TAKEN,
                "name is taken",
                note=f"gpuinfra manages a machine `{observed.name}` in group {groups}, not in `{observed.group}`",
                help="if that machine is yours, name its group in `resourceGroup`; otherwise choose another `name`",
            )
        )


def _check_replaced(changes: tuple[Change, ...], observed: Observed) -> None:
    """Raise if a VNet would be replaced that has subnets or peerings of others: Azure would delete them with it."""
    part = observed.part(Kind.VNET)
    is_replaced = any(each.ref.kind is Kind.VNET and each.action is Action.REPLACE for each in changes)
    if is_replaced and part and (others := vnet.of_others(part)):
        raise Problem(
            Diagnostic(
                Code.NAME_TAKEN,
                "VNet is in use",
                note=f"{part.ref} would be replaced, and others created {', '.join(others)} in it; it was not changed",
                help="remove them first, or give the machine another `name`",
            )
        )


def is_own_disk(observed: Observed, part: ObservedResource) -> bool:
    """Return whether a resource is the disk that Azure created with our VM. It is ours even without a tag."""
    found = observed.machine
    if found is None or not same(part.ref, ref_of(Kind.DISK, observed.group, observed.name)):
        return False
    return refers_to(found.os_disk_id, part.ref)


def creation_failed(observed: Observed) -> bool:
    """Return whether the VM seems never to have been ready. It is then created again, at any place in the spec.

    Azure shows the same state after a failed start, and anyone can remove the ready tag. So this is never consent to
    delete a disk: see `has_disk`.
    """
    found, address = observed.part(Kind.VM), observed.part(Kind.PUBLIC_IP)
    if found is None or found.state != "Failed":
        return False
    return not has_disk(observed) or (address is not None and not tags.get(address.tags, tags.READY))


def has_disk(observed: Observed) -> bool:
    """Return whether there may be data on a disk: ours exists, or the VM uses another one."""
    found, own = observed.part(Kind.VM), ref_of(Kind.DISK, observed.group, observed.name)
    held = found.os_disk_id if found else ""
    return observed.part(Kind.DISK) is not None or bool(held and not refers_to(held, own))


def _off(plan_input: PlanInput, observed: Observed) -> Iterator[Change]:
    """Return the change to power off. Other differences wait: nothing is created for a machine that is off."""
    found = observed.part(Kind.VM)
    if found and found.power != DEALLOCATED:
        power = Difference("power", found.power, DEALLOCATED)
        yield Change(Action.CHANGE, found.ref, _summary(plan_input, Kind.VM), (power,), power=Power.DEALLOCATE)


def _changes(plan_input: PlanInput, observed: Observed) -> Iterator[Change]:
    wanted = {kind: module.desired(plan_input) for kind, module in MODULES.items()}
    parts = {kind: observed.part(kind) for kind in MODULES}
    found = {kind: tuple(_differences(wanted[kind], part)) for kind, part in parts.items() if part}
    if _awaits_reap(plan_input, parts):
        own = found[Kind.SHUTDOWN_SCHEDULE]
        found[Kind.SHUTDOWN_SCHEDULE] = tuple(each for each in own if each.what != shutdown_schedule.DAILY_STOP)
    if creation_failed(observed):
        found[Kind.VM] = (*found[Kind.VM], CREATION_FAILED)
    replaced = _replaced(observed, parts, found)
    if parts[Kind.VM] is None and (disk := parts[Kind.DISK]):
        yield Change(Action.DESTROY, disk.ref, "left over from a deleted machine", loses=True)
    for kind, resource in wanted.items():
        if kind is Kind.DISK and parts[Kind.VM] is None:
            continue
        if kind is Kind.SHUTDOWN_SCHEDULE and _lacks_schedule(plan_input, observed):
            continue
        if kind is Kind.RESOURCE_GROUP and (group := parts[kind]) and not observed.is_ours(group):
            continue
        change = _change(plan_input, resource, parts[kind], found.get(kind, ()), replaced)
        if change:
            yield change


def _awaits_reap(plan_input: PlanInput, parts: dict[Kind, ObservedResource | None]) -> bool:
    """Return whether the schedule is still off as designed: on the last day of a long lease, `reap` switches it on."""
    machine, schedule = parts[Kind.VM], parts[Kind.SHUTDOWN_SCHEDULE]
    if machine is None or schedule is None or plan_input.lease.decided is None:
        return False
    is_kept = tags.moment(machine.tags, tags.LEASE_UNTIL) == plan_input.lease.until
    return is_kept and is_last_day(machine.tags, plan_input.lease.decided) and shutdown_schedule.is_off(schedule)


def _differences(wanted: Resource, part: ObservedResource) -> Iterator[Difference]:
    kind = wanted.ref.kind
    yield from MODULES[kind].differences(wanted, part)
    # A failed resource may be incomplete; sending it again completes it. VMs are handled separately.
    if part.state == "Failed" and kind in _NETWORK:
        yield Difference("state", "Failed", "created again")


def _replaced(
    observed: Observed, parts: dict[Kind, ObservedResource | None], found: dict[Kind, tuple[Difference, ...]]
) -> dict[Kind, bool]:
    """Return the kinds to be created again, and for each whether data is lost."""
    replaced = {kind for kind, differences in found.items() if any(each.replaces for each in differences)}
    if parts[Kind.VM] and replaced & {*_NETWORK, Kind.DISK}:
        replaced.add(Kind.VM)
    if Kind.VM in replaced and parts[Kind.VM]:
        replaced |= {kind for kind in _WITH_MACHINE if parts[kind]}
    lost = Kind.VM in replaced and (has_disk(observed) or not creation_failed(observed))
    return {kind: lost and kind is Kind.VM for kind in replaced}


def _change(
    plan_input: PlanInput,
    wanted: Resource,
    part: ObservedResource | None,
    differences: tuple[Difference, ...],
    replaced: dict[Kind, bool],
) -> Change | None:
    kind = wanted.ref.kind
    summary = _summary(plan_input, kind)
    if kind is Kind.DISK and (part is None or kind in replaced or Kind.VM in replaced):
        return None  # Azure creates the disk with the VM
    if part is None:
        return Change(Action.ADD, wanted.ref, summary, resource=wanted)
    if kind in replaced:
        why = tuple(each for each in differences if each.replaces)
        return Change(Action.REPLACE, wanted.ref, summary, why, wanted, loses=replaced[kind])
    power = _power(part) if kind is Kind.VM else None
    if not differences and power is None:
        return None
    resource = MODULES[kind].update(wanted, part) if differences else None
    if power:
        differences = (*differences, Difference("power", part.power, "running", of_lease=True))
    return Change(Action.CHANGE, wanted.ref, summary, differences, resource, power)


def _power(part: ObservedResource) -> Power | None:
    # A stopped VM is billed and unusable, so it is started like a deallocated one.
    return None if part.power in USABLE else Power.START


def _summary(plan_input: PlanInput, kind: Kind) -> str:
    spec, candidate = plan_input.spec, plan_input.candidate
    match kind:
        case Kind.VM:
            zone = f" zone {candidate.zone}" if candidate.zone else ""
            spot = ", spot" if spec.priority == "spot" else ""
            return f"{candidate.size}, {candidate.region}{zone}{spot}"
        case Kind.NSG:
            return f"ssh from {', '.join(plan_input.sources)}"
        case Kind.SHUTDOWN_SCHEDULE:
            return (
                f"daily stop at {plan_input.lease.backstop:%H:%M} UTC, {_AFTER} min after the lease"
                if plan_input.lease.is_daily
                else "off"
            )
        case Kind.DISK:
            return f"{spec.disk.size_gib} GiB {spec.disk.sku}"
        case _:
            return candidate.region


def _notes(plan_input: PlanInput, observed: Observed) -> Iterator[str]:
    group = observed.part(Kind.RESOURCE_GROUP)
    if group and not observed.is_ours(group):
        yield f"group {observed.group} was not created for this machine: it is used, and not deleted with it"
    yield from (left_alone(part.ref, observed.name) for part in observed.lookalikes())
    found = observed.part(Kind.VM)
    if found and found.power in SHUT_DOWN:
        yield f"the machine is {STOPPED_BUT_BILLED}: only a deallocated one costs nothing"
    if found and not is_created_with(found, plan_input.public_key):
        yield "the machine has another SSH key than the spec names; a key cannot be changed in place"
    yield from _spot_price(plan_input, found)
    if plan_input.spec.lifecycle.max_cost and plan_input.terms.cap is None:
        yield "no price is known: the cost cap has no effect"
    if found and plan_input.lease.decided and plan_input.lease.until <= plan_input.lease.decided:
        again = f"`gpuinfra down {plan_input.spec.name}`, then `gpuinfra up SPEC` starts a new period"
        yield f"the machine has reached its cost cap since power-on: it is switched off; {again}"
    if not plan_input.lease.is_daily:
        yield "Azure's daily schedule cannot express a lease of a day or more: only the tag has its end"
    if _lacks_schedule(plan_input, observed):
        yield (
            f"{plan_input.candidate.region} does not offer Azure's daily schedule: the guest agent and `gpuinfra reap` "
            "end the machine, and without the agent's role `up` deletes it again"
        )
    if stop := _old_stop(plan_input, observed):
        yield f"Azure's daily schedule may still stop the machine at {stop:%H:%M} UTC: {shutdown_schedule.TOO_LATE}"


def _spot_price(plan_input: PlanInput, found: ObservedResource | None) -> Iterator[str]:
    problem = spot_price_problem(plan_input.spec, plan_input.price_per_hour)
    if problem and found and found.power in NOT_BILLED:  # the preflight says it of a new machine
        yield f"{problem}: Azure does not start the machine"


def _old_stop(plan_input: PlanInput, observed: Observed) -> datetime | None:
    """Return when the existing schedule still fires although this plan moves it, or None."""
    found, now = observed.part(Kind.SHUTDOWN_SCHEDULE), plan_input.lease.decided or plan_input.lease.on_since
    moves = found and any(shutdown_schedule.differences(shutdown_schedule.desired(plan_input), found))
    return shutdown_schedule.imminent_stop(found, now) if moves and plan_input.spec.power == "running" else None


def _detached(changes: tuple[Change, ...], observed: Observed) -> Iterator[str]:
    """Describe each disk, NIC and public IP that others attached to a machine to be replaced."""
    if observed.machine and any(each.ref.kind is Kind.VM and each.action is Action.REPLACE for each in changes):
        for each in attached_by_others(observed.machine, observed.part(Kind.NIC)):
            yield f"{each}: it is attached to this machine, and will be detached"


class EachGroupOnce:
    """Leaves the addition of a shared group only in the plan of the first machine, for all plans of one command."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, str], str] = {}

    def __call__(self, plan: Plan) -> Plan:
        if not any(_adds_group(change) for change in plan.changes):
            return plan
        first = self._first.setdefault((plan.subscription, plan.group.casefold()), plan.name)
        if first == plan.name:
            return plan
        changes = tuple(change for change in plan.changes if not _adds_group(change))
        return replace(plan, changes=changes, notes=(*plan.notes, f"group {plan.group} is added with {first}"))


def _adds_group(change: Change) -> bool:
    return change.ref.kind is Kind.RESOURCE_GROUP and change.action is Action.ADD
