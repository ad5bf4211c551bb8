"""`gpuinfra sandbox`: the embedded Azure, on this machine and for no money."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import typer

from gpuinfra.app.sandbox import Sandbox, fault_names
from gpuinfra.cli.group import Group
from gpuinfra.cli.options import begin
from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem

sandbox = typer.Typer(cls=Group, invoke_without_command=True, add_completion=False)


@sandbox.callback()
def front(context: typer.Context) -> None:
    """The embedded Azure: try, test and rehearse everything with no account and no bill."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@sandbox.command()
def start(
    context: typer.Context,
    profile: Annotated[
        Literal["instant", "realistic"] | None,
        typer.Option(
            "--profile",
            help="How long operations take: no time, or as long as in Azure. The last choice if left out.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Start the server, unless it runs; it goes on after this command."""
    from gpuinfra.views import sandbox as view

    settings, server = begin(context, reaches_cloud=False), Sandbox()
    with server.problems():
        running = server.status()
        description = running or server.start()
        client = server.client()
        if profile:
            client.post("profile", {"profile": profile})
        state = client.get("status")
    view.show_started({**description.as_json(), **state, "started": running is None}, json=settings.json)


@sandbox.command()
def stop(context: typer.Context) -> None:
    """Stop the server. Everything in it is there again at the next start; its clock stands still until then."""
    from gpuinfra.views import sandbox as view

    settings, server = begin(context, reaches_cloud=False), Sandbox()
    with server.problems():
        stopped = server.stop()
    view.show_stopped(stopped, json=settings.json)


@sandbox.command()
def status(context: typer.Context) -> None:
    """Show whether the server runs, where, and what is in it."""
    from gpuinfra.views import sandbox as view

    settings, server = begin(context, reaches_cloud=False), Sandbox()
    with server.problems():
        description = server.status()
        state = server.client().get("status") if description else {}
    facts = {**description.as_json(), **state} if description else {}
    view.show_status({"running": bool(description), "folder": str(server.folder), **facts}, json=settings.json)


@sandbox.command()
def reset(context: typer.Context) -> None:
    """Forget all machines, groups, bills, faults and logs. Ids, secrets, certificates and clock stay."""
    from gpuinfra.views import sandbox as view

    settings, server = begin(context, reaches_cloud=False), Sandbox()
    with server.problems():
        server.reset()
    view.show_reset(json=settings.json)


@sandbox.command()
def env(context: typer.Context) -> None:
    """Print what points other clients at the sandbox: eval "$(gpuinfra sandbox env)". There is a secret in it."""
    from gpuinfra.views import sandbox as view

    settings, server = begin(context, reaches_cloud=False), Sandbox()
    view.show_environment(server.environment(), json=settings.json)


def _complete_fault(incomplete: str) -> list[str]:
    return [name for name in fault_names() if name.lower().startswith(incomplete.lower())]


@sandbox.command()
def fault(  # noqa: PLR0913, PLR0917 each is an option
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="What goes wrong.", show_default=False, autocompletion=_complete_fault),
    ] = None,
    method: Annotated[str | None, typer.Option(help="Only for this HTTP method.", show_default=False)] = None,
    type_: Annotated[
        str | None, typer.Option("--type", help="Only for this type: full, or its last part.", show_default=False)
    ] = None,
    resource: Annotated[str | None, typer.Option(help="Only for a resource of this name.", show_default=False)] = None,
    region: Annotated[str | None, typer.Option(help="Only in this region.", show_default=False)] = None,
    skip: Annotated[
        int | None, typer.Option(metavar="N", help="Let the first N that fit through.", show_default=False)
    ] = None,
    count: Annotated[
        int | None, typer.Option(help="How many times; 0 is for ever. Once if left out.", show_default=False)
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="How much slower `slow` makes it.", show_default=False)] = None,
    retry_after: Annotated[
        int | None, typer.Option(help="The seconds of Retry-After in the answer.", show_default=False)
    ] = None,
    message: Annotated[
        str | None, typer.Option(help="The error's text, instead of Azure's.", show_default=False)
    ] = None,
    operation: Annotated[
        bool, typer.Option("--operation", help="The operation fails after it was accepted, not the request.")
    ] = False,
    list_: Annotated[bool, typer.Option("--list", help="Show the faults that are armed.")] = False,
    clear: Annotated[bool, typer.Option("--clear", help="Disarm them all.")] = False,
) -> None:
    """Arm a fault: what goes wrong, for which requests, how often. Without a name, show what is armed."""
    from gpuinfra.views import sandbox as view

    settings, server = begin(context, reaches_cloud=False), Sandbox()
    given = {
        "method": method,
        "type": type_,
        "resource": resource,
        "region": region,
        "skip": skip,
        "count": count,
        "seconds": seconds,
        "retryAfter": retry_after,
        "message": message,
        "operation": operation or None,
    }
    fields = {field: value for field, value in given.items() if value is not None}
    _check_fault(name, fields, alone=list_ or clear)
    with server.problems():
        client = server.client()
        if clear:
            client.delete("faults")
        if name:
            view.show_fault(client.post("faults", {"name": name, **fields}), json=settings.json)
        else:
            view.show_faults(client.get("faults")["faults"], json=settings.json)


