"""The difference between what git says and what Azure shows. Pure: nothing is asked, nothing is done."""

from __future__ import annotations

from collections.abc import Iterator

from gpuinfra.diagnostics import Code, Diagnostic, Problem
from gpuinfra.models.plan import Action, Change, Difference, Plan, Power, Price
from gpuinfra.models.resource import ARM_TYPES, Kind, Resource
from gpuinfra.provision import tags
from gpuinfra.provision.attachments import attached_by_others
from gpuinfra.provision.cloud import Observed, ObservedResource, same
from gpuinfra.provision.lifecycle.lease import ON
from gpuinfra.provision.lifecycle.reap import STOPPED
from gpuinfra.provision.names import ref_of
from gpuinfra.provision.ownership import Owner, is_made_by_us, left_alone, owner_of, untagged_problem
from gpuinfra.provision.plan_input import PlanInput
from gpuinfra.provision.resources import MODULES

# These go when the machine goes: it is made with delete options.
_WITH_MACHINE = (Kind.DISK, Kind.NIC, Kind.PUBLIC_IP)
_NETWORK = (Kind.NSG, Kind.VNET, Kind.PUBLIC_IP, Kind.NIC)


def make_plan(setting: PlanInput, observed: Observed, price: Price | None = None) -> Plan:
    """Everything that has to be done for this machine at this place."""
    if (stranger := observed.untagged) and is_made_by_us(stranger):
        raise untagged_problem(stranger)
    check_names(observed)
    check_elsewhere(observed)
    spec = setting.spec
    changes = tuple(_off(setting, observed) if spec.power == "deallocated" else _changes(setting, observed))
    return Plan(
        name=spec.name,
        subscription=setting.subscription,
        group=spec.group_name,
        candidate=setting.candidate,
        changes=changes,
        price=price or Price(),
        notes=(*_notes(setting, observed), *_detached(changes, observed)),
        wants_running=spec.power == "running",
    )


def check_names(observed: Observed) -> None:
    """A resource that has the name of one of ours, and is not ours, is never touched."""
    taken = [
        part
        for part in (observed.part(kind) for kind in Kind if kind is not Kind.RESOURCE_GROUP)
        if part and not observed.is_ours(part) and not is_disk_of_ours(observed, part)
    ]
    if taken:
        names = ", ".join(f"{ARM_TYPES[part.ref.kind]} `{part.ref.name}`" for part in taken)
        raise Problem(
            Diagnostic(
                Code.NAME_TAKEN,
                "name is taken",
                note=f"in group `{observed.group}` there is {names}, which gpuinfra did not make; it was left alone",
                help="`gpuinfra up --adopt SPEC` puts the tags back on parts of this machine that have lost them"
                if observed.machine and is_made_by_us(observed.machine)
                else "give the machine another name, or another `resourceGroup`",
            )
        )


def check_elsewhere(observed: Observed) -> None:
    """A second machine of one name would be billed beside the first."""
    machines = (part for part in observed.lookalikes() if part.ref.kind is Kind.VM)
    groups = ", ".join(f"`{part.ref.group}`" for part in machines if owner_of(part) is Owner.OURS)
    if groups:
        raise Problem(
            Diagnostic(
                Code.NAME_TAKEN,
                "name is taken",
                note=f"a machine `{observed.name}` of gpuinfra's is in group {groups}, not in `{observed.group}`",
                help="if that machine is yours, name its group in `resourceGroup`; otherwise choose another `name`",
            )
        )


def is_disk_of_ours(observed: Observed, part: ObservedResource) -> bool:
    """A disk that Azure made along with our machine is ours with or without a tag."""
    found = observed.machine
    if found is None or not same(part.ref, ref_of(Kind.DISK, observed.group, observed.name)):
        return False
    disk = ((found.properties.get("storageProfile") or {}).get("osDisk") or {}).get("managedDisk") or {}
    return str(disk.get("id", "")).casefold().endswith(part.ref.id("").casefold().removeprefix("/subscriptions/"))


def creation_failed(observed: Observed) -> bool:
    """A machine whose making failed: there is nothing on its disk, if it has one, to lose.

    Azure calls a machine whose start failed by the same state, so that state alone proves nothing.
    """
    found, address = observed.part(Kind.VM), observed.part(Kind.PUBLIC_IP)
    if found is None or found.state != "Failed":
        return False
    return observed.part(Kind.DISK) is None or (address is not None and not tags.get(address.tags, tags.READY))


def _off(setting: PlanInput, observed: Observed) -> Iterator[Change]:
    """The spec wants it off. What else differs can wait until it is wanted on: nothing is made only to be off."""
    found = observed.part(Kind.VM)
    if found and found.power != "deallocated":
        power = Difference("power", found.power, "deallocated")
        yield Change(Action.CHANGE, found.ref, _summary(setting, Kind.VM), (power,), power=Power.DEALLOCATE)


