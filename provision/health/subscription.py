"""Check the login, the subscription, the caller's permissions, and this computer's clock."""

from collections.abc import Sequence
from datetime import datetime

from gpuinfra.models.health import HealthCheck, ok, problem, warning
from gpuinfra.provision.errors import CloudError
from gpuinfra.provision.lifecycle import agent_role
from gpuinfra.provision.market.port import Permissions
from gpuinfra.provision.market.preflight import ACTIONS, PROVIDERS
from gpuinfra.provision.market.price_list import DATE
from gpuinfra.provision.problems import explain, role_help

DEALLOCATE, START = agent_role.ACTION, "Microsoft.Compute/virtualMachines/start/action"
WRITES = tuple(action for action in ACTIONS if action not in {DEALLOCATE, START})
# In seconds. Up to the first, tokens are still accepted and only displayed times are wrong.
MAX_SKEW, SMALL_SKEW = 300.0, 30.0
ROLES_HELP = (
    "the roles Owner or User Access Administrator on the subscription allow it; or an administrator creates the role "
    "once, and assigns it to each machine: `gpuinfra doctor MACHINE` shows how"
)


def login(name: str, subscription: str) -> HealthCheck:
    """Return the check for a successful login."""
    return ok("login", f"subscription {name} ({subscription})")


def no_login(error: CloudError) -> HealthCheck:
    """Return the check for a failed login."""
    (diagnostic,) = explain(error, "looking for the subscription").diagnostics
    return problem("login", f"{diagnostic.summary}: {diagnostic.note}", diagnostic.help)


def unknown(name: str, error: CloudError) -> HealthCheck:
    """Return the check for something optional that Azure did not answer."""
    return warning(name, f"not known: {error.code}: {error.message}")


def providers(unregistered: Sequence[str]) -> HealthCheck:
    """Check that the required resource providers are registered."""
    if not unregistered:
        return ok("providers", f"{', '.join(PROVIDERS)} are registered")
    commands = [f"az provider register --namespace {name}" for name in unregistered]
    seen = f"not registered yet: {', '.join(unregistered)}"
    return warning("providers", seen, "`gpuinfra up` registers them if it has the permission; or run:", *commands)


def permissions(found: Permissions, subscription: str) -> HealthCheck:
    """Check the caller's permissions on the whole subscription. Those on a group are checked with its machines."""
    if not found.known:
        return warning("rights", "Azure does not say what you may do in the subscription")
    missing = [action for action in (DEALLOCATE, START, *WRITES) if not found.allows(action)]
    if not missing:
        return ok("rights", "you may create, start and deallocate machines in the subscription")
    return warning(
        "rights",
        f"missing in the subscription as a whole: {', '.join(missing)}",
        role_help(f"/subscriptions/{subscription}"),
    )


def roles(found: Permissions, subscription: str, *, has_role: bool | None) -> HealthCheck:
    """Check whether the caller can grant new machines the role to deallocate themselves."""
    wanted = (agent_role.ASSIGNS_ROLES,) if has_role else (agent_role.MAKES_ROLES, agent_role.ASSIGNS_ROLES)
    missing = [action for action in wanted if not found.allows(action)]
    if not found.known:
        return warning("roles", "Azure does not say whether you may allow machines to switch themselves off")
    if not missing:
        there = "exists" if has_role else "is created with the first machine"
        return ok("roles", f"you may allow machines to switch themselves off; the role for it {there}")
    seen = f"you may not allow machines to switch themselves off: missing is {', '.join(missing)}"
    return warning("roles", seen, ROLES_HELP, *([] if has_role else [agent_role.define_command(subscription)]))


def prices(*, is_live: bool) -> HealthCheck:
    """Check where prices come from. A cost cap becomes a time limit, which needs a price."""
    if is_live:
        return ok("prices", "from the Retail Prices service")
    seen = (
        f"the Retail Prices service does not answer: `gpuinfra up` and `cost` use the shipped price list of {DATE}, "
        "and a new spot machine has no cost cap"
    )
    return warning("prices", seen, "check the network, the proxy and GPUINFRA_PRICES_ENDPOINT")


def clock(here: datetime, there: datetime, *, simulated: bool) -> HealthCheck:
    """Compare this computer's clock with Azure's, which leases use."""
    if simulated:
        return ok("clock", f"the embedded Azure has its own time, {there:%Y-%m-%d %H:%M:%S}Z")
    seconds = (here - there).total_seconds()
    if abs(seconds) <= SMALL_SKEW:
        return ok("clock", "it agrees with Azure's")
    way = "ahead of" if seconds > 0 else "behind"
    seen = f"{abs(seconds):.0f} s {way} Azure's; leases use Azure's, so they are correct"
    fix = "set the clock, as with `sudo timedatectl set-ntp true`"
    return (problem if abs(seconds) >= MAX_SKEW else warning)("clock", seen, fix)
