"""`gpuinfra reap`: ends what should have ended, wherever it was forgotten."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuinfra.app.settings import Settings
from gpuinfra.cli.options import begin, frontend
from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem

if TYPE_CHECKING:
    from gpuinfra.app.frontend import Frontend
    from gpuinfra.app.machines import CloudSession
    from gpuinfra.load.spec import Located
    from gpuinfra.models.reap import Reaped
    from gpuinfra.models.resource import Ref
    from gpuinfra.models.run import Run
    from gpuinfra.provision.journal import Journal
    from gpuinfra.provision.lifecycle.reap import Rules
    from gpuinfra.provision.reaping.reaper import Reaper
    from gpuinfra.provision.reaping.spec_history import SpecHistory

SECONDS = 1800.0
"""For all of it. Whoever runs it every quarter of an hour has the next one begin where this one ended."""


def reap(
    context: typer.Context,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")] = False,
    specs: Annotated[
        str | None,
        typer.Option("--specs", metavar="DIR", help="A folder of specs in git: what they say, and which are gone."),
    ] = None,
    start: Annotated[
        bool, typer.Option("--start", help="Start machines whose hours have begun; needs --specs.")
    ] = False,
    delete: Annotated[
        bool,
        typer.Option("--delete", help="Remove machines whose specs are gone, and disks without a machine, for good."),
    ] = False,
    grace: Annotated[
        str, typer.Option("--grace", metavar="DURATION", help="How long after its spec a machine stays.")
    ] = "24h",
) -> int:
    """Stop every machine of gpuinfra's that should be off, remove what has lost its machine, and prove it."""
    from gpuinfra.app.durations import grace_of
    from gpuinfra.app.machines import explained, reach
    from gpuinfra.provision.lifecycle.reap import Rules
    from gpuinfra.provision.reaping.spec_history import SpecHistory, spec_history
    from gpuinfra.views import reap as view

    settings = begin(context)
    length = timedelta(seconds=grace_of(grace))
    _check_start(specs, starts=start)
    folder, missing = _folder(specs)
    located = _specs(folder) if folder else []
    with frontend(settings) as progress, explained("listing machines"):
        reached = reach(settings, _subscription(located), SECONDS, progress, writes=not dry_run)
        wished = Rules(grace=length, starts=start and not missing, deletes=delete and not missing)
        history = spec_history(folder, reached.cloud.now()) if folder else SpecHistory()
        rules, notes = _rules(settings, history, located, wished)
        reaper = _reaper(reached, rules, progress, dry_run=dry_run)
        try:
            reaped = reaper.reap()
        except KeyboardInterrupt:
            with progress.paused():
                view.show_interrupted(reaper.under_way, reaper.not_begun)
            raise
        _remember(settings, reached, reaped, progress)
    reaped.notes += [*notes, *([missing] if missing else [])]
    view.show(reaped, json=settings.json)
    if reaped.failed or any(each.is_billed for each in reaped.untagged):
        return Exit.LEFT_BEHIND
    return Exit.USAGE if missing or history.is_shallow else Exit.DONE


def _check_start(specs: str | None, *, starts: bool) -> None:
    if starts and specs is None:
        raise Problem(
            Diagnostic(
                Code.USAGE,
                "`--start` needs specs",
                note="which machines have hours, and which of them are holidays, is in the specs",
                help="`gpuinfra reap --start --specs DIR`",
            ),
            exit_code=Exit.USAGE,
        )


def _folder(specs: str | None) -> tuple[Path | None, str | None]:
    """The folder of specs, or what is wrong with it.

    One that is misspelt must not look like one from which every spec is gone; and one that was moved must not keep the
    machines on whose leases are over: the reaper may be the last who stops them.
    """
    if specs is None or Path(specs).is_dir():
        return (Path(specs) if specs else None), None
    return None, f"`{specs}` is not a directory: no machine was held against its spec, and nothing else was removed"


def _specs(folder: Path) -> list[Located]:
    """Those that can be read. One that has problems must not keep a machine on."""
    from gpuinfra.load.files import load_paths
    from gpuinfra.views import reap as view

    loaded = load_paths([str(folder)])
    problems = [each for each in loaded.diagnostics if each.code is not Code.NO_SPEC_FOUND]
    if problems:
        view.show_bad_specs(len(problems), str(folder))
    return loaded.specs


def _subscription(specs: list[Located]) -> str | None:
    """The one that all specs agree on, if they name any."""
    named = {located.spec.subscription for located in specs if located.spec.subscription}
    return named.pop() if len(named) == 1 else None


