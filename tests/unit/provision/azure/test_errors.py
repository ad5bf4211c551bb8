"""The SDK's exceptions as ours: the table, and what is read from a response."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    DecodeError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.mgmt.core.exceptions import ARMErrorFormat

from gpuinfra.provision.azure.errors import translate, translated
from gpuinfra.provision.errors import CODES, STATUSES, CloudError, Fault, fault_of

REFUSALS = {
    Fault.CAPACITY: """SkuNotAvailable AllocationFailed ZonalAllocationFailed OverconstrainedAllocationRequest
    OverconstrainedZonalAllocationRequest SpotPriceGreaterThanProvidedMaxPrice""",
    Fault.QUOTA: "QuotaExceeded",
    Fault.ABSENT: "ResourceNotFound ResourceGroupNotFound NotFound",
    Fault.EXISTS: "PreconditionFailed ConditionNotMet",
    Fault.BUSY: """Conflict AnotherOperationInProgress RetryableError ReferencedResourceNotProvisioned
    ResourceGroupBeingDeleted NicReservedForAnotherVm OperationPreempted""",
    Fault.IN_USE: """PublicIPAddressCannotBeDeleted InUseNetworkSecurityGroupCannotBeDeleted InUseSubnetCannotBeDeleted
    NicInUse""",
    Fault.DENIED: "AuthorizationFailed LinkedAuthorizationFailed",
    Fault.LOGIN: """AuthenticationFailed ExpiredAuthenticationToken InvalidAuthenticationToken
    InvalidAuthenticationTokenTenant""",
    Fault.POLICY: "RequestDisallowedByPolicy",
    Fault.LOCKED: "ScopeLocked",
    Fault.TERMS: "MarketplacePurchaseEligibilityFailed ResourcePurchaseValidationFailed",
    Fault.THROTTLED: "TooManyRequests SubscriptionRequestsThrottled ResourceRequestsThrottled",
}


def answer(status: int, body: Any) -> Any:
    text = body if isinstance(body, str) else json.dumps(body)
    return SimpleNamespace(status_code=status, reason="Reason", text=lambda encoding=None: text, headers={})


def error(status: int, body: Any, kind: Any = HttpResponseError) -> CloudError:
    return translate(kind(response=answer(status, body), error_format=ARMErrorFormat), "machine my-dsvm")


def refusal(status: int, code: str, message: str = "no", **more: Any) -> CloudError:
    return error(status, {"error": {"code": code, "message": message, **more}})


def test_every_known_code_has_its_fault() -> None:
    expected = {code: fault for fault, codes in REFUSALS.items() for code in codes.split()}
    assert expected == CODES
    for code, fault in expected.items():
        found = refusal(409, code, "words")
        assert (found.fault, found.code, found.message, found.status) == (fault, code, "words", 409)
        assert found.subject == "machine my-dsvm"
        assert found.moves_on == (fault in {Fault.CAPACITY, Fault.QUOTA})


@pytest.mark.parametrize(
    ("status", "fault"),
    [*STATUSES.items(), (400, Fault.OTHER), (409, Fault.OTHER), (200, Fault.OTHER)],
)
def test_status_decides_only_for_unknown_codes(status: int, fault: Fault) -> None:
    assert refusal(status, "Whatever").fault is fault
    assert refusal(status, "SkuNotAvailable").fault is Fault.CAPACITY


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ("Operation could not be completed as it results in exceeding approved Cores Quota.", Fault.QUOTA),
        ("The request was refused: too many requests.", Fault.THROTTLED),
        ("Cannot resize disk while it is attached to running VM.", Fault.OTHER),
    ],
)
def test_ambiguous_code_is_decided_by_its_message(message: str, fault: Fault) -> None:
    assert refusal(409, "OperationNotAllowed", message).fault is fault


@pytest.mark.parametrize("outer", ["DeploymentFailed", "ResourceDeploymentFailure", "Conflict"])
def test_innermost_error_of_a_wrapper_counts(outer: str) -> None:
    inner = {"code": "SkuNotAvailable", "message": "no room"}
    middle = {"code": "ResourceDeploymentFailure", "message": "failed", "details": [inner]}
    for details in ([inner], [middle]):
        found = refusal(409, outer, "see inside", details=details)
        assert (found.code, found.message, found.fault) == ("SkuNotAvailable", "no room", Fault.CAPACITY)


def test_empty_wrapper_is_the_error_itself() -> None:
    assert refusal(409, "Conflict", "busy", details=[]).fault is Fault.BUSY
    assert refusal(409, "DeploymentFailed", "failed").code == "DeploymentFailed"


def test_details_of_other_errors_are_ignored() -> None:
    found = refusal(400, "InvalidParameter", "wrong", details=[{"code": "SkuNotAvailable", "message": "no room"}])
    assert (found.code, found.fault) == ("InvalidParameter", Fault.OTHER)


def test_failed_operation_with_status_200_is_an_error() -> None:
    body = {"status": "Failed", "error": {"code": "AllocationFailed", "message": "no\n  room"}}
    # As the SDK's poller raises it, without Azure's error format.
    raised = HttpResponseError(response=answer(200, body), message="Operation returned an invalid status 'OK'")
    found = translate(raised, "machine my-dsvm")
    assert (found.fault, found.code, found.message, found.status) == (
        Fault.CAPACITY,
        "AllocationFailed",
        "no room",
        200,
    )


@pytest.mark.parametrize("body", ["", "<html>a proxy</html>", "[]", "{}", '{"error": null}', '{"error": "words"}'])
def test_foreign_response_is_known_by_its_status(body: str) -> None:
    found = error(502, body)
    assert (found.fault, found.code, found.status) == (Fault.UNREACHABLE, "HTTP 502", 502)


def test_missing_credentials_are_a_login_fault() -> None:
    text = "DefaultAzureCredential failed to retrieve a token.\nAttempted credentials:\n\tEnvironmentCredential: …"
    found = translate(ClientAuthenticationError(text))
    assert (found.fault, found.code) == (Fault.LOGIN, "CredentialUnavailable")
    assert found.message == "DefaultAzureCredential failed to retrieve a token."


def test_refused_login_has_azures_message() -> None:
    found = error(401, {"error": {"code": "ExpiredAuthenticationToken", "message": "old"}}, ClientAuthenticationError)
    assert (found.fault, found.code, found.message) == (Fault.LOGIN, "ExpiredAuthenticationToken", "old")


def test_error_format_of_the_authority_is_read() -> None:
    body = {"error": "invalid_client", "error_description": "AADSTS7000215: Invalid client secret provided."}
    raised = ClientAuthenticationError(message="Authentication failed: AADSTS7000215", response=answer(401, body))
    found = translate(raised)
    assert (found.fault, found.code) == (Fault.LOGIN, "CredentialUnavailable")
    assert "AADSTS7000215" in found.message


@pytest.mark.parametrize(
    ("kind", "status", "fault"),
    [(ResourceNotFoundError, 404, Fault.ABSENT), (ResourceExistsError, 412, Fault.EXISTS)],
)
def test_sdk_exception_is_mapped_by_its_status(kind: Any, status: int, fault: Fault) -> None:
    assert error(status, {"error": {"code": "Whatever", "message": ""}}, kind).fault is fault


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (ServiceRequestError("Connection refused"), "ServiceRequestError"),
        (ServiceResponseError("Connection aborted"), "ServiceResponseError"),
        (AzureError("Maximum retries exceeded."), "AzureError"),
        (AzureError(""), "AzureError"),
    ],
)
def test_connection_failure_is_unreachable(raised: AzureError, code: str) -> None:
    found = translate(raised, "group g")
    assert (found.fault, found.code, found.subject) == (Fault.UNREACHABLE, code, "group g")
    assert found.message


def test_unreadable_response_is_an_error() -> None:
    assert isinstance(translate(DecodeError("JSON is invalid", response=answer(200, "<html>"))), CloudError)


def test_sdk_exceptions_do_not_leave_the_block() -> None:
    with pytest.raises(CloudError) as caught, translated("disk d"):
        raise ServiceRequestError("no answer")
    assert caught.value.subject == "disk d"
    assert isinstance(caught.value.__cause__, ServiceRequestError)
    with pytest.raises(CloudError, match="no such file") as caught, translated("disk d"):
        raise FileNotFoundError("no such file")
    assert caught.value.fault is Fault.UNREACHABLE
    with pytest.raises(ZeroDivisionError), translated():
        raise ZeroDivisionError
    own = CloudError(Fault.THROTTLED, "TooManyRequests", "")
    with pytest.raises(CloudError) as caught, translated():
        raise own
    assert caught.value is own


def test_code_is_mapped_without_a_response() -> None:
    assert fault_of("AllocationFailed") is Fault.CAPACITY
    assert fault_of("") is Fault.OTHER
    assert str(CloudError(Fault.OTHER, "Code", "words")) == "Code: words"
