"""Determine the state of runs without a client: query their machines and Azure, briefly and in parallel."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

from gpuinfra.app.settings import Settings
from gpuinfra.app.specs import spec_file, spec_of_machine
from gpuinfra.diagnostics import Code, Problem
from gpuinfra.provision.power import SHUT_DOWN, UNUSABLE

if TYPE_CHECKING:
    from concurrent.futures import Future

    from gpuinfra.app.workspace import Workspace
    from gpuinfra.models.plan import MachineId, Ref
    from gpuinfra.models.run import Run
    from gpuinfra.provision.cloud import Cloud
    from gpuinfra.runner.link import Link
    from gpuinfra.runner.settle import MachinePower, RunAnswer

# A child of the program's logger, so that `--verbose` shows it.
logger = logging.getLogger(__name__)

# For all machines together.
SECONDS = 8.0
# Most machines answer faster than this, and then Azure is not queried.
FIRST_SECONDS = 1.5
# Azure's clock and the local clock differ slightly.
BEFORE = timedelta(minutes=5)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Settled:
    """Runs, as far as their machines and Azure answered in time."""

    runs: list[Run]
    """In the given order."""
    unheard: frozenset[str] = frozenset()
    """Runs without a client whose machine did not answer. They may have ended."""
    running: frozenset[str] = frozenset()
    """Runs without a client whose machine says that the job runs."""


def settle_runs(settings: Settings, runs: Sequence[Run], seconds: float | None = None) -> Settled:
    """Record the end of every run without a client that has ended, as far as answers come within `seconds`."""
    from gpuinfra.app.workspace import open_workspace

    workspace = open_workspace(settings)
    waiting = [run for run in runs if workspace.is_unfollowed(run)]
    if not waiting:
        return Settled(list(runs))
    ends = time.monotonic() + (SECONDS if seconds is None else seconds)
    groups: defaultdict[tuple[str, ...], list[Run]] = defaultdict(list)
    for run in waiting:
        place = (run.machine, run.resource_id, run.vm_id, str(run.simulated))
        groups[run.configuration, run.target, *place].append(run)
    asked = [_Group(settings, group) for group in groups.values()]
    for group in asked:
        group.ask_machine()
    first = min(time.monotonic() + FIRST_SECONDS, ends)
    slow = [group for group in asked if not group.wait(first)]
    for group in slow:
        group.ask_azure()
    for group in slow:
        group.wait(ends)
    settled = {run.id: run for group in asked for run in group.settle(workspace)}
    rest = {run.id for run in waiting} - settled.keys()
    running = {run for group in asked for run in group.answered} & rest
    found = [settled.get(run.id, run) for run in runs]
    return Settled(found, frozenset(rest - running), frozenset(running))


def fetch_hint(settings: Settings, run: Run) -> str:
    """Return the commands that fetch a run's outputs, or an empty string if nothing is missing or left."""
    from gpuinfra.runner.settle import fetch_help

    if not run.is_unfetched:
        return ""
    if kept := _kept_disk(run):
        return kept
    return fetch_help(run, spec_file(settings, run.machine) or "SPEC")


def off_hint(settings: Settings, run: Run) -> str:
    """Return the commands that fetch a run's outputs from a machine that is off."""
    from gpuinfra.runner.settle import off_help

    return _kept_disk(run) or off_help(run, spec_file(settings, run.machine) or "SPEC")


def _kept_disk(run: Run) -> str:
    """Return how to read the disk that a deleted VM left; nothing if the VM exists or is not known."""
    from gpuinfra.models.plan import parse_machine_id

    machine = parse_machine_id(run.resource_id) if run.is_on_kept_disk else None
    return kept_disk_help(machine) if machine else ""


