"""A fake cloud in memory, a fake market with every size, and machines for tests."""

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from gpuinfra.models.base import Model
from gpuinfra.models.plan import Candidate, Change, Kind, Plan, Power, Ref, Resource
from gpuinfra.models.sizes import Offer, Quota
from gpuinfra.models.spec import Spec
from gpuinfra.provision import lease, tags
from gpuinfra.provision.agent_role import AgentRole, RoleState, principal_of
from gpuinfra.provision.apply import PlanExecution
from gpuinfra.provision.cloud import Operation
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.lease import Lease
from gpuinfra.provision.locks import Lock
from gpuinfra.provision.login import HostKey
from gpuinfra.provision.market import Catalogue, Grant, Image, ImagePlan, Permissions, Prices
from gpuinfra.provision.observed import Observed
from gpuinfra.provision.observed_resource import ObservedResource, same
from gpuinfra.provision.ownership import is_namesake
from gpuinfra.provision.plan import make_plan
from gpuinfra.provision.resources import MODULES
from gpuinfra.provision.resources.common import PlanInput
from gpuinfra.provision.tags import ref_of
from gpuinfra.provision.task import Journal, Task
from gpuinfra.provision.up import Provisioner
from gpuinfra.provision.waiting import Deadline, Interrupt, Silent

NOW = datetime(2026, 11, 16, 8, 0, tzinfo=UTC)
SUBSCRIPTION = "00000000-0000-0000-0000-000000000000"
NAME, GROUP = "my-dsvm", "gpuinfra-my-dsvm"
SMALL, LARGE = "Standard_NC4as_T4_v3", "Standard_NC8as_T4_v3"
FAMILY, CORES = "Standard NCASv3_T4 Family", {SMALL: 4, LARGE: 8}
KEY = f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{'a' * 43} me@here"
HOST_KEY = HostKey("ssh-ed25519 AAAAhost", "the private half")
HOURS = {"timezone": "America/Chicago", "on": ("mon-fri 08:00-19:00",)}

CAPACITY = CloudError(Fault.CAPACITY, "SkuNotAvailable", "no room")
ALLOCATION = CloudError(Fault.CAPACITY, "AllocationFailed", "no room after all")
DENIED = CloudError(Fault.DENIED, "AuthorizationFailed", "you may not")
BUSY = CloudError(Fault.BUSY, "Conflict", "in a moment")
UNREACHABLE = CloudError(Fault.UNREACHABLE, "ServiceRequestError", "no answer")


# Time


class Time:
    """Time that passes only in waits."""

    def __init__(self) -> None:
        self.seconds, self.pauses = 0.0, list[float]()

    def __call__(self) -> float:
        return self.seconds

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.seconds += seconds

    def deadline(self, seconds: float) -> Deadline:
        return Deadline.after(seconds, self)


class InstantInterrupt(Interrupt):
    """An interrupt whose waits take no time."""

    def __init__(self, time: Time) -> None:
        super().__init__()
        self._time = time

    def sleep(self, seconds: float) -> None:
        self._time.pause(seconds)
        self.check()


# Values


@cache
def _least() -> Spec:
    plain = {"apiVersion": "gpuinfra/v1", "name": NAME, "regions": ["eastus"], "sizes": [SMALL]}
    return Spec.model_validate_json(json.dumps(plain))


def spec(base: Spec | None = None, **fields: Any) -> Spec:
    """Return a spec with changed fields, in snake case. Fields of a section are merged into it."""
    base = base or _least()
    for name, value in fields.items():
        old = getattr(base, name)
        if isinstance(old, Model) and isinstance(value, dict):
            fields[name] = old.model_copy(update=value)
    return base.model_copy(update=fields)


def lease_of(hours: float = 4, *, since: datetime = NOW) -> Lease:
    return Lease(since, since + timedelta(hours=hours))


def plan_input(wanted: Spec | None = None, **fields: Any) -> PlanInput:
    """Return everything that a plan depends on, for a machine that was just switched on."""
    wanted = wanted or spec()
    zone = wanted.zones[0] if wanted.zones else None
    given = {
        "candidate": Candidate(wanted.regions[0], wanted.candidate_sizes[0], zone),
        "subscription": SUBSCRIPTION,
        "sources": ("203.0.113.7/32",),
        "public_key": KEY,
        "host_key": HOST_KEY,
        "lease": Lease(NOW, NOW + wanted.lifecycle.lease),
    }
    return PlanInput(wanted, **{**given, **fields})


def ref(kind: Kind, group: str = GROUP, name: str = NAME) -> Ref:
    return ref_of(kind, group, name)


# The cloud


