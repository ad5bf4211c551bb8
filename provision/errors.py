"""Errors from the cloud. The Azure adapter converts every foreign exception to CloudError."""

from enum import StrEnum


class Fault(StrEnum):
    """The kind of an error, which decides how to continue."""

    CAPACITY = "capacity"
    """Azure has no capacity for this size here. Another candidate may have it."""
    QUOTA = "quota"
    """The core quota does not suffice here. Another candidate may have quota."""
    ABSENT = "absent"
    EXISTS = "exists"
    """Another client created it first (`If-None-Match`)."""
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
    # This code has many causes. Only the message identifies quota and throttling errors.
    if code == "OperationNotAllowed":
        if "quota" in message.lower():
            return Fault.QUOTA
        if "too many requests" in message.lower():
            return Fault.THROTTLED
    return None