def kept_disk_help(machine: MachineId) -> str:
    """Return what is left of a deleted VM, and the command that makes its disk readable.

    `gpuinfra up` would delete the disk. A new VM on this disk would have no lease: the disk goes to a VM that exists.
    """
    from gpuinfra.models.plan import Kind
    from gpuinfra.provision.tags import ref_of

    disk = ref_of(Kind.DISK, machine.group_name, machine.name)
    attach = f"az vm disk attach --resource-group GROUP --vm-name VM --name {disk.id(machine.subscription)}"
    return (
        f"the VM {machine.name} was deleted, and its disk {disk.name} is kept; "
        f"`{attach}` attaches it to another VM in its region"
    )


class _Group:
    """The runs of one target, with the answers of its machine and of Azure."""

    def __init__(self, settings: Settings, runs: list[Run]) -> None:
        self._settings, self._runs = settings, runs
        self._answers: Future[dict[str, RunAnswer]] | None = None
        self._power: Future[MachinePower | None] | None = None

    def ask_machine(self) -> None:
        from gpuinfra.runner.progress import in_thread

        begun = [run for run in self._runs if run.job]
        if begun:
            self._answers = in_thread(lambda: _ask_machine(self._settings, begun), "asking a machine")

    def ask_azure(self) -> None:
        from gpuinfra.runner.progress import in_thread

        if self._runs[0].machine:
            since = min(run.started or run.created for run in self._runs)
            self._power = in_thread(lambda: _ask_azure(self._settings, self._runs[0], since), "asking Azure")

    def wait(self, ends: float) -> bool:
        """Wait for all answers, and return whether Azure need not be queried."""
        answers = _result(self._answers, ends) if self._answers else {}
        if self._power and (answers is None or _is_lost(answers)):
            _result(self._power, ends)
        return answers is not None and not _is_lost(answers)

    @property
    def answered(self) -> set[str]:
        """The runs that the machine answered about."""
        answers = _result(self._answers, 0.0) if self._answers else None
        return set(answers or {})

    def settle(self, workspace: Workspace) -> Iterable[Run]:
        from gpuinfra.runner.errors import JobError
        from gpuinfra.runner.log import LogFile
        from gpuinfra.runner.settle import settle

        answers = _result(self._answers, 0.0) if self._answers else {}
        power = _result(self._power, 0.0) if self._power else None
        for run in self._runs:
            fields = settle(run, (answers or {}).get(run.id), power)
            if not fields:
                continue
            try:
                with LogFile(workspace.run_folder(run.id) / "log") as log:
                    # Another process may follow it by now; then that one records the end.
                    if log.try_lock() and not workspace.history.find(run.id).state.is_over:
                        yield workspace.history.update(run.id, **fields)
            except (Problem, JobError, OSError):
                yield replace(run, **fields)  # nothing can be written here


def _result(asked: Future[T], ends: float) -> T | None:
    """Return the answer, or None if it failed or is late."""
    try:
        return asked.result(max(0.0, ends - time.monotonic()))
    except Exception:  # any error: show what is known
        logger.debug("no answer about runs", exc_info=True)
        return None


def _is_lost(answers: dict[str, RunAnswer]) -> bool:
    """Return whether a job ended unobserved, so that Azure may know when its machine went off."""
    return any(answer.ended and answer.ended.stop_reason.value == "lost" for answer in answers.values())


def _ask_machine(settings: Settings, runs: list[Run]) -> dict[str, RunAnswer]:
    from gpuinfra.app.workspace import open_workspace, target_of_run
    from gpuinfra.runner.connection.passwords import find_password, keyring_entry
    from gpuinfra.runner.errors import JobError
    from gpuinfra.runner.link import link_to

    target, _ = target_of_run(open_workspace(settings), runs[0])
    kept = keyring_entry(target) if target.address else None
    password = find_password(*kept) if kept else None
    link = link_to(target, (lambda: password) if password else None, SECONDS)
    answers: dict[str, RunAnswer] = {}
    try:
        for run in runs:
            with suppress(JobError):
                answers[run.id] = _answer(link, run)
    finally:
        link.drop()
    return answers


