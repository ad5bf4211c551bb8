"""Injected faults by name: what goes wrong, for which requests, and how often."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuinfra.sandbox.catalogue.catalogue import Catalogue
from gpuinfra.sandbox.kernel.errors import ArmError
from gpuinfra.sandbox.kernel.payload import boolean, one_of, positive, read_fields, region, text, whole_number
from gpuinfra.sandbox.kernel.routes import parse_id
from gpuinfra.sandbox.kernel.store import Store

_NAME = "faults"

# Errors that answer a request: status and text. The texts are Azure's own where known.
ERRORS: dict[str, tuple[int, str]] = {
    "SkuNotAvailable": (
        409,
        "The requested VM size for resource 'Following SKUs have failed for Capacity Restrictions' is currently not "
        "available in location. Please try another size or deploy to a different location or different zone. See "
        "https://aka.ms/azureskunotavailable for details.",
    ),
    "QuotaExceeded": (409, "Operation could not be completed as it results in exceeding approved Cores quota."),
    "OperationNotAllowed": (
        409,
        "Operation could not be completed as it results in exceeding approved Total Regional Cores quota. Additional "
        "details - Deployment Model: Resource Manager, Current Limit: 0, Current Usage: 0, Additional Required: 4, "
        "(Minimum) New Limit Required: 4.",
    ),
    "AuthorizationFailed": (
        403,
        "The client does not have authorization to perform action over scope, or the scope is invalid. If access was "
        "recently granted, please refresh your credentials.",
    ),
    "LinkedAuthorizationFailed": (
        403,
        "The client has permission to perform action; however, it does not have permission on a linked scope.",
    ),
    "RequestDisallowedByPolicy": (403, "Resource was disallowed by policy."),
    "MarketplacePurchaseEligibilityFailed": (
        400,
        "Marketplace purchase eligibilty check returned errors. See inner errors for details.",
    ),
    "ResourcePurchaseValidationFailed": (400, "User failed validation to purchase resources."),
    "NicReservedForAnotherVm": (400, "Nic(s) in request is reserved for another Virtual Machine for 180 seconds."),
    "ScopeLocked": (
        409,
        "The scope cannot perform write operation because following scope(s) are locked. Please remove the lock and "
        "try again.",
    ),
    "Conflict": (409, "The request failed due to conflict with a concurrent request."),
    "AnotherOperationInProgress": (409, "Another operation on this or dependent resource is in progress."),
    "ResourceGroupBeingDeleted": (
        409,
        "The resource group is in deprovisioning state and cannot perform this operation.",
    ),
    "MissingSubscriptionRegistration": (409, "The subscription is not registered to use namespace."),
    "InvalidParameter": (400, "The value of parameter is invalid."),
    "ExpiredAuthenticationToken": (401, "The access token expiry time is earlier than current time."),
    "InvalidAuthenticationTokenTenant": (
        401,
        "The access token is from the wrong issuer 'https://sts.windows.net/11111111-1111-1111-1111-111111111111/'. It "
        "must match the tenant 'https://sts.windows.net/22222222-2222-2222-2222-222222222222/' associated with this "
        "subscription. Please use the authority (URL) "
        "'https://login.windows.net/22222222-2222-2222-2222-222222222222' to get the token.",
    ),
    "InternalServerError": (500, "An internal server error occurred."),
    "BadGateway": (502, "Bad gateway."),
    "ServiceUnavailable": (503, "The service is unavailable."),
    "GatewayTimeout": (504, "The gateway did not receive a response within the specified time period."),
    "TooManyRequests": (
        429,
        "The server rejected the request because too many requests have been received for this subscription.",
    ),
}
# Errors that end an operation after it was accepted.
OPERATION_ERRORS: dict[str, str] = {
    "AllocationFailed": "Allocation failed. We do not have sufficient capacity for the requested VM size in this "
    "region. Read more about improving likelihood of allocation success at http://aka.ms/allocation-guidance",
    "ZonalAllocationFailed": "Allocation failed. We do not have sufficient capacity for the requested VM size in this "
    "zone. Read more about improving likelihood of allocation success at http://aka.ms/allocation-guidance",
    "OverconstrainedAllocationRequest": "Allocation failed. VM(s) with the following constraints cannot be allocated, "
    "because the condition is too restrictive.",
    "OverconstrainedZonalAllocationRequest": "Allocation failed. VM(s) with the following constraints cannot be "
    "allocated, because the condition is too restrictive. Constraints applied are: - Availability Zone",
    "OSProvisioningTimedOut": "OS Provisioning for VM did not finish in the allotted time.",
    "InternalExecutionError": "An internal execution error occurred. Please retry later.",
}
# Faults of connections, operations and guests.
OTHERS: dict[str, str] = {
    "drop-before": "the connection drops, nothing was done",
    "drop-after": "the connection drops, it was done",
    "hold-before": "the request is held, and nothing is done; it drops when it is let go",
    "hold-after": "it is done, and the answer is held; it drops when it is let go",
    "never-ends": "the operation is accepted and never ends",
    "slow": "the answer, or with --operation the operation, takes --seconds longer",
    "read-only": "the client has the role Reader only",
    "restricted": "the size is listed with a restriction (NotAvailableForSubscription)",
    "no-boot": "the guest never boots",
    "ssh-refuses": "the guest's SSH port refuses connections",
    "gpu-gone": "the guest's GPU falls off the bus",
    "trusted-launch": "new machines that name no security type get Trusted Launch, and NVIDIA's driver does not load",
    "identity-refused": "the machine's own identity gets no token",
    "us-government": "the machine is in AzureUSGovernmentCloud: its identity gets no token for public Azure",
    "no-schedules": "the region does not offer Microsoft.DevTestLab/schedules",
    "schedule-window": "a daily shutdown that is changed less than --seconds before it fires keeps its old time today",
    "evict": "the spot machine --resource gets its notice, and is evicted 30 seconds later",
}
NAMES = (*ERRORS, *OPERATION_ERRORS, *OTHERS)
READ_ONLY = "read-only"
IDENTITY_REFUSED = "identity-refused"
US_GOVERNMENT = "us-government"
NO_SCHEDULES = "no-schedules"
SCHEDULE_WINDOW = "schedule-window"
HOLDS = frozenset({"hold-before", "hold-after"})
BEFORE, AFTER = frozenset({"drop-before", "hold-before"}), frozenset({"drop-after", "hold-after"})
"""Whether the connection is cut before or after the request is carried out."""


@dataclass(frozen=True)
class OperationFault:
    """What goes wrong with an accepted operation."""

    never_ends: bool = False
    slow_seconds: float = 0.0
    error: dict[str, Any] | None = None


class Faults:
    """The armed faults. Each is a plain object, as the control endpoint accepts it:

    name (one of NAMES); to narrow it down method, type (full, or its last part), resource (a name), region;
    skip (how many matches pass first), count (how many times, default 1, 0 without end), retryAfter, seconds,
    message, operation (true: an error of ERRORS hits the operation instead of the answer).
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    def all(self) -> list[dict[str, Any]]:
        faults: list[dict[str, Any]] = self.store.setting(_NAME, [])
        return faults

    def add(self, fault: dict[str, Any]) -> dict[str, Any]:
        # A fault that does not hit a request, such as a restricted size, stays armed until it is cleared.
        count = 0 if place_of(fault) == "elsewhere" else 1
        kept = {"count": count, **fault, "id": str(uuid.uuid4())}
        self.store.set_setting(_NAME, [*self.all(), kept])
        return kept

    def clear(self) -> None:
        self.store.set_setting(_NAME, [])

    def _take(self, *places: str, method: str, resource_id: str, region: str) -> dict[str, Any] | None:
        """Return the first armed fault of these places that matches and skips nothing, and count it down."""
        faults, left, taken = self.all(), [], None
        for fault in faults:
            if taken or place_of(fault) not in places or not _fits(fault, method, resource_id, region):
                left.append(fault)
            elif fault.get("skip", 0) > 0:
                left.append({**fault, "skip": fault["skip"] - 1})
            else:
                taken = fault
                if fault["count"] != 1:
                    left.append({**fault, "count": max(0, fault["count"] - 1)})
        if left != faults:
            self.store.set_setting(_NAME, left)
        return taken

    def look(self, name: str, *, resource_id: str, region: str) -> bool:
        """Whether a standing fault matches, without counting it down: for guests, lists and rights."""
        return any(fault["name"] == name and _fits(fault, "", resource_id, region) for fault in self.all())

    def hits_operation(self, resource_id: str, region: str) -> bool:
        """Whether a fault would hit an operation on the resource, without counting it down."""
        return any(place_of(each) == "operation" and _fits(each, "", resource_id, region) for each in self.all())

    def seconds(self, name: str, *, resource_id: str, region: str) -> float:
        """Return the `seconds` of a standing fault that fits, or 0."""
        fitting = (each for each in self.all() if each["name"] == name and _fits(each, "", resource_id, region))
        return max((float(each.get("seconds", 0)) for each in fitting), default=0.0)

    def for_request(self, method: str, resource_id: str, region: str) -> dict[str, Any] | None:
        """Return the fault that hits this request: an error, or one of its connection."""
        return self._take("request", "connection", method=method, resource_id=resource_id, region=region)

    def for_internal_request(self, method: str, resource_id: str, region: str) -> dict[str, Any] | None:
        """Return the error that hits a request of the sandbox itself, which has no connection."""
        return self._take("request", method=method, resource_id=resource_id, region=region)

    def for_operation(self, method: str, resource_id: str, region: str) -> OperationFault | None:
        """Return the fault that hits the operation that this request starts."""
        fault = self._take("operation", method=method, resource_id=resource_id, region=region)
        if fault is None:
            return None
        name = fault["name"]
        if name == "never-ends":
            return OperationFault(never_ends=True)
        if name == "slow":
            return OperationFault(slow_seconds=float(fault.get("seconds", 60)))
        message = fault.get("message") or OPERATION_ERRORS.get(name) or ERRORS[name][1]
        return OperationFault(error={"code": name, "message": message})


