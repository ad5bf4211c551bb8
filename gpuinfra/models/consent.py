"""The questions that a command asks, and which runs and outputs a change affects, which decides what it asks."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, IntEnum

from gpuinfra.models.plan import Action, Kind, Plan, Power
from gpuinfra.models.run import Run, RunState


class Effect(Enum):
    """What a change does to an existing machine."""

    NONE = "none"
    GO_OFF_SOONER = "go-off-sooner"
    """The machine's end moves forward, perhaps to now, so jobs that counted on it are stopped."""
    RESTART = "restart"
    POWER_OFF = "power-off"
    DELETE_DISK = "delete-disk"


class Contact(Enum):
    """Whether the machine answered when asked for its runs."""

    ANSWERED = "answered"
    OFF = "off"
    """Off: no job runs, but its disk may hold outputs."""
    SILENT = "silent"
    """It may be on, but did not answer."""
    REFUSED = "refused"
    """It is on, but does not accept the user's key: it may belong to another user."""
    NOTHING_THERE = "nothing there"
    """Neither machine nor disk exists, or the machine was never completely created."""


_ON_AND_UNKNOWN = frozenset({Contact.SILENT, Contact.REFUSED})


class Consent(IntEnum):
    """The options that a change needs without a terminal; each level includes the lower ones."""

    NONE = 0
    YES = 1
    """`--yes`."""
    DELETE = 2
    """`--delete` together with `--yes`."""


@dataclass(frozen=True, slots=True)
class MachineRun:
    """A run as the machine reports it."""

    id: str
    is_over: bool
    has_outputs: bool


@dataclass(frozen=True, slots=True)
class MachineRuns:
    """The runs of a machine, and whether it is ready to go off."""

    runs: tuple[MachineRun, ...]
    closed_until: float = 0.0
    """Until when (`time.time()`) the machine refuses new jobs: no run is active, and all outputs were fetched. 0 if it
    accepts jobs."""


@dataclass(frozen=True, slots=True)
class MachineAnswer:
    """The machine's answer when asked for its runs."""

    contact: Contact
    runs: tuple[MachineRun, ...] = ()
    closed_until: float = 0.0
    """See `MachineRuns`."""
    is_billed: bool = True
    """Whether the machine may be billed by the hour. A stopped machine is; a deallocated one is not."""
    is_deleted: bool = False
    """Whether the VM does not exist while its disk does."""
    vm: str = ""
    """Azure's `vmId` of the machine; empty if there is no VM."""
    vm_id: str = ""
    """The same, but empty if its disk may be older than the VM."""
    attached: tuple[str, ...] = ()
    """Disks, NICs and public IPs that others attached to the machine, according to Azure."""


@dataclass(frozen=True, slots=True)
class RunAtRisk:
    """A run that a change stops, or whose outputs it loses."""

    id: str
    script: str
    """Empty for a run of another workspace."""
    state: str
    is_running: bool
    is_unfetched: bool
    is_own: bool
    """Whether this workspace submitted it."""

    def __str__(self) -> str:
        script = f"{self.script}, " if self.script else ""
        outputs = ", outputs not fetched" if self.is_unfetched else ""
        elsewhere = "" if self.is_own else ", sent from another workspace"
        return f"{self.id} ({script}{self.state}{outputs}{elsewhere})"


@dataclass(frozen=True, slots=True)
class Decision:
    """The runs that a change affects, and the consent that it needs."""

    effect: Effect
    consent: Consent
    runs: tuple[RunAtRisk, ...] = ()
    unknown: Contact | None = None
    """Why there may be more runs; None if the machine answered."""


def effect_of(plan: Plan) -> Effect:
    """Return what a plan does to the existing machine."""
    if plan.loses:
        return Effect.DELETE_DISK
    changed = [change for change in plan.changes if change.action is Action.CHANGE]
    if any(change.power is Power.DEALLOCATE for change in changed):
        return Effect.POWER_OFF
    if any(change.power is Power.START for change in changed):
        return Effect.NONE
    differences = [each for change in changed for each in change.differences]
    if any(each.needs_off for each in differences):
        return Effect.RESTART
    return Effect.GO_OFF_SOONER if any(each.is_sooner for each in differences) else Effect.NONE


def creates_machine(plan: Plan) -> bool:
    """Return whether a plan creates a machine."""
    return any(change.ref.kind is Kind.VM and change.action is Action.ADD for change in plan.changes)


