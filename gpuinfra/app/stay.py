"""Keep a machine on without a client: for a look at a failed job, or for a detached one. Say what ends it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from gpuinfra.app.access import CloudSession, cloud_errors, open_session
from gpuinfra.app.ledger_recording import record_lease
from gpuinfra.app.machine_costs import MachineCosts
from gpuinfra.diagnostics import Code, Problem, problem
from gpuinfra.models.receipt import Receipt
from gpuinfra.models.stay import Purpose, Reason, Stay
from gpuinfra.provision import fleet
from gpuinfra.provision.errors import CloudError
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.renew import find_machine, hold, stay_of

if TYPE_CHECKING:
    from gpuinfra.app.frontend import Frontend
    from gpuinfra.app.settings import Settings
    from gpuinfra.models.spec import Spec

SECONDS = 120.0


def hold_machine(
    settings: Settings,
    spec: Spec,
    run: str,
    *,
    seconds: float,
    places: Sequence[str],
    after_run: str,
    frontend: Frontend,
) -> Receipt | None:
    """Let a machine go off after this time, for a look at a failed run. Return the receipt, or None if it must go off.

    Its lease and Azure's schedule get the new end, so it goes off without this client.
    """
    session = open_session(settings, spec.subscription, SECONDS, frontend, writes=True)
    with cloud_errors(f"keeping {spec.name} on"):
        length, deadline = timedelta(seconds=seconds), session.cloud.deadline
        stay = hold(session.cloud, spec.name, spec.group_name, run, length, deadline)
        if stay is None:
            return None
        found = find_machine(session.cloud, spec.name, spec.group_name)
    record_lease(session, found, frontend)
    return _receipt(session, found, replace(stay, after_run=after_run, places=tuple(places)))


def receipt_of_detached(
    settings: Settings, spec: Spec, run: str, *, after_run: str, keep_on_failure: float | None, frontend: Frontend
) -> Receipt:
    """Return the receipt of a machine that stays on for a job whose client leaves. Nothing is changed."""
    session = open_session(settings, spec.subscription, SECONDS, frontend)
    with cloud_errors(f"looking at {spec.name}"):
        found = find_machine(session.cloud, spec.name, spec.group_name)
        stay = stay_of(session.cloud, found, Purpose(Reason.JOB, run))
    return _receipt(session, found, replace(stay, after_run=after_run, keep_on_failure=keep_on_failure))


def check_ends(settings: Settings, spec: Spec, frontend: Frontend) -> None:
    """Raise Problem if nothing in Azure would end the machine after its client has left."""
    session = open_session(settings, spec.subscription, SECONDS, frontend)
    with cloud_errors(f"looking at {spec.name}"):
        found = find_machine(session.cloud, spec.name, spec.group_name)
        stay = stay_of(session.cloud, found, Purpose(Reason.JOB, ""))
    if not stay.is_ended:
        note = f"{spec.name} has no daily schedule, and its guest agent lacks its role; the job was not started"
        help_line = f"leave out `--detach`, or give the agent its role: `gpuinfra doctor {spec.name}`"
        raise problem(Code.NOT_READY, "nothing would switch the machine off", note, help_line)


def _receipt(session: CloudSession, found: ObservedResource, stay: Stay) -> Receipt:
    cloud = session.cloud
    receipt = Receipt(
        found.ref.name,
        None,
        cloud.now(),
        region=found.region,
        size=found.size,
        spot=found.is_spot,
        group=found.ref.group,
        simulated=cloud.simulated,
        stay=stay,
    )
    with suppress(Problem, CloudError):  # without its cost, the machine is on as well
        prices, now = session.market.prices(fleet.sizes([found.body])), cloud.now()
        past = MachineCosts(session).histories([found.body], now, prices)
        machine = fleet.machine_of(found, None, now, prices, past.get(found.ref.id(cloud.subscription).casefold()))
        price = machine.price_per_hour
        receipt = replace(
            receipt,
            billed_from=machine.since,
            price_per_hour=price,
            cost_usd=machine.cost_so_far(now),
            stay=replace(stay, price_per_hour=price),
        )
    return receipt