def _answer(link: Link, run: Run) -> RunAnswer:
    from gpuinfra.runner.errors import JobError
    from gpuinfra.runner.follower import open_job
    from gpuinfra.runner.remote_runs import parse_job_end, read_state
    from gpuinfra.runner.settle import RunAnswer

    try:
        state = read_state(link.remote, run.id)
        ended = parse_job_end(state)
        if ended or state.get("alive"):
            return RunAnswer(known=True, ended=ended)
        # No process watches this container, but its engine knows it.
        return RunAnswer(known=True, ended=open_job(link, run).ended())
    except JobError as error:
        if error.code != Code.NO_SUCH_RUN:
            raise
    if run.job and run.job.kind == "container":
        with suppress(JobError):
            return RunAnswer(known=True, ended=open_job(link, run).ended())
    return RunAnswer(known=False)


def _ask_azure(settings: Settings, run: Run, since: datetime) -> MachinePower | None:
    """Return the state of a run's machine in Azure; None if Azure does not know it and no record says that it did."""
    from gpuinfra.app.access import open_cloud
    from gpuinfra.models.plan import Kind
    from gpuinfra.provision.observed_resource import vm_id_without_older_disk
    from gpuinfra.provision.tags import ref_of
    from gpuinfra.runner.settle import MachinePower, Power

    place = _place(settings, run)
    if place is None:
        return None
    # A machine in the sandbox may have the name of a real one.
    where = replace(settings, cloud="sandbox" if run.simulated else "azure")
    cloud = open_cloud(where, place.subscription, SECONDS)
    ref = ref_of(Kind.VM, place.group, run.machine)
    found = cloud.look(ref)
    is_another = found is not None and run.is_on_another(found.vm_id)
    disk = cloud.look(ref_of(Kind.DISK, place.group, run.machine)) if found is None or is_another else None
    if found is None:
        if not place.existed or place.subscription != cloud.subscription:
            return None
        power = Power.DELETED if disk else Power.GONE
    elif is_another and vm_id_without_older_disk(found, disk):
        power = Power.REPLACED
    elif is_another and disk and not disk.body.get("managedBy"):
        power = Power.DELETED
    elif found.power in UNUSABLE:
        power = Power.STOPPED if found.power in SHUT_DOWN else Power.OFF
    else:
        power = Power.ON
    return MachinePower(power, *_times_off(cloud, ref, since))


def _times_off(cloud: Cloud, ref: Ref, since: datetime) -> tuple[tuple[datetime, ...], datetime | None]:
    """Return when the machine went off according to Azure's log, and when the log was read, if it could be."""
    from gpuinfra.provision.costing.activity import KEPT, changes, read_events
    from gpuinfra.provision.costing.timeline import Turn
    from gpuinfra.provision.errors import CloudError

    now = cloud.now()
    try:
        bodies = cloud.fleet.activity_log(max(min(since, now) - BEFORE, now - KEPT), now, ref.id(cloud.subscription))
    except CloudError:
        return (), None
    return tuple(each.at for each in changes(read_events(bodies)) if each.turn in {Turn.OFF, Turn.GONE}), now


@dataclass(frozen=True, slots=True)
class _Place:
    """The place in Azure where a machine is, or was."""

    group: str
    subscription: str | None
    existed: bool
    """Whether this workspace saw it there."""


def _place(settings: Settings, run: Run) -> _Place | None:
    from gpuinfra.app.machine_costs import ledger_entries
    from gpuinfra.models.plan import parse_machine_id

    if found := parse_machine_id(run.resource_id):
        return _Place(found.group_name, found.subscription, existed=True)
    for entry in reversed(ledger_entries(settings, simulated=run.simulated, machine=run.machine)):
        if entry.group:
            return _Place(entry.group, entry.subscription, existed=True)
    spec = spec_of_machine(settings.workspace, run.machine, None)
    return _Place(spec.group_name, spec.subscription, existed=False) if spec else None
