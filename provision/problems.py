"""Convert errors from Azure to messages for the user: a summary, Azure's own text, and the next step."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem
from gpuinfra.provision.errors import CloudError, Fault

QUOTA_PAGE = "https://aka.ms/ProdportalCRP"
LOGIN_HELP = (
    "`az login`, or set AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET; "
    "to try it without an account, add `--sandbox`"
)
# Codes for an unusable subscription, with any status.
_NO_SUBSCRIPTION = {"SubscriptionNotFound", "InvalidSubscriptionId", "DisallowedSubscription", "SubscriptionDisabled"}


@dataclass(frozen=True)
class ErrorDetails:
    """Details parsed from Azure's message; a detail that the message lacks is an empty string."""

    action: str = ""
    scope: str = ""
    policy: str = ""
    locked: str = ""
    group: str = ""
    tenant: str = ""
    """The subscription's tenant, if the login is for another one."""


def details_of(error: CloudError) -> ErrorDetails:
    """Parse an error message. Azure's texts vary: a part that does not match stays empty."""
    text = error.message
    # A linked refusal names two actions: first the one that is allowed, then the missing one.
    action = _first(r"action\(s\) '([^']+)'", text) or _first(r"perform action '([^']+)'", text)
    scope = _first(r"linked scope\(s\) '([^']+)'", text) or _first(r"over scope '([^']+)'", text)
    policy = _first(r'"policyAssignment":\s*\{"name":\s*"([^"]+)"', text) or _first(r"policy '([^'\[]+)'", text)
    locked = _first(r"locked: '([^']+)'", text)
    group = _first(r"/resourcegroups/([^/'\s]+)", f"{locked} {scope} {text}", re.IGNORECASE)
    tenant = _first(r"must match the tenant 'https?://[^/']+/([^/']+)", text)
    return ErrorDetails(action, scope, policy, locked, group, tenant)


def _first(pattern: str, text: str, flags: int = 0) -> str:
    found = re.search(pattern, text, flags)
    return found.group(1) if found else ""


def _other_tenant(found: ErrorDetails) -> str:
    tenant = found.tenant or "TENANT"
    return f"`az login --tenant {tenant}`, or set AZURE_TENANT_ID and the service principal of that tenant"


def role_help(scope: str) -> str:
    """Describe the role that is needed, with the command that assigns it."""
    where = "the subscription or the resource group"
    place = scope or "/subscriptions/SUBSCRIPTION"
    return (
        f"the role Contributor on {where} allows it; an owner assigns it with "
        f"`az role assignment create --assignee YOU --role Contributor --scope {place}`"
    )


def _denied(found: ErrorDetails) -> str:
    return role_help(_role_scope(found.scope))


def _role_scope(scope: str) -> str:
    """Return the group of a resource, or its subscription. A role on a single resource would not suffice."""
    return _first(r"^(/subscriptions/[^/]+(?:/resourcegroups/[^/]+)?)", scope, re.IGNORECASE)


def _policy(found: ErrorDetails) -> str:
    named = f" `{found.policy}`" if found.policy else ""
    return f"ask the owner of the policy{named} for an exemption, or change what it forbids, such as region or tags"


def _locked(found: ErrorDetails) -> str:
    group = f" --resource-group {found.group}" if found.group else ""
    return f"`az lock list{group}` shows the lock; `az lock delete` removes it"


Row = tuple[Code, str, str | Callable[[ErrorDetails], str] | None]

