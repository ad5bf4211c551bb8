"""Azure resources as values, and a plan: what to create, change or delete, and what it costs."""

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """The kinds of resources of a machine, in the order of their creation."""

    RESOURCE_GROUP = "resource-group"
    NSG = "nsg"
    VNET = "vnet"
    PUBLIC_IP = "public-ip"
    NIC = "nic"
    VM = "vm"
    DISK = "disk"
    SHUTDOWN_SCHEDULE = "shutdown-schedule"


ARM_TYPES = {
    Kind.RESOURCE_GROUP: "Microsoft.Resources/resourceGroups",
    Kind.NSG: "Microsoft.Network/networkSecurityGroups",
    Kind.VNET: "Microsoft.Network/virtualNetworks",
    Kind.PUBLIC_IP: "Microsoft.Network/publicIPAddresses",
    Kind.NIC: "Microsoft.Network/networkInterfaces",
    Kind.VM: "Microsoft.Compute/virtualMachines",
    Kind.DISK: "Microsoft.Compute/disks",
    Kind.SHUTDOWN_SCHEDULE: "Microsoft.DevTestLab/schedules",
}


@dataclass(frozen=True, slots=True)
class Ref:
    """A reference to a resource: enough to build its id in any subscription."""

    kind: Kind
    group: str
    name: str

    def id(self, subscription: str) -> str:
        group = f"/subscriptions/{subscription}/resourceGroups/{self.group}"
        return group if self.kind is Kind.RESOURCE_GROUP else f"{group}/providers/{ARM_TYPES[self.kind]}/{self.name}"

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class MachineId:
    """The identity of a VM. It distinguishes machines with the same name."""

    subscription: str
    group_name: str
    name: str
    host_key: str = field(default="", compare=False)
    """The host key that was recorded with the id; may be empty."""

    def __str__(self) -> str:
        return Ref(Kind.VM, self.group_name, self.name).id(self.subscription)


_MACHINE_ID = re.compile(
    r"/subscriptions/([0-9A-Za-z-]{1,64})/resourceGroups/([^/\s]{1,90})"
    r"/providers/Microsoft\.Compute/virtualMachines/([0-9A-Za-z-]{1,64})",
    re.IGNORECASE,
)


def parse_machine_id(text: str | None, host_key: str = "") -> MachineId | None:
    """Return the machine of an Azure resource id, or None for any other text."""
    found = _MACHINE_ID.fullmatch(text or "")
    return MachineId(found[1], found[2], found[3], host_key) if found else None


def same_machine(one: str, other: str) -> bool:
    """Return whether two ids are equal. Azure ignores case."""
    return one.casefold() == other.casefold()


@dataclass(frozen=True, slots=True)
class Resource:
    """A desired resource: its reference and its ARM body."""

    ref: Ref
    body: dict[str, Any]
    secrets: dict[str, Any] = field(default_factory=dict, repr=False)
    """Parts of the body's `properties` that are sent to Azure, but never shown or stored."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A place for a machine: a size in a region, and a zone if the spec names zones."""

    region: str
    size: str
    zone: str | None = None

    def __str__(self) -> str:
        place = f"{self.region}, zone {self.zone}" if self.zone else self.region
        return f"{self.size} in {place}"

    def as_json(self) -> dict[str, Any]:
        zone = {"zone": self.zone} if self.zone else {}
        return {"region": self.region, "size": self.size, **zone}


@dataclass(frozen=True, slots=True)
class RejectionReason:
    """Why a candidate was rejected: a code from Azure or gpuinfra, and a sentence."""

    code: str
    text: str
    help: str | None = None


@dataclass(frozen=True, slots=True)
class RejectedCandidate:
    """A rejected candidate with every reason."""

    candidate: Candidate
    reasons: tuple[RejectionReason, ...]

    def as_json(self) -> dict[str, Any]:
        reasons = [{"code": reason.code, "text": reason.text} for reason in self.reasons]
        return {**self.candidate.as_json(), "reasons": reasons}


class Action(StrEnum):
    """What happens to a resource."""

    ADD = "add"
    CHANGE = "change"
    REPLACE = "replace"
    DESTROY = "destroy"


@dataclass(frozen=True, slots=True)
class Difference:
    """One property that differs from the spec."""

    what: str
    old: str
    new: str
    replaces: bool = False
    """Whether the change replaces the resource."""
    needs_off: bool = False
    """Whether the change is possible only while the machine is deallocated."""
    is_sooner: bool = False
    """Whether the machine goes off sooner than before."""
    of_lease: bool = False
    """Whether it belongs to the lease. A machine that is off gets a new lease when it starts."""


class Power(StrEnum):
    """A change of the machine's power state."""

    START = "start"
    DEALLOCATE = "deallocate"


@dataclass(frozen=True, slots=True)
class Change:
    """What happens to one resource, and why."""

    action: Action
    ref: Ref
    summary: str = ""
    """A short description, such as `Standard_NC4as_T4_v3, southcentralus`."""
    differences: tuple[Difference, ...] = ()
    resource: Resource | None = None
    """The desired resource; None if the change deletes it."""
    power: Power | None = None
    loses: bool = False
    """Whether the content of the machine's disk is lost."""

    def as_json(self) -> dict[str, Any]:
        """Return this as a JSON object, without the ARM bodies."""
        plain: dict[str, Any] = {"action": self.action.value, "kind": self.ref.kind.value, "name": self.ref.name}
        if self.summary:
            plain["summary"] = self.summary
        if self.power:
            plain["power"] = self.power.value
        if self.differences:
            plain["differences"] = [
                {"what": each.what, "old": each.old, "new": each.new, "forcesReplacement": each.replaces}
                for each in self.differences
            ]
        return plain


