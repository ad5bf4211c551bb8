"""`gpuinfra schedule`: run `gpuinfra reap` regularly, with a scheduler."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuinfra.app.schedule_order import Words
from gpuinfra.cli.main import Group
from gpuinfra.cli.options import open_frontend, start_command

schedule = typer.Typer(cls=Group, invoke_without_command=True, add_completion=False)

SCHEDULERS = "cron, systemd, github-actions or azure-pipelines"

With = Annotated[
    str, typer.Option("--with", metavar="SCHEDULER", help=f"The scheduler: {SCHEDULERS}.", show_default=False)
]
Specs = Annotated[
    Path | None,
    typer.Option("--specs", metavar="DIR", help="Folder of specs for reap.", show_default=False),
]
Every = Annotated[str, typer.Option("--every", metavar="TIME", help="How often, such as 15m, 1h or 1d.")]
Start = Annotated[bool, typer.Option("--start", help="Also start machines when their hours begin.")]
Delete = Annotated[bool, typer.Option("--delete", help="Delete machines whose specs were removed, with their disks.")]
Grace = Annotated[
    str | None,
    typer.Option(
        "--grace",
        metavar="TIME",
        help="Time between the removal of a spec and the stop of its machine.",
        show_default=False,
    ),
]
EnvironmentFile = Annotated[
    Path | None,
    typer.Option(
        "--environment-file",
        metavar="FILE",
        help="File of variables (NAME=value) for cron and systemd.",
        show_default=False,
    ),
]
Package = Annotated[
    str | None,
    typer.Option(
        "--package", metavar="REQUIREMENT", help="Requirement that pip installs on CI runners.", show_default=False
    ),
]
Branch = Annotated[
    str | None, typer.Option("--branch", help="Branch for Azure Pipelines. Default: main.", show_default=False)
]
Connection = Annotated[
    str | None,
    typer.Option(
        "--connection",
        metavar="NAME",
        help="Service connection of Azure Pipelines. Default: gpuinfra.",
        show_default=False,
    ),
]
PlanConnection = Annotated[
    str | None,
    typer.Option(
        "--plan-connection",
        metavar="NAME",
        help="Service connection for pull requests, which only reads. Default: gpuinfra-plan.",
        show_default=False,
    ),
]


@schedule.callback()
def front(context: typer.Context) -> None:
    """Run `gpuinfra reap` regularly with cron, systemd, GitHub Actions or Azure Pipelines."""
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
    plan_connection: PlanConnection = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="PATH", help="File to write; for systemd a folder.", show_default=False),
    ] = None,
) -> None:
    """Print a scheduler's files, without installing them."""
    from gpuinfra.app.schedule import is_untouched_file, render_schedule
    from gpuinfra.app.workspace import write_file
    from gpuinfra.views import schedule as view

    settings = start_command(context, reaches_cloud=False)
    words = Words(every, specs, start, delete, grace, environment_file, package, branch, connection, plan_connection)
    kind, files = render_schedule(scheduler, words, settings)
    if output is None:
        view.show(kind, files, json=settings.json)
        return
    paths = [output] if len(files) == 1 else [output / file.name for file in files]
    for path, file in zip(paths, files, strict=True):
        write_file(path, file.text, settings, open_frontend(settings), ours=is_untouched_file(path))
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
    plan_connection: PlanConnection = None,
) -> None:
    """Install the schedule. Files that you changed are overwritten only after a question, or with --yes."""
    from gpuinfra.app.schedule import install_schedule, render_schedule
    from gpuinfra.views import schedule as view

    settings = start_command(context, reaches_cloud=False)
    words = Words(every, specs, start, delete, grace, environment_file, package, branch, connection, plan_connection)
    kind, files = render_schedule(scheduler, words, settings)
    view.show_outcome(install_schedule(kind, files, settings, open_frontend(settings)), json=settings.json)


@schedule.command()
def uninstall(context: typer.Context, scheduler: With) -> None:
    """Remove the schedule, and nothing else."""
    from gpuinfra.app.schedule import uninstall_schedule
    from gpuinfra.views import schedule as view

    settings = start_command(context, reaches_cloud=False)
    view.show_outcome(uninstall_schedule(scheduler, settings, open_frontend(settings)), json=settings.json)