def _rules(settings: Settings, history: SpecHistory, located: list[Located], wished: Rules) -> tuple[Rules, list[str]]:
    """All that is to be known before anything is looked at; and what could not be known."""
    from gpuinfra.provision.names import machine_key

    notes = [history.note] if history.note else []
    specs = {machine_key(each.spec.group_name, each.spec.name): each.spec for each in located}
    rules = replace(wished, specs=specs, repository=history.repository, deleted=history.deleted)
    if wished.deletes and _state(settings) is None and not settings.yes:
        note = (
            f"nothing is deleted: `{settings.workspace}` knows of no runs, so their outputs may not be fetched; "
            "`--workspace` names the one that knows, `--yes` deletes all the same"
        )
        return replace(rules, deletes=False), [*notes, note]
    try:
        if not settings.yes:
            _known_runs(settings)
    except Problem as problem:
        # Nobody knows what a disk holds: then none goes, and what is billed is stopped all the same.
        note = f"nothing is deleted: {problem.diagnostics[0].summary}: {problem.diagnostics[0].note}"
        return replace(rules, deletes=False), [*notes, *([note] if wished.deletes else [])]
    return rules, notes


def _known_runs(settings: Settings) -> list[Run]:
    from gpuinfra.runner.results.history import History

    folder = _state(settings)
    return History(folder).list() if folder else []


def _reaper(reached: CloudSession, rules: Rules, progress: Frontend, *, dry_run: bool) -> Reaper:
    from gpuinfra.provision.azure.fleet import AzureFleet
    from gpuinfra.provision.journal import Journal
    from gpuinfra.provision.reaping.reaper import Reaper

    folder = _state(reached.settings)

    def journal(name: str) -> Journal:
        return Journal(None if dry_run else folder, name, reached.settings.correlation_id, reached.cloud.now)

    return Reaper(
        cloud=reached.cloud,
        fleet=AzureFleet(reached.cloud.clients),
        market=reached.market,
        rules=rules,
        progress=progress,
        journal=journal,
        deadline=reached.cloud.clients.patience.deadline,
        dry_run=dry_run,
        has_outputs=None if reached.settings.yes else lambda name, group: _has_outputs(reached, name, group),
    )


def _has_outputs(reached: CloudSession, name: str, group: str) -> bool | None:
    """Whether deleting a machine's disk needs the same consent as `down --delete`; None if only it could tell."""
    from gpuinfra.app.remote_runs import ask_machine
    from gpuinfra.models.consent import Consent, Effect, decide

    answer, known = ask_machine(reached, name, group, None), _known_runs(reached.settings)
    decision = decide(Effect.DELETE_DISK, name, known, answer, simulated=reached.cloud.simulated)
    if decision.runs or decision.consent is not Consent.DELETE:
        return bool(decision.runs)
    return None


def _state(settings: Settings) -> Path | None:
    """Where this is workspace: in a workspace that is one already. Cron and CI have none, and need none."""
    from gpuinfra.workspace import STATE

    folder = settings.workspace / STATE
    return folder if folder.is_dir() else None


def _remember(settings: Settings, reached: CloudSession, reaped: Reaped, progress: Frontend) -> None:
    """In the workspace's ledger, for `gpuinfra cost`; and in its history, which waits for no job on what is gone."""
    from gpuinfra.app.down import forget_jobs
    from gpuinfra.app.ledger_recording import all_accounted, note_end

    if reaped.dry_run:
        return
    for found in (reaped.stopped, reaped.deleted):
        receipts = all_accounted([ended.receipt for ended in found if ended.receipt], reached)
        if _state(settings):
            receipts = [note_end(settings, each, reached.cloud.subscription, progress) for each in receipts]
        left = iter(receipts)
        found[:] = [replace(ended, receipt=next(left)) if ended.receipt else ended for ended in found]
    if _state(settings) is None:
        return
    for ended in reaped.deleted:
        forget_jobs(settings, ended.verdict.name, simulated=reached.cloud.simulated)
    for verdict in reaped.started:
        _remember_start(settings, reached, verdict.ref, progress)


def _remember_start(settings: Settings, reached: CloudSession, ref: Ref, progress: Frontend) -> None:
    from gpuinfra.app.ledger_recording import note
    from gpuinfra.models.plan import Price
    from gpuinfra.provision.costing.beginning import beginning, is_spot
    from gpuinfra.provision.errors import CloudError

    cloud = reached.cloud
    try:
        machine = cloud.look(ref)
        size = str((machine.properties.get("hardwareProfile") or {}).get("vmSize") or "") if machine else ""
        price = reached.market.price(size, machine.region, spot=is_spot(machine)) if machine else None
    except CloudError:
        return  # Azure's own log has it too
    if machine:
        entry = beginning(machine, Price(price), at=None, subscription=cloud.subscription, simulated=cloud.simulated)
        if entry:
            note(settings, entry, progress)