def _changes(setting: PlanInput, observed: Observed) -> Iterator[Change]:
    wanted = {kind: module.desired(setting) for kind, module in MODULES.items()}
    parts = {kind: observed.part(kind) for kind in MODULES}
    found = {kind: tuple(_differences(wanted[kind], part)) for kind, part in parts.items() if part}
    replaced = _replaced(observed, parts, found)
    if parts[Kind.VM] is None and (disk := parts[Kind.DISK]):
        yield Change(Action.DESTROY, disk.ref, "left over from a machine that is gone", loses=True)
    for kind, resource in wanted.items():
        if kind is Kind.DISK and parts[Kind.VM] is None:
            continue
        if kind is Kind.RESOURCE_GROUP and (group := parts[kind]) and not observed.is_ours(group):
            continue
        change = _change(setting, resource, parts[kind], found.get(kind, ()), replaced)
        if change:
            yield change


def _differences(wanted: Resource, part: ObservedResource) -> Iterator[Difference]:
    kind = wanted.ref.kind
    yield from MODULES[kind].differences(wanted, part)
    # What failed may be as it should be or not; said once more, it is. A machine has its own ways.
    if part.state == "Failed" and kind in _NETWORK:
        yield Difference("state", "Failed", "made again")


def _replaced(
    observed: Observed, parts: dict[Kind, ObservedResource | None], found: dict[Kind, tuple[Difference, ...]]
) -> dict[Kind, bool]:
    """Which kinds are made anew, and whether something is lost by it."""
    replaced = {kind for kind, differences in found.items() if any(each.replaces for each in differences)}
    if parts[Kind.VM] and (replaced & {*_NETWORK, Kind.DISK} or creation_failed(observed)):
        replaced.add(Kind.VM)
    if Kind.VM in replaced and parts[Kind.VM]:
        replaced |= {kind for kind in _WITH_MACHINE if parts[kind]}
    lost = Kind.VM in replaced and not creation_failed(observed)
    return {kind: lost and kind is Kind.VM for kind in replaced}


def _change(
    setting: PlanInput,
    wanted: Resource,
    part: ObservedResource | None,
    differences: tuple[Difference, ...],
    replaced: dict[Kind, bool],
) -> Change | None:
    kind = wanted.ref.kind
    summary = _summary(setting, kind)
    if kind is Kind.DISK and (part is None or kind in replaced or Kind.VM in replaced):
        return None  # the machine's own body makes it
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
        differences = (*differences, Difference("power", part.power, "running"))
    return Change(Action.CHANGE, wanted.ref, summary, differences, resource, power)


def _power(part: ObservedResource) -> Power | None:
    # A stopped machine is billed and of no use: it is started like one that is off.
    return None if part.power in ON - {"stopped", "stopping"} else Power.START


def _summary(setting: PlanInput, kind: Kind) -> str:
    spec, candidate = setting.spec, setting.candidate
    match kind:
        case Kind.VM:
            zone = f" zone {candidate.zone}" if candidate.zone else ""
            spot = ", spot" if spec.priority == "spot" else ""
            return f"{candidate.size}, {candidate.region}{zone}{spot}"
        case Kind.NSG:
            return f"ssh from {', '.join(setting.sources)}"
        case Kind.SHUTDOWN_SCHEDULE:
            return (
                f"daily stop at {setting.lease.until:%H:%M} UTC, the lease's end" if setting.lease.is_daily else "off"
            )
        case Kind.DISK:
            return f"{spec.disk.size_gib} GiB {spec.disk.sku}"
        case _:
            return candidate.region


def _notes(setting: PlanInput, observed: Observed) -> Iterator[str]:
    group = observed.part(Kind.RESOURCE_GROUP)
    if group and not observed.is_ours(group):
        yield f"group {observed.group} was not made for this machine: it is used, and not deleted with it"
    yield from (left_alone(part.ref, observed.name) for part in observed.lookalikes())
    found = observed.part(Kind.VM)
    if found and found.power in {"stopped", "stopping"}:
        yield f"the machine is {STOPPED}: only a deallocated one costs nothing"
    if found and setting.public_key.split()[:2] not in _keys(found):
        yield "the machine has another SSH key than the spec names; a key cannot be changed in place"
    if setting.spec.lifecycle.max_cost and setting.terms.cap is None:
        yield "no price is known: the cost cap cannot be kept"
    if found and setting.lease.decided and setting.lease.until <= setting.lease.decided:
        yield "the machine has cost what it may since power-on: it goes off; `gpuinfra down` and `up` begin anew"
    if not setting.lease.is_daily:
        yield "a lease of a day or more is beyond Azure's own daily schedule: the tag alone says when it ends"


def _detached(changes: tuple[Change, ...], observed: Observed) -> Iterator[str]:
    """A line for each disk and NIC that others attached to a machine which is replaced."""
    if observed.machine and any(each.ref.kind is Kind.VM and each.action is Action.REPLACE for each in changes):
        for each in attached_by_others(observed.machine):
            yield f"{each}: it is attached to this machine, and will be detached"


def _keys(part: ObservedResource) -> list[list[str]]:
    linux = (part.properties.get("osProfile") or {}).get("linuxConfiguration") or {}
    keys = (linux.get("ssh") or {}).get("publicKeys") or []
    return [str(key.get("keyData", "")).split()[:2] for key in keys]