@dataclass
class FakeOperation:
    """An operation and its result."""

    ref: Ref
    error: CloudError | None = None


@dataclass
class _Fault:
    call: str
    error: CloudError
    skip: int = 0
    times: int = 1
    done: bool = False
    operation: bool = False


@dataclass
class FakeCloud:
    """Azure as a dict of bodies. `calls` are words such as `put machine my-dsvm`, `wait machine my-dsvm`."""

    subscription: str = SUBSCRIPTION
    simulated: bool = True
    endpoint: str = "https://localhost"
    ssh_port: int = 22
    fleet: Any = None
    time: Time = field(default_factory=Time)
    moment: datetime = NOW
    parts: dict[tuple[Kind, str, str], ObservedResource] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    """Ids of other kinds, with the machine that the tag of each names."""
    calls: list[str] = field(default_factory=list)
    on_call: Callable[[str], None] = lambda _: None
    faults: list[_Fault] = field(default_factory=list)
    secrets: dict[str, Any] = field(default_factory=dict)
    stays: set[Kind] = field(default_factory=set)
    """Kinds that Azure still lists after their deletion."""
    keeps_power: bool = False
    """A machine that stays on, whatever the operation reports."""
    principals: int = 0
    rights: list[AgentRole] = field(default_factory=list)
    """The first answers to requests for the role; later ones are granted."""
    allowed: list[str] = field(default_factory=list)
    """The principals that have the role. A thread requests it, so it has no order with `calls`."""

    locked: tuple[Lock, ...] = ()

    def __post_init__(self) -> None:
        self.interrupt: Interrupt = InstantInterrupt(self.time)
        self._lock = threading.RLock()

    # For tests

    def fail(self, call: str, error: CloudError, *, skip: int = 0, times: int = 1, done: bool = False) -> None:
        """Refuse a call with this prefix; with `done` only the response is lost. "" is any call."""
        self.faults.append(_Fault(call, error, skip, times, done))

    def fail_operation(self, call: str, error: CloudError) -> None:
        """Accept a call with this prefix, and let its operation fail."""
        self.faults.append(_Fault(call, error, operation=True))

    def add(self, kind: Kind, body: dict[str, Any], *, group: str = GROUP, name: str | None = None) -> ObservedResource:
        """Add an existing resource, ours or foreign."""
        found = Ref(kind, group, name) if name else ref(kind, group)
        return self._keep(found, {"location": "eastus", **_plain(body)})

    def body(self, kind: Kind, group: str = GROUP) -> dict[str, Any]:
        """Return a resource's body, to be changed by the test."""
        return self.parts[_key(ref(kind, group))].body

    def remove(self, kind: Kind) -> None:
        del self.parts[_key(ref(kind))]

    def set_power(self, power: str) -> None:
        _set_power(self.body(Kind.VM), power)

    @property
    def kinds(self) -> list[Kind]:
        """Return the kinds of all existing resources, in the order of their creation."""
        return sorted((part.ref.kind for part in self.parts.values()), key=list(Kind).index)

    @property
    def writes(self) -> list[str]:
        return [call for call in self.calls if call.split()[0] not in {"observe", "look", "contents", "wait"}]

    # The port

    def now(self) -> datetime:
        return self.moment + timedelta(seconds=self.time.seconds)

    @property
    def deadline(self) -> Deadline:
        return self.time.deadline(3600)

    def grant(self, seconds: float) -> Deadline:
        return self.time.deadline(seconds)

    def observe(self, name: str, group: str | None = None, *, thorough: bool = False) -> Observed:
        with self._call(f"observe {name}"):
            tagged = [part for part in self.parts.values() if tags.belongs_to(part.tags, name)]
            found = [part.ref.group for part in tagged if part.ref.kind is Kind.VM]
            group = group or (found[0] if found else f"gpuinfra-{name}")
            wanted = [ref_of(kind, group, name) for kind in Kind]
            named = [part for part in self.parts.values() if any(same(part.ref, each) for each in wanted)]
            lost = [part for part in self.parts.values() if part.ref.kind is Kind.VM and is_namesake(part, name)]
            others = [*tagged, *(part for part in lost if part not in tagged)]
            strays = [part for part in others if part not in named and part.ref.kind is not Kind.RESOURCE_GROUP]
            unknown = tuple(each for each, owner in self.unknown.items() if owner == name)
            return Observed(name, group, tuple(_copied(part) for part in (*named, *strays)), unknown)

    def look(self, ref: Ref) -> ObservedResource | None:
        with self._call(f"look {ref}"):
            found = self.parts.get(_key(ref))
            return _copied(found) if found else None

    def contents(self, group: str) -> tuple[str, ...]:
        with self._call(f"contents {group}"):
            parts = [part.ref for part in self.parts.values() if part.ref.kind is not Kind.RESOURCE_GROUP]
            found = [each.id(self.subscription) for each in parts if each.group.casefold() == group.casefold()]
            return (*found, *self.unknown)

    def locks(self) -> tuple[Lock, ...]:
        return self.locked

    def put(self, resource: Resource, *, new: bool = False) -> Operation:
        with self._call(f"put {resource.ref}") as fault:
            present = self.parts.get(_key(resource.ref))
            if new and present:
                raise CloudError(Fault.EXISTS, "PreconditionFailed", "it is there", subject=str(resource.ref))
            self.secrets.update({str(resource.ref): resource.secrets} if resource.secrets else {})
            body = _plain(resource.body)
            if resource.ref.kind is Kind.PUBLIC_IP:
                body["properties"]["ipAddress"] = "203.0.113.99"
            if resource.ref.kind is Kind.VM:
                self._make_machine(resource.ref, body, fault)
                self._identify(body)
            self._keep(resource.ref, body)
            return FakeOperation(resource.ref, _error_of(fault))

    def patch(self, resource: Resource) -> Operation:
        with self._call(f"patch {resource.ref}") as fault:
            body = self._present(resource.ref).body
            self._check_off(resource, body)
            for name, value in _plain(resource.body).items():
                if name == "properties":
                    body["properties"] = {**body["properties"], **value}
                else:
                    body[name] = value
            if resource.ref.kind is Kind.VM:
                self._identify(body)
            return FakeOperation(resource.ref, _error_of(fault))

    def act(self, ref: Ref, power: Power) -> Operation:
        with self._call(f"{power} {ref}") as fault:
            body = self._present(ref).body
            if fault:
                body["properties"]["provisioningState"] = "Failed"
            elif not self.keeps_power:
                _set_power(body, "running" if power is Power.START else "deallocated")
            return FakeOperation(ref, _error_of(fault))

    def delete(self, ref: Ref) -> Operation:
        with self._call(f"delete {ref}") as fault:
            self._check_unused(ref)
            if fault is None and ref.kind not in self.stays:
                self._delete(ref)
            return FakeOperation(ref, _error_of(fault))

    def allow_self_stop(self, machine: ObservedResource) -> AgentRole:
        with self._lock:
            found = self.parts.get(_key(machine.ref)) if not principal_of(machine) else machine
            principal = principal_of(found) if found else ""
            if self.rights:
                return self.rights.pop(0)
            if not principal:
                return AgentRole(RoleState.UNKNOWN, "NoIdentity", "no identity")
            is_new = principal not in self.allowed
            self.allowed += [principal] * is_new
            return AgentRole(RoleState.GRANTED if is_new else RoleState.HELD)

    def agent_role(self, machine: ObservedResource) -> AgentRole:
        is_held = principal_of(machine) in self.allowed
        return AgentRole(RoleState.HELD if is_held else RoleState.ABSENT)

    def disown(self, group: str) -> None:
        with self._call(f"disown {group}"):
            body = self.parts[_key(Ref(Kind.RESOURCE_GROUP, group, group))].body
            body["tags"] = {name: value for name, value in body["tags"].items() if not name.startswith("gpuinfra:")}

    def wait(self, operation: Operation, deadline: Deadline) -> None:
        with self._call(f"wait {operation.ref}"):
            assert isinstance(operation, FakeOperation)
            self.interrupt.check(str(operation.ref))
            if operation.error:
                raise operation.error

    # Implementation

    def _call(self, call: str) -> "_Call":
        return _Call(self, call, self._lock)

    def _keep(self, ref: Ref, body: dict[str, Any]) -> ObservedResource:
        part = self.parts[_key(ref)] = ObservedResource(ref, body)
        return part

    def _present(self, ref: Ref) -> ObservedResource:
        part = self.parts.get(_key(ref))
        if part is None:
            raise CloudError(Fault.ABSENT, "ResourceNotFound", "not there", subject=str(ref))
        return part

    def _make_machine(self, made: Ref, body: dict[str, Any], fault: "_Fault | None") -> None:
        if fault:
            body["properties"]["provisioningState"] = "Failed"
            status = {"code": f"ProvisioningState/failed/{fault.error.code}"}
            body["properties"]["instanceView"] = {"statuses": [status]}
            return
        _set_power(body, "running")
        wanted = body["properties"]["storageProfile"]["osDisk"]
        disk = Ref(Kind.DISK, made.group, wanted["name"])
        wanted["managedDisk"]["id"] = disk.id(self.subscription)
        made_with = {"location": body["location"], "tags": dict(body["tags"])}
        sku, size = wanted["managedDisk"]["storageAccountType"], wanted["diskSizeGB"]
        self._keep(disk, {**made_with, "sku": {"name": sku}, "properties": {"diskSizeGB": size}})

    def _identify(self, body: dict[str, Any]) -> None:
        if "identity" in body and not body["identity"].get("principalId"):
            self.principals += 1
            body["identity"]["principalId"] = f"principal-{self.principals}"

    def _check_unused(self, ref: Ref) -> None:
        """Refuse to delete a resource that another uses, as Azure does."""
        users = dict.fromkeys((Kind.PUBLIC_IP, Kind.NSG, Kind.VNET), Kind.NIC)
        users |= {Kind.NIC: Kind.VM, Kind.DISK: Kind.VM}
        user = users.get(ref.kind)
        wanted = ref.id(self.subscription).casefold()
        for part in self.parts.values():
            if part.ref.kind is user and wanted in json.dumps(part.body).casefold():
                raise CloudError(Fault.OTHER, "InUse", f"{part.ref} has it", subject=str(ref))

    def _check_off(self, resource: Resource, body: dict[str, Any]) -> None:
        """Refuse to change a disk's size or kind unless its machine is deallocated, as Azure does."""
        if resource.ref.kind is not Kind.DISK or Kind.VM not in self.kinds or "sku" not in resource.body:
            return
        same = [resource.body["sku"]["name"], resource.body["properties"]["diskSizeGB"]]
        machine = self.parts[_key(ref(Kind.VM, resource.ref.group))]
        if same != [body["sku"]["name"], body["properties"]["diskSizeGB"]] and machine.power != "deallocated":
            raise CloudError(Fault.OTHER, "OperationNotAllowed", "the machine is on", subject=str(resource.ref))

    def _delete(self, ref: Ref) -> None:
        self.parts.pop(_key(ref), None)
        if ref.kind is Kind.RESOURCE_GROUP:
            inside = [part.ref for part in self.parts.values() if part.ref.group.casefold() == ref.group.casefold()]
        elif ref.kind is Kind.VM:  # created with delete options
            inside = [ref_of(kind, ref.group, ref.name) for kind in (Kind.DISK, Kind.NIC, Kind.PUBLIC_IP)]
        else:
            inside = []
        for each in inside:
            if each.kind not in self.stays:
                self.parts.pop(_key(each), None)