@dataclass(frozen=True, slots=True)
class Price:
    """The machine's prices in US dollars; None if unknown."""

    per_hour: float | None = None
    disk_per_month: float | None = None
    address_per_month: float | None = None
    list_of: str | None = None
    """The month of the price list shipped with gpuinfra, if the hourly price comes from it."""

    @property
    def residue_per_month(self) -> float | None:
        """The cost per month while the machine is deallocated: disk and public IP."""
        parts = (self.disk_per_month, self.address_per_month)
        return None if None in parts else sum(part or 0 for part in parts)

    def as_json(self) -> dict[str, Any]:
        residue = self.residue_per_month
        return {"perHourUsd": self.per_hour, "listOf": self.list_of, "residuePerMonthUsd": residue}


@dataclass(frozen=True, slots=True)
class ResolvedJob:
    """What `gpuinfra run SPEC` would run, from the spec and the run configuration. It has no values of secrets."""

    command: tuple[str, ...] = ()
    """The program and its arguments; empty if the command line has to name one."""
    title: str = ""
    """The command as it was written."""
    target: str = ""
    type: str = ""
    image: str | None = None
    """The image of a job in a container, or the base image for its packages."""
    packages: str | None = None
    """The path of the file whose packages are installed."""
    dockerfile: str | None = None
    """The path of the Dockerfile that the image is built from."""
    needs_gpu: bool = False
    variables: dict[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    missing_secrets: tuple[str, ...] = ()
    """The secrets without a value on this computer."""
    outputs: tuple[str, ...] = ()
    ports: dict[str, int] = field(default_factory=dict)
    timeout: float | None = None
    keep_on_failure: float | None = None
    """For how many seconds the machine stays on if the job fails."""
    problem: str = ""
    """Why it cannot run from this workspace; empty if it can."""

    def as_json(self) -> dict[str, Any]:
        problem = {"problem": self.problem} if self.problem else {}
        return {
            "command": list(self.command) or None,
            "target": self.target,
            "type": self.type,
            "image": self.image,
            "packages": self.packages,
            "dockerfile": self.dockerfile,
            "gpu": self.needs_gpu,
            "env": dict(self.variables),
            "secrets": list(self.secrets),
            "missingSecrets": list(self.missing_secrets),
            "outputs": list(self.outputs),
            "ports": dict(self.ports),
            "timeoutSeconds": self.timeout,
            "keepOnFailureSeconds": self.keep_on_failure,
            **problem,
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that `up` would do for one machine."""

    name: str
    subscription: str
    group: str
    candidate: Candidate | None
    """Where the machine is or will be; None if the spec keeps it off."""
    changes: tuple[Change, ...]
    price: Price = Price()
    rejected: tuple[RejectedCandidate, ...] = ()
    notes: tuple[str, ...] = ()
    wants_running: bool = True
    """Whether the machine is on afterwards."""
    needs_agent: bool = False
    """Whether only the guest agent ends the machine inside Azure. Without its role, `up` deletes the machine again."""
    power_state: str | None = None
    """The VM's power state; None if there is no VM."""
    rests: bool = False
    """Whether the machine is off as designed: deallocated, or without a VM if its spec deletes it after each run."""
    hours_left: float = 0.0
    """How long the machine may be on from now on, to the end of its lease; 0 if its spec keeps it off."""
    simulated: bool = False
    job: ResolvedJob | None = None
    """What `run` would run, if the spec has a job and `plan` resolved it."""

    @property
    def worst_case(self) -> float | None:
        """US dollars until the end of the lease; None without a known price."""
        return None if self.price.per_hour is None else self.price.per_hour * self.hours_left

    @property
    def is_empty(self) -> bool:
        """Whether `up` would change nothing."""
        return not self.changes

    @property
    def differs(self) -> bool:
        """Whether Azure differs from the spec in more than being off as designed."""
        if not self.rests:
            return not self.is_empty
        if self.power_state is None:
            return any(change.action is not Action.ADD for change in self.changes)
        return any(
            change.action is not Action.CHANGE or not all(each.of_lease for each in change.differences)
            for change in self.changes
        )

    @property
    def loses(self) -> bool:
        """Whether a disk's content is lost, which needs consent."""
        return any(change.loses for change in self.changes)

    @property
    def replaces_vm(self) -> bool:
        """Whether the VM is deleted and created again."""
        return any(change.ref.kind is Kind.VM and change.action is Action.REPLACE for change in self.changes)

    @property
    def switches_on(self) -> bool:
        """Whether the plan creates or starts a machine."""
        return self.wants_running and any(
            change.ref.kind is Kind.VM
            and (
                change.action in {Action.ADD, Action.REPLACE}
                or change.power is Power.START
                or any(each.needs_off for each in change.differences)
            )
            for change in self.changes
        )

    @property
    def restarts(self) -> bool:
        """Whether the machine is deallocated and started again for a change."""
        changed = (change for change in self.changes if change.action is Action.CHANGE)
        return any(each.needs_off for change in changed for each in change.differences)

    def count(self, action: Action) -> int:
        return sum(change.action is action for change in self.changes)

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "subscription": self.subscription,
            "resourceGroup": self.group,
            "candidate": self.candidate.as_json() if self.candidate else None,
            "powerState": self.power_state,
            "differs": self.differs,
            "changes": [change.as_json() for change in self.changes],
            "summary": {action.value: self.count(action) for action in Action},
            "price": {
                **self.price.as_json(),
                "worstCaseUsd": None if self.worst_case is None else round(self.worst_case, 4),
            },
            "passedOver": [each.as_json() for each in self.rejected],
            "notes": list(self.notes),
            **({"job": self.job.as_json()} if self.job else {}),
            **({"simulated": True} if self.simulated else {}),
        }