TABLE: dict[Fault, Row] = {
    Fault.LOGIN: (Code.LOGIN_FAILED, "not logged in to Azure", LOGIN_HELP),
    Fault.DENIED: (Code.NOT_ALLOWED, "not allowed", _denied),
    Fault.POLICY: (Code.POLICY_DENIED, "forbidden by a policy", _policy),
    Fault.LOCKED: (Code.LOCKED, "locked", _locked),
    Fault.TERMS: (
        Code.IMAGE_TERMS,
        "the image's terms are not accepted",
        "`acceptImageTerms: true` in the spec accepts them, if the subscription may buy in the marketplace",
    ),
    Fault.CAPACITY: (
        Code.NO_CAPACITY,
        "no capacity",
        "name more regions, zones or sizes in the spec; `gpuinfra sizes --with-quota` lists them",
    ),
    Fault.QUOTA: (
        Code.NO_QUOTA,
        "not enough quota",
        f"`gpuinfra sizes --with-quota` lists regions with quota; request more at {QUOTA_PAGE}",
    ),
    Fault.THROTTLED: (Code.THROTTLED, "throttled by Azure", "try again in a few minutes"),
    Fault.UNREACHABLE: (
        Code.UNREACHABLE,
        "Azure cannot be reached",
        "check the network, the proxy and GPUINFRA_ARM_ENDPOINT, and try again",
    ),
    Fault.TIMEOUT: (
        Code.TIMED_OUT,
        "Azure took too long",
        "run the same command again: it continues from there",
    ),
    Fault.BUSY: (Code.BUSY, "busy with something else", "try again in a moment"),
    Fault.IN_USE: (
        Code.REFUSED,
        "used by another resource",
        "delete or detach the resource that uses it, then run the same command again",
    ),
    Fault.EXISTS: (
        Code.BUSY,
        "another client just created it",
        "run the same command again: it continues from the current state",
    ),
    Fault.TAKEN: (
        Code.NAME_TAKEN,
        "the name is taken",
        "use another `name` or `resourceGroup` in the spec, or delete the resource with this name",
    ),
    Fault.ABSENT: (Code.REFUSED, "not found in Azure", None),
    Fault.INTERRUPTED: (Code.REFUSED, "interrupted", "run the same command again: it continues from there"),
    Fault.OTHER: (
        Code.REFUSED,
        "refused by Azure",
        "see Azure's message above; with the correlation ID from `--verbose` you find more in the activity log",
    ),
}
_WRONG_TENANT = "InvalidAuthenticationTokenTenant"
_WRONG_TENANT_ROW: Row = (Code.LOGIN_FAILED, "logged in to another tenant", _other_tenant)
_NO_SUBSCRIPTION_ROW: Row = (
    Code.NO_SUBSCRIPTION,
    "no such subscription",
    "`az account list --output table` lists yours; AZURE_SUBSCRIPTION_ID selects one",
)


def explain(error: CloudError, doing: str, *extra: str) -> Problem:
    """Return the Problem for an error. `doing` names the action, such as `creating machine my-dsvm`.

    `extra` adds facts to the note, such as what was kept.
    """
    code, summary, help_line = _row(error)
    found = details_of(error)
    where = f" on {found.scope}" if found.scope else ""
    missing = f"missing is {found.action}{where}" if found.action else ""
    policy = f"the policy is `{found.policy}`" if found.policy else ""
    note = "; ".join(filter(None, (f"{doing}: {_said(error)}", missing, policy, *extra)))
    exit_code = Exit.INTERRUPTED if error.fault is Fault.INTERRUPTED else Exit.FAILED
    return Problem(
        Diagnostic(code, summary, note=note, help=help_line(found) if callable(help_line) else help_line),
        exit_code=exit_code,
    )


def _row(error: CloudError) -> Row:
    if error.code in _NO_SUBSCRIPTION:
        return _NO_SUBSCRIPTION_ROW
    return _WRONG_TENANT_ROW if error.code == _WRONG_TENANT else TABLE[error.fault]


def _said(error: CloudError) -> str:
    message = error.message.rstrip(". ")
    return message if message.startswith(error.code) else f"{error.code}: {message}"


def not_allowed(missing: Iterable[str], subscription: str, group: str) -> Problem:
    """Return the Problem for missing permissions that are known before the first write."""
    actions = tuple(missing)
    note = f"missing on the subscription and on resource group `{group}`: {', '.join(actions)}; nothing was created"
    scope = f"/subscriptions/{subscription}" if subscription else ""
    return Problem(Diagnostic(Code.NOT_ALLOWED, "not allowed", note=note, help=role_help(scope)))