def decide(
    effect: Effect,
    machine: str,
    known: Sequence[Run],
    answer: MachineAnswer,
    *,
    simulated: bool,
    resource_id: str = "",
) -> Decision:
    """Return which runs are at risk, and which consent the change needs.

    `known` are all runs of this workspace. Only the machine knows the runs of other workspaces.
    """
    if effect is Effect.NONE or answer.contact is Contact.NOTHING_THERE:
        return Decision(effect, Consent.NONE)
    # A simulated machine may have the name of a real one.
    mine = [run for run in known if run.simulated == simulated and run.is_of(machine, resource_id)]
    runs = tuple(_all_runs(mine, known, answer))
    unknown = None if answer.contact is Contact.ANSWERED else answer.contact
    if effect is Effect.DELETE_DISK:
        lost = tuple(run for run in runs if run.is_running or run.is_unfetched)
        return Decision(effect, Consent.DELETE if lost or unknown else Consent.YES, lost, unknown)
    stopped = tuple(run for run in runs if run.is_running)
    unknown = unknown if unknown in _ON_AND_UNKNOWN else None
    # Powering off loses nothing, and a machine that does not answer must not stay billed for that.
    asks = stopped or (unknown and effect is Effect.RESTART)
    return Decision(effect, Consent.YES if asks else Consent.NONE, stopped, unknown)


def _all_runs(mine: Iterable[Run], known: Sequence[Run], answer: MachineAnswer) -> Iterator[RunAtRisk]:
    """Return all runs on the machine. Runs that the machine reports always count."""
    seen = {run.id: run for run in answer.runs}
    own = {run.id: run for run in mine} | {run.id: run for run in known if run.id in seen}
    for run in own.values():
        yield _own(run, answer, seen.get(run.id))
    for found in answer.runs:
        if found.id not in own:
            state = "ended" if found.is_over else "running"
            yield RunAtRisk(found.id, "", state, not found.is_over, found.has_outputs, is_own=False)


def _own(run: Run, answer: MachineAnswer, found: MachineRun | None) -> RunAtRisk:
    contact = answer.contact
    has_begun = run.job is not None or run.started is not None
    if contact is Contact.ANSWERED:
        # For a while the machine expects a job to begin that was interrupted before; this workspace knows that.
        is_expected = run.state is RunState.LOST and not has_begun
        is_running = found is not None and not found.is_over and not is_expected
    else:
        is_running = contact in _ON_AND_UNKNOWN and has_begun and not run.state.is_over
    state = run.state.value if is_running or run.state.is_over else "ended"
    # A machine that does not know the run may have lost its files; one that is another VM never had them.
    is_elsewhere = contact is Contact.ANSWERED and found is None and run.is_on_another(answer.vm_id)
    is_unfetched = has_begun and not run.outputs.complete and not is_elsewhere
    return RunAtRisk(run.id, run.script or " ".join(run.command[:1]), state, is_running, is_unfetched, is_own=True)


UNKNOWN = {
    Contact.OFF: "{} is off, so its runs are unknown: its disk may hold outputs of other workspaces",
    Contact.SILENT: "{} does not answer, so its runs are unknown: jobs of other workspaces may be running there",
    Contact.REFUSED: "{} does not accept your SSH key, so its runs are unknown: jobs of others may be running there",
}


def unknown_runs(name: str, contact: Contact) -> str:
    """Return a sentence that says why there may be more runs than listed."""
    return UNKNOWN[contact].format(name)


@dataclass(frozen=True)
class ConsentDetails:
    """What a change stops or loses, to show before the question."""

    name: str
    decision: Decision
    attached: Sequence[str] = ()


@dataclass(frozen=True)
class HostKeyDetails:
    """A host key that a machine shows for the first time."""

    place: str
    kind: str
    fingerprint: str


@dataclass(frozen=True)
class Question:
    """A yes-or-no question."""

    text: str
    details: str | ConsentDetails | HostKeyDetails | None = None
    """What to show before the question."""
    default: bool = False


@dataclass(frozen=True)
class PlanReady:
    """A plan is about to be applied."""

    plan: Plan
    is_one_of_many: bool = False
    """Whether the command is for several machines, so that the plan needs its machine's name."""


@dataclass(frozen=True)
class Interrupted:
    """Ctrl-C interrupted a change: the resources that exist now."""

    name: str
    resources: Sequence[str] | None
    """None if Azure did not answer."""
    stops: datetime | None
    """When Azure's schedule deallocates the machine."""
    simulated: bool


@dataclass(frozen=True)
class MachineState:
    """A machine after Ctrl-C: `on`, `off`, `absent` or `unknown`, and its price per hour if it is on."""

    name: str
    power: str
    per_hour: float | None = None


@dataclass(frozen=True)
class CommandInterrupted:
    """Ctrl-C interrupted a command for several machines: their states, and what to run next."""

    machines: Sequence[MachineState]
    help: str


@dataclass(frozen=True)
class ReapInterrupted:
    """Ctrl-C interrupted `reap`: machines that Azure is deallocating, and those not started."""

    under_way: Sequence[str]
    not_begun: Sequence[str]


Event = PlanReady | Interrupted | CommandInterrupted | ReapInterrupted