@dataclass
class _Call:
    """One call at a time; an armed fault applies before it, after it, or to its operation."""

    cloud: FakeCloud
    call: str
    lock: Any
    fault: _Fault | None = None

    def __enter__(self) -> _Fault | None:
        self.cloud.on_call(self.call)
        self.lock.acquire()
        self.cloud.calls.append(self.call)
        self.fault = self._take()
        if self.fault and not self.fault.done and not self.fault.operation:
            self.lock.release()
            raise self._error(self.fault)
        return self.fault if self.fault and self.fault.operation else None

    def __exit__(self, *raised: object) -> None:
        self.lock.release()
        if self.fault and self.fault.done and raised[0] is None:
            raise self._error(self.fault)

    def _error(self, fault: _Fault) -> CloudError:
        subject = self.call.partition(" ")[2]
        return CloudError(fault.error.fault, fault.error.code, fault.error.message, subject=subject)

    def _take(self) -> _Fault | None:
        for fault in self.cloud.faults:
            if not self.call.startswith(fault.call) or fault.times == 0:
                continue
            if fault.skip:
                fault.skip -= 1
                continue
            fault.times -= 1
            return fault
        return None


def _plain(body: Any) -> Any:
    """Return a copy of a body, which must be JSON."""
    if isinstance(body, dict):
        return {name: _plain(value) for name, value in body.items()}
    return [_plain(value) for value in body] if isinstance(body, list) else body


