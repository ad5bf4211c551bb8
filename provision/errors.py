"""Errors from the cloud, with explanations for users. The adapter converts every foreign exception to CloudError."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem
from gpuinfra.provision.locks import place_of


class Fault(StrEnum):
    """The kind of an error, which decides how to continue."""

    CAPACITY = "capacity"
    """Azure has no capacity for this size here. Another candidate may have it."""
    QUOTA = "quota"
    """The core quota does not suffice here. Another candidate may have quota."""
    ABSENT = "absent"
    EXISTS = "exists"
    """Another client created it first (`If-None-Match`), or a resource group in another region."""
    TAKEN = "taken"
    """The resource with this name was not created by gpuinfra."""
    BUSY = "busy"
    """Another operation on the resource is in progress. A retry may succeed."""
    IN_USE = "in-use"
    """Another resource uses it, so it cannot be deleted."""
    DENIED = "denied"
    LOGIN = "login"
    POLICY = "policy"
    LOCKED = "locked"
    TERMS = "terms"
    THROTTLED = "throttled"
    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    INTERRUPTED = "interrupted"
    OTHER = "other"


class CloudError(Exception):
    """An error from the cloud: its kind, Azure's code and message, and the resource concerned."""

    def __init__(self, fault: Fault, code: str, message: str, *, subject: str = "", status: int | None = None) -> None:
        super().__init__(f"{code}: {message}")
        self.fault, self.code, self.message, self.subject, self.status = fault, code, message, subject, status

    @property
    def moves_on(self) -> bool:
        """Whether another candidate may succeed."""
        return self.fault in {Fault.CAPACITY, Fault.QUOTA}

    @property
    def is_lasting(self) -> bool:
        """Whether a retry cannot succeed: missing rights, a policy, or a region that lacks the resource type."""
        return self.fault in {Fault.DENIED, Fault.POLICY} or self.code == "LocationNotAvailableForResourceType"


CODES = {
    "SkuNotAvailable": Fault.CAPACITY,
    "AllocationFailed": Fault.CAPACITY,
    "ZonalAllocationFailed": Fault.CAPACITY,
    "OverconstrainedAllocationRequest": Fault.CAPACITY,
    "OverconstrainedZonalAllocationRequest": Fault.CAPACITY,
    "SpotPriceGreaterThanProvidedMaxPrice": Fault.CAPACITY,
    "QuotaExceeded": Fault.QUOTA,
    "ResourceNotFound": Fault.ABSENT,
    "ResourceGroupNotFound": Fault.ABSENT,
    "NotFound": Fault.ABSENT,
    "PreconditionFailed": Fault.EXISTS,
    "ConditionNotMet": Fault.EXISTS,
    "InvalidResourceGroupLocation": Fault.EXISTS,
    "Conflict": Fault.BUSY,
    "AnotherOperationInProgress": Fault.BUSY,
    "RetryableError": Fault.BUSY,
    "ReferencedResourceNotProvisioned": Fault.BUSY,
    "ResourceGroupBeingDeleted": Fault.BUSY,
    "NicReservedForAnotherVm": Fault.BUSY,
    "OperationPreempted": Fault.BUSY,
    "PublicIPAddressCannotBeDeleted": Fault.IN_USE,
    "InUseNetworkSecurityGroupCannotBeDeleted": Fault.IN_USE,
    "InUseSubnetCannotBeDeleted": Fault.IN_USE,
    "NicInUse": Fault.IN_USE,
    "AuthorizationFailed": Fault.DENIED,
    "LinkedAuthorizationFailed": Fault.DENIED,
    "AuthenticationFailed": Fault.LOGIN,
    "ExpiredAuthenticationToken": Fault.LOGIN,
    "InvalidAuthenticationToken": Fault.LOGIN,
    "InvalidAuthenticationTokenTenant": Fault.LOGIN,
    "RequestDisallowedByPolicy": Fault.POLICY,
    "ScopeLocked": Fault.LOCKED,
    "MarketplacePurchaseEligibilityFailed": Fault.TERMS,
    "ResourcePurchaseValidationFailed": Fault.TERMS,
    "TooManyRequests": Fault.THROTTLED,
    "SubscriptionRequestsThrottled": Fault.THROTTLED,
    "ResourceRequestsThrottled": Fault.THROTTLED,
}
# Used if the code is unknown. 409 is missing because it has too many meanings.
STATUSES = {
    401: Fault.LOGIN,
    403: Fault.DENIED,
    404: Fault.ABSENT,
    412: Fault.EXISTS,
    429: Fault.THROTTLED,
    500: Fault.UNREACHABLE,
    502: Fault.UNREACHABLE,
    503: Fault.UNREACHABLE,
    504: Fault.UNREACHABLE,
}


def fault_of(code: str, message: str = "", status: int | None = None) -> Fault:
    """Return the kind of an error. The code takes precedence, because a status is ambiguous."""
    return CODES.get(code) or _by_text(code, message) or STATUSES.get(status or 0, Fault.OTHER)


def _by_text(code: str, message: str) -> Fault | None:
    # This code has many causes, which only the message identifies.
    if code == "OperationNotAllowed":
        if "quota" in message.lower():
            return Fault.QUOTA
        if "too many requests" in message.lower():
            return Fault.THROTTLED
        if "is attached to VM" in message:
            return Fault.IN_USE
    return None


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
    group: str = ""
    tenant: str = ""
    """The subscription's tenant, if the login is for another one."""
    locked: tuple[str, ...] = ()
    """The IDs of the scopes with a lock that forbids the request."""


def details_of(error: CloudError) -> ErrorDetails:
    """Parse an error message. Azure's texts vary: a part that does not match stays empty."""
    text = error.message
    # A linked refusal names two actions: first the one that is allowed, then the missing one.
    action = _first(r"action\(s\) '([^']+)'", text) or _first(r"perform action '([^']+)'", text)
    scope = _first(r"linked scope\(s\) '([^']+)'", text) or _first(r"over scope '([^']+)'", text)
    policy = _first(r'"policyAssignment":\s*\{"name":\s*"([^"]+)"', text) or _first(r"policy '([^'\[]+)'", text)
    locked = _first(r"locked: '([^']+)'", text)
    group = _first(r"/resourcegroups/([^/'\s,]+)", locked or f"{scope} {text}", re.IGNORECASE)
    tenant = _first(r"must match the tenant 'https?://[^/']+/([^/']+)", text)
    return ErrorDetails(action, scope, policy, group, tenant, tuple(filter(None, locked.split(","))))


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


def reason_of(error: CloudError) -> str:
    """Describe an error in one line; of a lock, which one it is, and how to remove it."""
    found = details_of(error)
    if error.fault is not Fault.LOCKED or not found.locked:
        return f"{error.code}: {error.message}"
    return f"{error.code}: a lock on {' and '.join(map(place_of, found.locked))} forbids it: {_locked(found)}"


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
