"""Asks Azure for what `doctor` has to know of the login and the subscription."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuinfra.app.machines import CloudSession
    from gpuinfra.models.checks import Check

REAPER = "`gpuinfra schedule install --with cron` has it run here; also systemd, github-actions, azure-pipelines"


def account(reached: CloudSession) -> list[Check]:
    """The login first: without it, nothing else of Azure is asked."""
    from gpuinfra.provision.errors import CloudError
    from gpuinfra.provision.health import account as health

    market, cloud = reached.market, reached.cloud
    try:
        name = market.subscription_name()
    except CloudError as error:
        return [health.no_login(error)]
    here, there = datetime.now(UTC), cloud.now()
    with ThreadPoolExecutor(4, thread_name_prefix="doctor") as pool:
        asked = [pool.submit(ask, reached) for ask in (_providers, _rights, _prices)]
        found = [each for question in asked for each in question.result()]
    return [
        health.login(name, market.subscription),
        _place(reached),
        *found,
        health.clock(here, there, simulated=cloud.simulated),
        _reaper(),
    ]


def _place(reached: CloudSession) -> Check:
    from gpuinfra.models.checks import ok

    arm = reached.cloud.clients.access.arm
    return ok("azure", f"the embedded one, at {arm}: nothing here is billed" if reached.cloud.simulated else arm)


def _reaper() -> Check:
    """No layer is more than a note where nobody can see it."""
    from gpuinfra.models.checks import ok

    return ok("reaper", "whether `gpuinfra reap` runs anywhere, again and again, cannot be seen from here", REAPER)


def _providers(reached: CloudSession) -> list[Check]:
    from gpuinfra.provision.health import account as health
    from gpuinfra.provision.market.preflight import PROVIDERS

    return _known("providers", lambda: [health.providers(reached.market.unregistered(PROVIDERS))])


def _rights(reached: CloudSession) -> list[Check]:
    from gpuinfra.provision.azure.rights import Rights
    from gpuinfra.provision.health import account as health

    def ask() -> list[Check]:
        market = reached.market
        allowed, has_role = market.actions_allowed(None), Rights(reached.cloud.clients).has_role()
        return [
            health.permissions(allowed, market.subscription),
            health.roles(allowed, market.subscription, has_role=has_role),
        ]

    return _known("rights", ask)


def _prices(reached: CloudSession) -> list[Check]:
    from gpuinfra.models.sizes import SIZES
    from gpuinfra.provision.health import account as health

    return [health.prices(is_live=bool(reached.market.prices([next(iter(SIZES))]).rates))]


def _known(name: str, ask: Callable[[], list[Check]]) -> list[Check]:
    from gpuinfra.provision.errors import CloudError
    from gpuinfra.provision.health import account as health

    try:
        return ask()
    except CloudError as error:
        return [health.unknown(name, error)]
