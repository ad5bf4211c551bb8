"""`gpuinfra sandbox`: control the embedded Azure."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import typer

from gpuinfra.app.sandbox import Sandbox, fault_names
from gpuinfra.cli.main import Group
from gpuinfra.cli.options import start_command
from gpuinfra.diagnostics import Code, Exit, problem

sandbox = typer.Typer(cls=Group, invoke_without_command=True, add_completion=False)


@sandbox.callback()
def front(context: typer.Context) -> None:
    """Control the embedded Azure: a simulated Azure on this computer, without an account or a bill."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@sandbox.command()
def start(
    context: typer.Context,
    profile: Annotated[
        Literal["instant", "realistic"] | None,
        typer.Option(
            "--profile",
            help="Duration of operations: instant, or as long as in Azure. Default: the last choice.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Start the server in the background, unless it is running."""
    from gpuinfra.views import sandbox as view

    settings, server = start_command(context, reaches_cloud=False), Sandbox()
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
    """Stop the server. Its content stays; its clock stops until the next start."""
    from gpuinfra.views import sandbox as view

    settings, server = start_command(context, reaches_cloud=False), Sandbox()
    with server.problems():
        stopped = server.stop()
    view.show_stopped(stopped, json=settings.json)


@sandbox.command()
def status(context: typer.Context) -> None:
    """Show whether the server is running, its address, and a summary of its content."""
    from gpuinfra.views import sandbox as view

    settings, server = start_command(context, reaches_cloud=False), Sandbox()
    with server.problems():
        description = server.status()
        state = server.client().get("status") if description else {}
    facts = {**description.as_json(), **state} if description else {}
    view.show_status({"running": bool(description), "folder": str(server.folder), **facts}, json=settings.json)


@sandbox.command()
def reset(context: typer.Context) -> None:
    """Delete all machines, groups, bills, faults and logs. Ids, secrets, certificates and clock stay."""
    from gpuinfra.views import sandbox as view

    settings, server = start_command(context, reaches_cloud=False), Sandbox()
    with server.problems():
        server.reset()
    view.show_reset(json=settings.json)


@sandbox.command()
def env(context: typer.Context) -> None:
    """Print variables that point other clients to the sandbox: eval "$(gpuinfra sandbox env)". Contains a secret."""
    from gpuinfra.views import sandbox as view

    settings, server = start_command(context, reaches_cloud=False), Sandbox()
    view.show_environment(server.environment(), json=settings.json)


def _complete_fault(incomplete: str) -> list[str]:
    return [name for name in fault_names() if name.lower().startswith(incomplete.lower())]


@sandbox.command()
def fault(  # noqa: PLR0913, PLR0917 each is an option
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Name of the fault.", show_default=False, autocompletion=_complete_fault),
    ] = None,
    method: Annotated[str | None, typer.Option(help="Only for this HTTP method.", show_default=False)] = None,
    type_: Annotated[
        str | None,
        typer.Option("--type", help="Only for this resource type, in full or its last part.", show_default=False),
    ] = None,
    resource: Annotated[
        str | None, typer.Option(help="Only for the resource with this name.", show_default=False)
    ] = None,
    region: Annotated[str | None, typer.Option(help="Only in this region.", show_default=False)] = None,
    skip: Annotated[
        int | None, typer.Option(metavar="N", help="Let the first N matching requests pass.", show_default=False)
    ] = None,
    count: Annotated[
        int | None, typer.Option(help="How many times; 0 for always. Default: once.", show_default=False)
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="Delay of the fault `slow`.", show_default=False)] = None,
    retry_after: Annotated[
        int | None, typer.Option(help="Seconds in the Retry-After header.", show_default=False)
    ] = None,
    message: Annotated[str | None, typer.Option(help="Error message, instead of Azure's.", show_default=False)] = None,
    operation: Annotated[
        bool, typer.Option("--operation", help="Accept the request, and let its operation fail.")
    ] = False,
    list_: Annotated[bool, typer.Option("--list", help="Show armed faults.")] = False,
    clear: Annotated[bool, typer.Option("--clear", help="Remove all faults.")] = False,
) -> None:
    """Arm a fault for matching requests. Without a name, show armed faults."""
    from gpuinfra.views import sandbox as view

    settings, server = start_command(context, reaches_cloud=False), Sandbox()
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
        typer.Option(metavar="N", help="Sandbox seconds per real second.", show_default=False),
    ] = None,
    advance: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="Move the clock forward, such as 30s, 90m, 1h30m, 5h or 45d.", show_default=False
        ),
    ] = None,
) -> None:
    """Show the sandbox's clock, set its speed, or move it forward. Operations, leases, tokens and bills follow it."""
    from gpuinfra.views import sandbox as view

    settings, server = start_command(context, reaches_cloud=False), Sandbox()
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
    limit: Annotated[int | None, typer.Option(help="Limit in vCPUs.", show_default=False)] = None,
) -> None:
    """Show or set quota limits, to test a subscription without GPU quota."""
    from gpuinfra.views import sandbox as view

    settings, server = start_command(context, reaches_cloud=False), Sandbox()
    given = {"region": region, "family": family, "limit": limit}
    missing = [f"--{name}" for name, value in given.items() if value is None]
    if 0 < len(missing) < len(given):
        raise problem(Code.USAGE, "wrong usage", f"a limit also needs {' and '.join(missing)}", exit_code=Exit.USAGE)
    with server.problems():
        client = server.client()
        state = client.get("quota") if missing else client.post("quota", given)
    view.show_limits(state["limits"], json=settings.json)


