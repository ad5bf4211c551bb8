"""`gpuinfra schedule`: let somebody else run `gpuinfra reap`, again and again."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuinfra.app.schedule_order import Words, read_order, read_scheduler, repository
from gpuinfra.app.settings import Settings
from gpuinfra.cli.group import Group
from gpuinfra.cli.options import begin
from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem

if TYPE_CHECKING:
    from gpuinfra.scheduling.rendering import Rendered, Scheduler
    from gpuinfra.views.schedule import Outcome

schedule = typer.Typer(cls=Group, invoke_without_command=True, add_completion=False)

SCHEDULERS = "cron, systemd, github-actions or azure-pipelines"

With = Annotated[
    str, typer.Option("--with", metavar="SCHEDULER", help=f"Who keeps time: {SCHEDULERS}.", show_default=False)
]
Specs = Annotated[
    Path | None,
    typer.Option("--specs", metavar="DIR", help="The specs that machines are compared with.", show_default=False),
]
Every = Annotated[str, typer.Option("--every", metavar="TIME", help="How often, such as 15m, 1h or 1d.")]
Start = Annotated[bool, typer.Option("--start", help="Also start machines when their hours begin.")]
Delete = Annotated[bool, typer.Option("--delete", help="Delete what has no spec any more, with its disks.")]
Grace = Annotated[
    str | None,
    typer.Option("--grace", metavar="TIME", help="How long after its spec a machine may stay.", show_default=False),
]
EnvironmentFile = Annotated[
    Path | None,
    typer.Option(
        "--environment-file", metavar="FILE", help="Variables for cron and systemd, NAME=value.", show_default=False
    ),
]
Package = Annotated[
    str | None,
    typer.Option("--package", metavar="REQUIREMENT", help="What pip installs on runners.", show_default=False),
]
Branch = Annotated[
    str | None, typer.Option("--branch", help="The branch that Azure Pipelines runs; main.", show_default=False)
]
Connection = Annotated[
    str | None,
    typer.Option("--connection", metavar="NAME", help="The service connection; gpuinfra.", show_default=False),
]


@schedule.callback()
def front(context: typer.Context) -> None:
    """Have `gpuinfra reap` run by cron, systemd, GitHub Actions or Azure Pipelines: the last of four layers."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@schedule.command()
def render(  # noqa: PLR0913, PLR0917 each is an option
    context: typer.Context,
    scheduler: With,
    specs: Specs = None,
    every: Every = "15m",
    start: Start = False,
    delete: Delete = False,
    grace: Grace = None,
    environment_file: EnvironmentFile = None,
    package: Package = None,
    branch: Branch = None,
    connection: Connection = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", metavar="PATH", help="Write this file; of systemd, into this folder.", show_default=False
        ),
    ] = None,
) -> None:
    """Print what a scheduler would be given. Nothing is installed."""
    from gpuinfra.app.files import write_file
    from gpuinfra.views import schedule as view

    settings = begin(context, reaches_cloud=False)
    words = Words(every, specs, start, delete, grace, environment_file, package, branch, connection)
    kind, files = _rendered(scheduler, words, settings)
    if output is None:
        view.show(kind, files, json=settings.json)
        return
    paths = [output] if len(files) == 1 else [output / file.name for file in files]
    for path, file in zip(paths, files, strict=True):
        write_file(path, file.text, settings, ours=_is_untouched(path))
    view.show_written(kind, paths, json=settings.json)


@schedule.command()
def install(  # noqa: PLR0913, PLR0917 each is an option
    context: typer.Context,
    scheduler: With,
    specs: Specs = None,
    every: Every = "15m",
    start: Start = False,
    delete: Delete = False,
    grace: Grace = None,
    environment_file: EnvironmentFile = None,
    package: Package = None,
    branch: Branch = None,
    connection: Connection = None,
) -> None:
    """Give it to the scheduler. What somebody changed is overwritten only when a terminal says so, or with --yes."""
    from gpuinfra.scheduling.rendering import Scheduler
    from gpuinfra.views import schedule as view

    settings = begin(context, reaches_cloud=False)
    words = Words(every, specs, start, delete, grace, environment_file, package, branch, connection)
    kind, files = _rendered(scheduler, words, settings)
    match kind:
        case Scheduler.CRON:
            outcome = _into_crontab(files[0].text, settings)
        case Scheduler.SYSTEMD:
            outcome = _as_units(files, settings)
        case _:
            outcome = _into_repository(kind, files[0], settings)
    view.show_outcome(outcome, json=settings.json)


@schedule.command()
def uninstall(context: typer.Context, scheduler: With) -> None:
    """Take it back. Everything else of the scheduler's stays as it is."""
    from gpuinfra.scheduling.rendering import PIPELINE, WORKFLOW, Scheduler
    from gpuinfra.views import schedule as view

    settings = begin(context, reaches_cloud=False)
    match kind := read_scheduler(scheduler):
        case Scheduler.CRON:
            outcome = _out_of_crontab(settings)
        case Scheduler.SYSTEMD:
            outcome = _without_units(settings)
        case _:
            file = repository(settings) / (WORKFLOW if kind is Scheduler.GITHUB_ACTIONS else PIPELINE)
            outcome = view.Outcome(kind, removed=_removed([file], settings))
    view.show_outcome(outcome, json=settings.json)


def _rendered(word: str, words: Words, settings: Settings) -> tuple[Scheduler, tuple[Rendered, ...]]:
    from gpuinfra.scheduling.crontab import check_length
    from gpuinfra.scheduling.rendering import Scheduler, render

    kind = read_scheduler(word)
    files = render(kind, read_order(words, kind, settings))
    if kind is Scheduler.CRON:
        check_length(files[0].text)
    return kind, files