@sandbox.command()
def clock(
    context: typer.Context,
    speed: Annotated[
        float | None,
        typer.Option(metavar="N", help="So many seconds pass there in one second here.", show_default=False),
    ] = None,
    advance: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Step forward, such as 30s, 90m, 1h30m, 5h or 45d.", show_default=False),
    ] = None,
) -> None:
    """Show the sandbox's time, set its pace, or step it forward. Operations, leases, tokens and bills follow it."""
    from gpuinfra.views import sandbox as view

    settings, server = begin(context, reaches_cloud=False), Sandbox()
    payload: dict[str, float] = {} if speed is None else {"speed": speed}
    if advance is not None:
        payload["advance"] = _seconds(advance)
    with server.problems():
        client = server.client()
        state = client.post("clock", payload) if payload else client.get("clock")
    view.show_clock(state, json=settings.json)


@sandbox.command()
def quota(
    context: typer.Context,
    region: Annotated[str | None, typer.Option(help="A region, such as southcentralus.", show_default=False)] = None,
    family: Annotated[
        str | None,
        typer.Option(help='A quota, such as cores or "Standard NCASv3_T4 Family".', show_default=False),
    ] = None,
    limit: Annotated[int | None, typer.Option(help="How many vCPUs it allows.", show_default=False)] = None,
) -> None:
    """Show the quota limits that were set, or set one: what a subscription without GPU quota meets."""
    from gpuinfra.views import sandbox as view

    settings, server = begin(context, reaches_cloud=False), Sandbox()
    given = {"region": region, "family": family, "limit": limit}
    missing = [f"--{name}" for name, value in given.items() if value is None]
    if 0 < len(missing) < len(given):
        diagnostic = Diagnostic(Code.USAGE, "wrong usage", note=f"a limit also needs {' and '.join(missing)}")
        raise Problem(diagnostic, exit_code=Exit.USAGE)
    with server.problems():
        client = server.client()
        state = client.get("quota") if missing else client.post("quota", given)
    view.show_limits(state["limits"], json=settings.json)


@sandbox.command()
def bill(context: typer.Context) -> None:
    """Show what every machine has cost, by its power states."""
    from gpuinfra.views import sandbox as view

    settings, server = begin(context, reaches_cloud=False), Sandbox()
    with server.problems():
        machines = server.client().get("bill")["machines"]
    view.show_bill(machines, json=settings.json)


@sandbox.command()
def log(
    context: typer.Context,
    after: Annotated[
        int, typer.Option(metavar="NUMBER", min=0, help="Only what came after this one.", show_default=False)
    ] = 0,
    operations: Annotated[
        bool, typer.Option("--operations", help="Long-running operations instead, by the sandbox's time.")
    ] = False,
) -> None:
    """Show every request that Azure's API was sent, with its status, start and end; or every operation."""
    from gpuinfra.views import sandbox as view

    settings, server = begin(context, reaches_cloud=False), Sandbox()
    with server.problems():
        if operations:
            found = server.client().get(f"operations?after={after}")["operations"]
            view.show_operations(found, json=settings.json)
        else:
            view.show_log(server.client().get(f"log?after={after}")["requests"], json=settings.json)


def _check_fault(name: str | None, fields: dict[str, Any], *, alone: bool) -> None:
    from gpuinfra.suggest import did_you_mean

    if (alone and name) or (fields and not name):
        raise Problem(
            Diagnostic(
                Code.USAGE,
                "wrong usage",
                note="`--list` and `--clear` stand alone; every other option narrows the fault that NAME names",
                help="`gpuinfra sandbox fault --help` shows how",
            ),
            exit_code=Exit.USAGE,
        )
    if name and name not in fault_names():
        raise Problem(
            Diagnostic(
                Code.UNKNOWN_FAULT,
                "unknown fault",
                note=f"no fault is called `{name}`",
                help=did_you_mean(name, fault_names()) or f"there are: {', '.join(fault_names())}",
            ),
            exit_code=Exit.USAGE,
        )


def _seconds(text: str) -> int:
    # Not a spec's duration: that has no seconds and ends with thirty days.
    parts = re.fullmatch(r"(?:(\d{1,6})d)?(?:(\d{1,6})h)?(?:(\d{1,8})m)?(?:(\d{1,10})s)?", text, re.ASCII)
    if not text or not parts:
        raise Problem(
            Diagnostic(
                Code.BAD_DURATION,
                "invalid duration",
                note=f"`--advance {text}`: expected days, hours, minutes and seconds, in that order",
                help="for example `30s`, `90m`, `1h30m`, `5h` or `45d`",
            ),
            exit_code=Exit.USAGE,
        )
    return sum(int(part or 0) * unit for part, unit in zip(parts.groups(), (86_400, 3600, 60, 1), strict=True))