def _copied(part: ObservedResource) -> ObservedResource:
    return ObservedResource(part.ref, _plain(part.body))


def _error_of(fault: _Fault | None) -> CloudError | None:
    return fault.error if fault else None


def _key(ref: Ref) -> tuple[Kind, str, str]:
    return ref.kind, ref.group.casefold(), ref.name.casefold()


def _set_power(body: dict[str, Any], power: str) -> None:
    statuses = [{"code": "ProvisioningState/succeeded"}, {"code": f"PowerState/{power}"}]
    body["properties"]["instanceView"] = {"statuses": statuses}


def made(wanted: Spec | None = None, **fields: Any) -> FakeCloud:
    """Return a cloud in which only this machine is up."""
    cloud, given = FakeCloud(), plan_input(wanted, **fields)
    for kind, module in MODULES.items():
        if kind is not Kind.DISK:
            cloud.put(module.desired(given))
    cloud.body(Kind.PUBLIC_IP, given.spec.group_name)["tags"][tags.READY] = "2026-11-16T08:01:00Z"
    cloud.calls.clear()
    return cloud


# The market


@dataclass
class FakeMarket:
    """A market with every size, at $0.50 an hour."""

    subscription: str = SUBSCRIPTION
    limit: int = 100
    used: int = 0
    missing_providers: tuple[str, ...] = ()
    scheduled: frozenset[str] | None = None
    plan: ImagePlan | None = None
    written: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def subscription_name(self) -> str:
        self.asked.append("subscription")
        return "My subscription"

    def catalogue(self, region: str) -> Catalogue:
        return Catalogue(region, {size: offer for (size, _), offer in self.offers(region).items()}, self.quotas(region))

    def offers(self, region: str | None = None) -> Mapping[tuple[str, str], Offer]:
        where = region or "eastus"
        return {
            (size, where): Offer(size, where, ("1", "2"), FAMILY, cores, 28.0, 1, ("V2",), spot_capable=True)
            for size, cores in CORES.items()
        }

    def quotas(self, region: str) -> Mapping[str, Quota]:
        return {FAMILY: Quota(FAMILY, self.limit, self.used)}

    def image(self, urn: str, region: str) -> Image:
        return Image(urn, True, "25.06.18", "V2", self.plan, False if self.plan else None)

    def accept_terms(self, plan: ImagePlan) -> None:
        self.written.append(f"accept {plan.name}")

    def actions_allowed(self, group: str | None) -> Permissions:
        return Permissions((Grant(("*",)),))

    def schedule_regions(self) -> frozenset[str] | None:
        return self.scheduled

    def unregistered(self, namespaces: Iterable[str]) -> tuple[str, ...]:
        return self.missing_providers

    def register(self, namespace: str, deadline: Deadline) -> None:
        self.written.append(f"register {namespace}")

    def price(self, size: str, region: str, spot: bool = False) -> float | None:
        return 0.1 if spot else 0.5

    def prices(self, sizes: Iterable[str]) -> Prices:
        return Prices()