def _into_crontab(block: str, settings: Settings) -> Outcome:
    from gpuinfra.scheduling import crontab
    from gpuinfra.scheduling.mark import is_untouched
    from gpuinfra.scheduling.rendering import Scheduler
    from gpuinfra.views.schedule import CRONTAB, Outcome

    before = crontab.read()
    known = crontab.block_in(before)
    if known == block:
        return Outcome(Scheduler.CRON, unchanged=(CRONTAB,), active=crontab.is_read(), left=_cron_left())
    if known is not None and not is_untouched(known):
        _consent("gpuinfra's lines in your crontab", settings)
    crontab.write(crontab.with_block(before, block))
    return Outcome(Scheduler.CRON, written=(CRONTAB,), active=crontab.is_read(), left=_cron_left())


def _cron_left() -> tuple[str, ...]:
    from gpuinfra.scheduling import crontab

    return () if crontab.is_read() else ("start cron: it does not seem to run on this computer",)


def _out_of_crontab(settings: Settings) -> Outcome:
    from gpuinfra.scheduling import crontab
    from gpuinfra.scheduling.mark import is_untouched
    from gpuinfra.scheduling.rendering import Scheduler
    from gpuinfra.views.schedule import CRONTAB, Outcome

    before = crontab.read()
    known = crontab.block_in(before)
    if known is None:
        return Outcome(Scheduler.CRON)
    if not is_untouched(known):
        _consent("gpuinfra's lines in your crontab", settings)
    crontab.write(crontab.without_block(before))
    return Outcome(Scheduler.CRON, removed=(CRONTAB,))


def _as_units(files: tuple[Rendered, ...], settings: Settings) -> Outcome:
    from gpuinfra.scheduling import user_units
    from gpuinfra.scheduling.rendering import Scheduler
    from gpuinfra.views.schedule import Outcome

    folder = user_units.folder(os.environ, Path.home())
    written, unchanged = _put({folder / file.name: file.text for file in files}, settings)
    told = user_units.start()
    return Outcome(
        Scheduler.SYSTEMD,
        written=written,
        unchanged=unchanged,
        active=told.active,
        left=told.left,
        reason=told.reason,
    )


def _without_units(settings: Settings) -> Outcome:
    from gpuinfra.scheduling import user_units
    from gpuinfra.scheduling.rendering import SERVICE, TIMER, Scheduler
    from gpuinfra.views.schedule import Outcome

    folder = user_units.folder(os.environ, Path.home())
    present = [path for path in (folder / SERVICE, folder / TIMER) if path.exists()]
    if not present:
        return Outcome(Scheduler.SYSTEMD)
    _consent_to_touched(present, settings)
    told = user_units.stop()
    removed = _removed(present, settings, asked=True)
    user_units.forget(folder)
    return Outcome(Scheduler.SYSTEMD, removed=removed, left=told.left, reason=told.reason)


def _into_repository(kind: Scheduler, file: Rendered, settings: Settings) -> Outcome:
    from gpuinfra.scheduling.rendering import Scheduler
    from gpuinfra.views.schedule import Outcome

    written, unchanged = _put({repository(settings) / file.name: file.text}, settings)
    service = "on GitHub" if kind is Scheduler.GITHUB_ACTIONS else "in Azure DevOps"
    left = (f"set up what its first lines say, {service}", "commit it and push it to the default branch")
    return Outcome(kind, written=written, unchanged=unchanged, left=left)


def _put(texts: dict[Path, str], settings: Settings) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Which files were written, and which were so already. Whoever does not consent keeps all of them."""
    from gpuinfra.app.files import write_file

    new = [path for path, text in texts.items() if _read(path) != text]
    _consent_to_touched([path for path in new if path.exists()], settings)
    for path in new:
        write_file(path, texts[path], settings, ours=True)
    return tuple(map(str, new)), tuple(str(path) for path in texts if path not in new)


def _removed(paths: list[Path], settings: Settings, *, asked: bool = False) -> tuple[str, ...]:
    present = [path for path in paths if path.exists()]
    if not asked:
        _consent_to_touched(present, settings)
    for path in present:
        try:
            path.unlink()
        except OSError as error:
            note = f"`{path}`: {error.strerror}"
            raise Problem(Diagnostic(Code.FILE_UNWRITABLE, "file cannot be removed", note=note)) from None
    return tuple(map(str, present))


def _consent_to_touched(paths: list[Path], settings: Settings) -> None:
    for path in paths:
        if not _is_untouched(path):
            _consent(f"`{path}`", settings)


def _consent(what: str, settings: Settings) -> None:
    """Only for what is not as this program left it."""
    if settings.yes:
        return
    is_asked = sys.stdin.isatty() and not settings.json
    if is_asked and typer.confirm(f"Somebody has changed {what}, or made it. Go on?", err=True):
        return
    diagnostic = Diagnostic(
        Code.FILE_EXISTS,
        "changed by somebody",
        note=f"{what} is not as `gpuinfra schedule` wrote it, and was left as it is",
        help="keep the change elsewhere, then give `--yes`",
    )
    raise Problem(diagnostic, exit_code=Exit.USAGE)


def _is_untouched(path: Path) -> bool:
    from gpuinfra.scheduling.mark import is_untouched

    return is_untouched(_read(path) or "")


def _read(path: Path) -> str | None:
    try:
        return path.read_text("utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return None
    except OSError as error:
        note = f"`{path}`: {error.strerror}"
        raise Problem(Diagnostic(Code.FILE_UNREADABLE, "file cannot be read", note=note)) from None
