"""`gpuinfra lease`: until when a machine may be on; more of it, or none."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from gpuinfra.app.settings import Settings
from gpuinfra.cli.options import begin, frontend
from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem

if TYPE_CHECKING:
    from gpuinfra.app.machines import CloudSession
    from gpuinfra.models.hours import Hours
    from gpuinfra.models.lease import LeaseState
    from gpuinfra.models.spec import Spec
    from gpuinfra.provision.cloud import ObservedResource
    from gpuinfra.provision.lifecycle.renew import Renewed

SECONDS = 300.0


def lease(
    context: typer.Context,
    machine: Annotated[str, typer.Argument(metavar="MACHINE", help="A machine, by its name, its target or its spec.")],
    extend: Annotated[
        str | None,
        typer.Option("--extend", metavar="TIME", help="Let it end so much later, as 2h.", show_default=False),
    ] = None,
    release: Annotated[
        bool, typer.Option("--release", help="Let it end now; where the spec has hours, with them.")
    ] = False,
) -> int:
    """Show until when a machine may be on, why then, and what it costs until then; or change it."""
    from gpuinfra.app.machine_names import located
    from gpuinfra.app.machines import Named, explained, reach
    from gpuinfra.provision.lifecycle.renew import find_machine
    from gpuinfra.views import lease as view

    settings = begin(context)
    length = _length(extend, release=release)
    spec = _meant(settings, machine)
    writes = release or length is not None
    with frontend(settings) as progress, explained(f"looking at {spec.name if spec else machine}"):
        reached = reach(settings, spec.subscription if spec else None, SECONDS, progress, writes=writes)
        named = Named(spec.name, spec.group_name) if spec else located(settings, reached.cloud, machine)
        found = find_machine(reached.cloud, named.name, named.group)
        hours = _hours(found, spec)
        renewed = _renew(reached, found, hours, length, release=release) if writes else None
        if renewed:
            found = reached.cloud.look(found.ref) or found
        state = _state(reached, found, hours, renewed)
    view.show(state, json=settings.json)
    in_vain = renewed is not None and renewed.capped and not renewed.changed
    return Exit.FAILED if in_vain else Exit.DONE


def _length(extend: str | None, *, release: bool) -> timedelta | None:
    from gpuinfra.app.durations import seconds_of

    if extend is None:
        return None
    if release:
        raise Problem(
            Diagnostic(
                Code.USAGE,
                "wrong usage",
                note="`--extend` gives more time, and `--release` takes it all",
                help="leave one of them out",
            ),
            exit_code=Exit.USAGE,
        )
    return timedelta(seconds=seconds_of("--extend", extend))


def _meant(settings: Settings, word: str) -> Spec | None:
    """The spec of the machine, where there is one."""
    from gpuinfra.app.machines import is_path, one_spec, spec_named

    return one_spec(settings, word) if is_path(word) else spec_named(settings.workspace, word)


def _hours(machine: ObservedResource, spec: Spec | None) -> Hours | None:
    """The spec knows of holidays, but one that was changed since does not count yet."""
    from gpuinfra.provision import tags
    from gpuinfra.provision.lifecycle.hours import from_tag

    if spec and tags.get(machine.tags, tags.DIGEST) == spec.digest():
        return spec.lifecycle.hours
    return from_tag(tags.get(machine.tags, tags.HOURS))


def _renew(
    reached: CloudSession, machine: ObservedResource, hours: Hours | None, length: timedelta | None, *, release: bool
) -> Renewed:
    from gpuinfra.provision import tags
    from gpuinfra.provision.lifecycle.renew import renew

    name = tags.get(machine.tags, tags.NAME)
    deadline = reached.cloud.clients.patience.deadline
    group = machine.ref.group
    return renew(reached.cloud, name, group, extend=length, release=release, hours=hours, deadline=deadline)


def _state(
    reached: CloudSession, machine: ObservedResource, hours: Hours | None, renewed: Renewed | None
) -> LeaseState:
    from gpuinfra.app.accounts import Accounts
    from gpuinfra.provision import fleet
    from gpuinfra.provision.lifecycle.standing import standing

    prices, now = reached.market.prices(fleet.sizes([machine.body])), reached.cloud.now()
    past = Accounts(reached).histories([machine.body], now, prices)[str(machine.body["id"]).casefold()]
    return standing(machine, hours, now, prices, renewed, past=past, simulated=reached.cloud.simulated)