def request_error(fault: dict[str, Any]) -> ArmError:
    """Return the error that answers a request."""
    status, message = ERRORS[fault["name"]]
    headers = {}
    if "retryAfter" in fault:
        headers["Retry-After"] = str(int(fault["retryAfter"]))
    elif status == 429:
        headers["Retry-After"] = "1"
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer error="invalid_token"'
    return ArmError(status, fault["name"], fault.get("message") or message, headers=headers)


def place_of(fault: dict[str, Any]) -> str:
    """Return what a fault hits: `request`, `connection`, `operation` or `elsewhere`."""
    name = fault["name"]
    if name in OPERATION_ERRORS or name == "never-ends" or fault.get("operation"):
        return "operation"
    if name in ERRORS:
        return "request"
    return "connection" if name in BEFORE | AFTER or name == "slow" else "elsewhere"


def _fits(fault: dict[str, Any], method: str, resource_id: str, region: str) -> bool:
    if method and fault.get("method") and fault["method"].upper() != method:
        return False
    if fault.get("region") and fault["region"].lower() != region.lower():
        return False
    kind, wanted = _kind(resource_id), str(fault.get("type") or "").lower()
    if wanted and wanted != kind and wanted != kind.rsplit("/", 1)[-1]:
        return False
    if not fault.get("resource"):
        return True
    try:
        return bool(fault["resource"].lower() == parse_id(resource_id).name.lower())
    except ValueError:
        return False


