"""The login, the subscription, what the caller may do there, and this computer's clock."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from gpuinfra.models.checks import Check, ok, problem, warning
from gpuinfra.provision.errors import CloudError
from gpuinfra.provision.lifecycle import agent_role
from gpuinfra.provision.market.port import Permissions
from gpuinfra.provision.market.preflight import ACTIONS, PROVIDERS
from gpuinfra.provision.market.price_list import DATE
from gpuinfra.provision.problems import explain, role_help

DEALLOCATE, START = agent_role.ACTION, "Microsoft.Compute/virtualMachines/start/action"
WRITES = tuple(action for action in ACTIONS if action not in {DEALLOCATE, START})
# Tokens hold for so long beyond their time; before that nothing goes wrong but what people read.
LARGEST_SKEW, SMALL_SKEW = 300.0, 30.0
ROLES_HELP = (
    "the roles Owner or User Access Administrator on the subscription allow it; or an administrator makes the role "
    "once, and gives it to each machine: `gpuinfra doctor MACHINE` shows how"
)


def login(name: str, subscription: str) -> Check:
    """Azure has answered."""
    return ok("login", f"subscription {name} ({subscription})")


def no_login(error: CloudError) -> Check:
    """It has not, or has refused."""
    (diagnostic,) = explain(error, "looking for the subscription").diagnostics
    return problem("login", f"{diagnostic.summary}: {diagnostic.note}", diagnostic.help)


def unknown(name: str, error: CloudError) -> Check:
    """Azure does not say, of something that nothing depends on."""
    return warning(name, f"not known: {error.code}: {error.message}")


def providers(unregistered: Sequence[str]) -> Check:
    """The resource providers that a machine is made of."""
    if not unregistered:
        return ok("providers", f"{', '.join(PROVIDERS)} are registered")
    commands = [f"az provider register --namespace {name}" for name in unregistered]
    seen = f"not registered yet: {', '.join(unregistered)}"
    return warning("providers", seen, "`gpuinfra up` registers them where it may; or run:", *commands)


def permissions(found: Permissions, subscription: str) -> Check:
    """What the caller may do in all of the subscription. Rights in one group are seen with the machines in it."""
    if not found.known:
        return warning("rights", "Azure does not say what you may do in the subscription")
    missing = [action for action in (DEALLOCATE, START, *WRITES) if not found.allows(action)]
    if not missing:
        return ok("rights", "you may make, start and deallocate machines in the subscription")
    return warning(
        "rights",
        f"missing in the subscription as a whole: {', '.join(missing)}",
        role_help(f"/subscriptions/{subscription}"),
    )


def roles(found: Permissions, subscription: str, *, has_role: bool | None) -> Check:
    """Whether machines that the caller makes can be given the right to switch themselves off."""
    wanted = (agent_role.ASSIGNS_ROLES,) if has_role else (agent_role.MAKES_ROLES, agent_role.ASSIGNS_ROLES)
    missing = [action for action in wanted if not found.allows(action)]
    if not found.known:
        return warning("roles", "Azure does not say whether you may give machines the right to switch themselves off")
    if not missing:
        there = "is there" if has_role else "is made with the first machine"
        return ok("roles", f"you may give machines the right to switch themselves off; the role for it {there}")
    seen = f"you may not give machines the right to switch themselves off: missing is {', '.join(missing)}"
    return warning("roles", seen, ROLES_HELP, *([] if has_role else [agent_role.define_command(subscription)]))


def prices(*, is_live: bool) -> Check:
    """Where prices come from. A cost cap is kept as a time, which only a price makes of it."""
    if is_live:
        return ok("prices", "from the Retail Prices service")
    seen = (
        f"the Retail Prices service does not answer: `gpuinfra up` and `cost` take the list of {DATE} that comes along"
        ", and a spot machine that is made now has no cost cap"
    )
    return warning("prices", seen, "look at the network, the proxy and GPUINFRA_PRICES_ENDPOINT")


def clock(here: datetime, there: datetime, *, simulated: bool) -> Check:
    """This computer's clock against Azure's, from whose answers leases take the time."""
    if simulated:
        return ok("clock", f"the embedded Azure has a time of its own, {there:%Y-%m-%d %H:%M:%S}Z")
    seconds = (here - there).total_seconds()
    if abs(seconds) <= SMALL_SKEW:
        return ok("clock", "it agrees with Azure's")
    way = "ahead of" if seconds > 0 else "behind"
    seen = f"{abs(seconds):.0f} s {way} Azure's; leases go by Azure's, so they hold"
    fix = "set the clock, as with `sudo timedatectl set-ntp true`"
    return (problem if abs(seconds) >= LARGEST_SKEW else warning)("clock", seen, fix)
