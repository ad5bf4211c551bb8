"""Stop machines that should be off, and remove orphaned resources, in the whole subscription."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from gpuinfra.app.access import CloudSession, cloud_errors, open_session
from gpuinfra.app.consent import ask_machine
from gpuinfra.app.down import forget_machine
from gpuinfra.app.frontend import Frontend
from gpuinfra.app.ledger_recording import all_accounted, note, note_end, share_end
from gpuinfra.app.settings import Settings
from gpuinfra.app.specs import common_subscription, readable_specs
from gpuinfra.diagnostics import Code, Exit, Problem, problem
from gpuinfra.models.consent import Consent, Contact, Effect, ReapInterrupted, decide
from gpuinfra.models.plan import Kind, Price, Ref
from gpuinfra.models.reap import ReapResult
from gpuinfra.models.run import Run
from gpuinfra.parse.spec import LocatedSpec
from gpuinfra.provision.costing.report import power_on_entry
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.reaping.decide import Rules
from gpuinfra.provision.reaping.reaper import Reaper
from gpuinfra.provision.reaping.spec_history import SpecHistory, spec_history
from gpuinfra.provision.resources.disk import is_fetched
from gpuinfra.provision.tags import machine_key, ref_of
from gpuinfra.provision.task import Journal
from gpuinfra.store import History

SECONDS = 1800.0
"""For the whole command. A scheduled `reap` continues where the last one ended."""


_UNKNOWN_DEFAULT = (
    "the clone does not know the default branch, so no spec on any branch counts as deleted; "
    "`git remote set-head origin --auto` finds it"
)


@dataclass(frozen=True)
class ReapOptions:
    """What `reap` may do."""

    specs: str | None = None
    """A folder of specs in git to compare machines with."""
    grace: timedelta = timedelta(hours=24)
    """How long a machine stays after its spec was deleted."""
    starts: bool = False
    deletes: bool = False
    dry_run: bool = False
    requires_clean: bool = False
    """Whether specs count only if the checkout is clean and has the default branch."""


def reap(settings: Settings, options: ReapOptions, frontend: Frontend) -> tuple[ReapResult, Exit]:
    """Return what was stopped, started and removed, and the exit code."""
    _check_start(options.specs, starts=options.starts)
    folder, missing = _folder(options.specs)
    located = readable_specs(folder, str(folder), frontend) if folder else []
    may = not missing
    wished = Rules(grace=options.grace, starts=options.starts and may, deletes=options.deletes and may)
    with cloud_errors("listing machines"):
        session = open_session(settings, common_subscription(located), SECONDS, frontend, writes=not options.dry_run)
        history = spec_history(folder, session.cloud.now()) if folder else SpecHistory()
        source = history.source
        if options.requires_clean and source and source.why_not_clean:
            history = SpecHistory(source=source, note=f"no machine was compared with its spec: {source.why_not_clean}")
            located, wished = [], replace(wished, starts=False)
        rules, notes = _rules(settings, history, located, wished)
        reaper = _reaper(session, rules, frontend, dry_run=options.dry_run)
        try:
            reaped = reaper.reap()
        except KeyboardInterrupt:
            frontend.show(ReapInterrupted(tuple(reaper.under_way), tuple(reaper.not_begun)))
            raise
        _remember(settings, session, reaped, frontend)
    reaped.specs = source
    if source and not source.is_known:
        notes.append(_UNKNOWN_DEFAULT)
    reaped.notes += [*notes, *([missing] if missing else [])]
    if reaped.failed or reaped.leaves_billed or reaped.not_deleted:
        return reaped, Exit.LEFT_BEHIND
    # A job that did less than it was asked to do must not look green.
    is_refused = options.deletes and may and not rules.deletes
    return reaped, Exit.USAGE if missing or history.note or is_refused else Exit.DONE


def _check_start(specs: str | None, *, starts: bool) -> None:
    if starts and specs is None:
        raise problem(
            Code.USAGE,
            "`--start` needs specs",
            "the specs say which machines have hours, and on which days",
            "`gpuinfra reap --start --specs DIR`",
            exit_code=Exit.USAGE,
        )


def _folder(specs: str | None) -> tuple[Path | None, str | None]:
    """Return the folder of specs, or what is wrong with it.

    A misspelt folder must not look like one without specs. A missing folder must not keep machines on whose leases are
    over: the reaper may be the last layer that stops them.
    """
    if specs is None or Path(specs).is_dir():
        return (Path(specs) if specs else None), None
    return None, f"`{specs}` is not a directory: machines were not compared with specs, and nothing was removed"


def _rules(
    settings: Settings, history: SpecHistory, located: list[LocatedSpec], wished: Rules
) -> tuple[Rules, list[str]]:
    """Return the rules for this run, and notes about what is unknown."""
    notes = [history.note] if history.note else []
    specs = {machine_key(each.spec.group_name, each.spec.name): each.spec for each in located}
    rules = replace(wished, specs=specs, repository=history.repository, deleted=history.deleted)
    try:
        if not settings.yes:
            _known_runs(settings)
    except Problem as problem:
        # It is unknown what the disks hold, so delete none, but still stop what is billed.
        note = f"nothing is deleted: {problem.diagnostics[0].summary}: {problem.diagnostics[0].note}"
        return replace(rules, deletes=False), [*notes, *([note] if wished.deletes else [])]
    return rules, notes


def _known_runs(settings: Settings) -> list[Run]:
    folder = _state(settings)
    return History(folder).list() if folder else []


def _reaper(session: CloudSession, rules: Rules, frontend: Frontend, *, dry_run: bool) -> Reaper:
    folder = _state(session.settings)

    def journal(name: str) -> Journal:
        return Journal(None if dry_run else folder, name, session.settings.correlation_id, session.cloud.now)

    return Reaper(
        cloud=session.cloud,
        market=session.market,
        rules=rules,
        progress=frontend,
        journal=journal,
        deadline=session.cloud.deadline,
        dry_run=dry_run,
        has_outputs=None
        if session.settings.yes
        else lambda name, group: _has_outputs(session, name, group, close=not dry_run),
    )


def _has_outputs(session: CloudSession, name: str, group: str, *, close: bool) -> bool | None:
    """Return whether a deletion would lose outputs; None if that is unknown.

    No local record of runs proves that a disk has none: only the machine knows the runs of all workspaces. While it is
    off, its disk's tag has its last answer. With `close`, no job starts between the answer and the deletion.
    """
    answer, known = ask_machine(session, name, group, None, close=close), _known_runs(session.settings)
    place, simulated = session.machine_id(name, group), session.cloud.simulated
    if answer.contact is Contact.OFF and _is_fetched(session, name, group):
        answer = replace(answer, contact=Contact.ANSWERED)
    decision = decide(Effect.DELETE_DISK, name, known, answer, simulated=simulated, resource_id=str(place))
    if decision.runs or decision.consent is not Consent.DELETE:
        return bool(decision.runs)
    return None


def _is_fetched(session: CloudSession, name: str, group: str) -> bool:
    try:
        disk, machine = (session.cloud.look(ref_of(kind, group, name)) for kind in (Kind.DISK, Kind.VM))
    except CloudError as error:
        if error.fault is Fault.INTERRUPTED:
            raise
        return False
    return disk is not None and machine is not None and is_fetched(disk, machine)


def _state(settings: Settings) -> Path | None:
    """Return the state folder, or None. Cron and CI jobs may have none."""
    return settings.state if settings.workspace.is_dir() and settings.state.is_dir() else None


def _remember(settings: Settings, session: CloudSession, reaped: ReapResult, frontend: Frontend) -> None:
    """Record the result in the ledger, for `gpuinfra cost`, and close runs on deleted disks in the history."""
    if reaped.dry_run:
        return
    for found in (reaped.stopped, reaped.deleted):
        receipts = all_accounted([ended.receipt for ended in found if ended.receipt], session)
        for receipt in receipts:
            share_end(receipt, session, frontend)
        if _state(settings):
            receipts = [note_end(settings, each, session.cloud.subscription, frontend) for each in receipts]
        left = iter(receipts)
        found[:] = [replace(ended, receipt=next(left)) if ended.receipt else ended for ended in found]
    if _state(settings) is None:
        return
    for ended in reaped.deleted:
        place = session.machine_id(ended.verdict.name, ended.verdict.ref.group)
        forget_machine(settings, place, frontend, simulated=session.cloud.simulated)
    for verdict in reaped.started:
        _remember_start(settings, session, verdict.ref, frontend)


def _remember_start(settings: Settings, session: CloudSession, ref: Ref, frontend: Frontend) -> None:
    cloud = session.cloud
    try:
        machine = cloud.look(ref)
        price = session.market.price(machine.size, machine.region, spot=machine.is_spot) if machine else None
    except CloudError:
        return  # Azure's log has it, too
    if machine:
        entry = power_on_entry(
            machine, Price(price), at=None, subscription=cloud.subscription, simulated=cloud.simulated
        )
        if entry:
            note(settings, entry, frontend)