def _kind(path: str) -> str:
    """Return the full type of a path, of one resource or of a list."""
    lowered = path.strip("/").lower()
    if "/providers/" not in lowered:
        return f"microsoft.resources/{lowered.split('/')[::2][-1]}"
    namespace, *rest = lowered.rpartition("/providers/")[2].split("/")
    return "/".join([namespace, *rest[::2]])


METHODS = ("GET", "HEAD", "PUT", "PATCH", "POST", "DELETE")
EVICT = "evict"
MAX_SECONDS = 86_400


def validate_fault(fault: Mapping[str, Any], catalogue: Catalogue) -> dict[str, Any]:
    """Return the fault to arm. Raises ValueError for an unknown field or an invalid value."""
    checks = {
        "name": one_of(NAMES),
        "method": one_of(METHODS, any_case=True),
        "type": text,
        "resource": text,
        "region": region(catalogue),
        "skip": whole_number(MAX_SECONDS),
        "count": whole_number(MAX_SECONDS),
        "seconds": positive(MAX_SECONDS),
        "retryAfter": whole_number(MAX_SECONDS),
        "message": text,
        "operation": boolean,
    }
    valid = read_fields(fault, checks, required=["name"])
    _check_together(valid)
    return valid


def _check_together(fault: Mapping[str, Any]) -> None:
    name = fault["name"]
    if fault.get("operation") and name not in {*ERRORS, *OPERATION_ERRORS, "slow", "never-ends"}:
        raise ValueError(f"operation goes with an error, slow or never-ends, not with {name}")
    if "seconds" in fault and name not in {"slow", SCHEDULE_WINDOW}:
        raise ValueError(f"seconds goes with slow or {SCHEDULE_WINDOW}, not with {name}")
    if "retryAfter" in fault and (name not in ERRORS or fault.get("operation")):
        raise ValueError(f"retryAfter goes with an error that answers a request, not with {name}")
    if "message" in fault and name not in {*ERRORS, *OPERATION_ERRORS}:
        raise ValueError(f"message goes with an error, not with {name}")
    if "skip" in fault and place_of(dict(fault)) == "elsewhere":
        raise ValueError(f"skip goes with a fault of requests or operations, not with {name}")
    narrowed = [field for field in ("method", "type", "resource", "region") if field in fault]
    if name == READ_ONLY and narrowed:
        raise ValueError(f"{narrowed[0]} does not go with {name}: the role applies to the whole subscription")
    if name == EVICT and not fault.get("resource"):
        raise ValueError("evict needs resource: the name of a spot machine")
