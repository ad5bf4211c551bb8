"""What Azure refuses, in our words. The adapter turns every foreign exception into one of these."""

from __future__ import annotations

from enum import StrEnum


class Fault(StrEnum):
    """What kind of refusal it is, which decides what to do next."""

    CAPACITY = "capacity"
    """No room for this size here: another candidate may have some."""
    QUOTA = "quota"
    """The subscription may not have as many cores here: another candidate may do."""
    ABSENT = "absent"
    EXISTS = "exists"
    """Somebody else made it first (`If-None-Match`)."""
    TAKEN = "taken"
    """What exists under this name was not made by gpuinfra."""
    BUSY = "busy"
    """Something else is going on with it: the same request may work in a moment."""
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
    """A refusal: its kind, Azure's own code and message, and what it was about."""

    def __init__(self, fault: Fault, code: str, message: str, *, subject: str = "", status: int | None = None) -> None:
        super().__init__(f"{code}: {message}")
        self.fault, self.code, self.message, self.subject, self.status = fault, code, message, subject, status

    @property
    def moves_on(self) -> bool:
        """Another candidate may have what this one has not."""
        return self.fault in {Fault.CAPACITY, Fault.QUOTA}


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
# Where the code says nothing that is known. A 409 alone says nothing at all.
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
    """What kind of refusal it is. The code decides; a status alone can mean anything."""
    return CODES.get(code) or _by_text(code, message) or STATUSES.get(status or 0, Fault.OTHER)


def _by_text(code: str, message: str) -> Fault | None:
    # One code for many things; only the text of a quota error tells it from the others.
    if code == "OperationNotAllowed":
        if "quota" in message.lower():
            return Fault.QUOTA
        if "too many requests" in message.lower():
            return Fault.THROTTLED
    return None