@sandbox.command()
def bill(context: typer.Context) -> None:
    """Show what every machine cost, from its power states."""
    from gpuinfra.views import sandbox as view

    settings, server = start_command(context, reaches_cloud=False), Sandbox()
    with server.problems():
        machines = server.client().get("bill")["machines"]
    view.show_bill(machines, json=settings.json)


@sandbox.command()
def log(
    context: typer.Context,
    after: Annotated[
        int, typer.Option(metavar="NUMBER", min=0, help="Only entries after this number.", show_default=False)
    ] = 0,
    operations: Annotated[
        bool, typer.Option("--operations", help="Show long-running operations instead of requests.")
    ] = False,
) -> None:
    """Show all requests to the simulated API, or all long-running operations."""
    from gpuinfra.views import sandbox as view

    settings, server = start_command(context, reaches_cloud=False), Sandbox()
    with server.problems():
        if operations:
            found = server.client().get(f"operations?after={after}")["operations"]
            view.show_operations(found, json=settings.json)
        else:
            view.show_log(server.client().get(f"log?after={after}")["requests"], json=settings.json)


def _check_fault(name: str | None, fields: dict[str, Any], *, alone: bool) -> None:
    from gpuinfra.diagnostics import did_you_mean

    if (alone and name) or (fields and not name):
        raise problem(
            Code.USAGE,
            "wrong usage",
            "`--list` and `--clear` take no NAME; all other options need one",
            "see `gpuinfra sandbox fault --help`",
            exit_code=Exit.USAGE,
        )
    if name and name not in fault_names():
        raise problem(
            Code.UNKNOWN_FAULT,
            "unknown fault",
            f"`{name}` is not a fault",
            did_you_mean(name, fault_names()) or f"known faults: {', '.join(fault_names())}",
            exit_code=Exit.USAGE,
        )


def _seconds(text: str) -> int:
    # Unlike a spec's duration, this has seconds and no limit of thirty days.
    parts = re.fullmatch(r"(?:(\d{1,6})d)?(?:(\d{1,6})h)?(?:(\d{1,8})m)?(?:(\d{1,10})s)?", text, re.ASCII)
    if not text or not parts:
        raise problem(
            Code.BAD_DURATION,
            "invalid duration",
            f"`--advance {text}`: expected days, hours, minutes and seconds, in that order",
            "for example `30s`, `90m`, `1h30m`, `5h` or `45d`",
            exit_code=Exit.USAGE,
        )
    return sum(int(part or 0) * unit for part, unit in zip(parts.groups(), (86_400, 3600, 60, 1), strict=True))