# Actions


class RecordedProgress(Silent):
    """Records progress."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def begin(self, step: str, doing: str) -> None:
        self.lines.append(f"{step}: {doing}")

    def end(self, step: str, outcome: str) -> None:
        self.lines.append(f"{step}: {outcome}")

    def fail(self, step: str, reason: str) -> None:
        self.lines.append(f"{step}: failed: {reason}")

    def wait(self, reason: str, seconds: float) -> None:
        self.lines.append(f"{reason}, {seconds:.0f} s")

    def note(self, text: str) -> None:
        self.lines.append(text)


NO_JOURNAL = Journal(None, NAME, "")


def planned(cloud: FakeCloud, wanted: Spec | None = None, **fields: Any) -> Plan:
    """Return the plan of `up`, with the first candidate of the spec."""
    wanted = wanted or spec()
    observed = cloud.observe(wanted.name, wanted.group_name)
    cloud.calls.pop()
    fields.setdefault("lease", lease.decide(wanted, observed.part(Kind.VM), cloud.now()))
    return make_plan(plan_input(wanted, **fields), observed)


def change_of(plan: Plan, kind: Kind) -> Change:
    (found,) = [change for change in plan.changes if change.ref.kind is kind]
    return found


def words(plan: Plan) -> list[str]:
    """Return the plan in short: `add group`, `change machine start`, …."""
    return [
        " ".join([change.action, change.ref.kind, *([change.power] if change.power else []), *["loses"] * change.loses])
        for change in plan.changes
    ]


def task(cloud: FakeCloud, seconds: float = 3600, market: FakeMarket | None = None) -> Task:
    return Task(cloud, market or FakeMarket(), RecordedProgress(), NO_JOURNAL, cloud.time.deadline(seconds))


def lines_of(task: Task) -> list[str]:
    """Return the recorded progress."""
    assert isinstance(task.progress, RecordedProgress)
    return task.progress.lines


def plan_execution(cloud: FakeCloud, seconds: float = 3600) -> PlanExecution:
    return PlanExecution(task(cloud, seconds))


def provisioner(cloud: FakeCloud, wanted: Spec | None = None, market: FakeMarket | None = None) -> Provisioner:
    return Provisioner(
        spec=wanted or spec(),
        task=task(cloud, market=market),
        sources=("203.0.113.7/32",),
        public_key=KEY,
        host_key=HOST_KEY,
    )
