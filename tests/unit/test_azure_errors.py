"""The SDK's exceptions as ours: the one table, and what is read out of an answer."""

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


def test_every_code_of_the_table_has_its_fault() -> None:
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
def test_a_status_counts_only_where_the_code_says_nothing(status: int, fault: Fault) -> None:
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
def test_one_code_means_many_things_and_only_its_text_tells_which(message: str, fault: Fault) -> None:
    assert refusal(409, "OperationNotAllowed", message).fault is fault


@pytest.mark.parametrize("outer", ["DeploymentFailed", "ResourceDeploymentFailure", "Conflict"])
def test_of_wrappers_the_innermost_counts(outer: str) -> None:
    inner = {"code": "SkuNotAvailable", "message": "no room"}
    middle = {"code": "ResourceDeploymentFailure", "message": "failed", "details": [inner]}
    for details in ([inner], [middle]):
        found = refusal(409, outer, "see inside", details=details)
        assert (found.code, found.message, found.fault) == ("SkuNotAvailable", "no room", Fault.CAPACITY)


def test_a_wrapper_with_nothing_inside_is_itself() -> None:
    assert refusal(409, "Conflict", "busy", details=[]).fault is Fault.BUSY
    assert refusal(409, "DeploymentFailed", "failed").code == "DeploymentFailed"


def test_details_of_what_is_no_wrapper_are_left_alone() -> None:
    found = refusal(400, "InvalidParameter", "wrong", details=[{"code": "SkuNotAvailable", "message": "no room"}])
    assert (found.code, found.fault) == ("InvalidParameter", Fault.OTHER)


def test_an_operation_that_failed_answers_with_200() -> None:
    body = {"status": "Failed", "error": {"code": "AllocationFailed", "message": "no\n  room"}}
    # As the SDK's poller raises it, without Azure's own format of errors.
    raised = HttpResponseError(response=answer(200, body), message="Operation returned an invalid status 'OK'")
    found = translate(raised, "machine my-dsvm")
    assert (found.fault, found.code, found.message, found.status) == (
        Fault.CAPACITY,
        "AllocationFailed",
        "no room",
        200,
    )


@pytest.mark.parametrize("body", ["", "<html>a proxy</html>", "[]", "{}", '{"error": null}', '{"error": "words"}'])
def test_an_answer_that_is_not_azures_has_its_status(body: str) -> None:
    found = error(502, body)
    assert (found.fault, found.code, found.status) == (Fault.UNREACHABLE, "HTTP 502", 502)


def test_no_credentials_are_no_login() -> None:
    text = "DefaultAzureCredential failed to retrieve a token.\nAttempted credentials:\n\tEnvironmentCredential: …"
    found = translate(ClientAuthenticationError(text))
    assert (found.fault, found.code) == (Fault.LOGIN, "CredentialUnavailable")
    assert found.message == "DefaultAzureCredential failed to retrieve a token."


def test_a_login_that_azure_refused_has_azures_own_words() -> None:
    found = error(401, {"error": {"code": "ExpiredAuthenticationToken", "message": "old"}}, ClientAuthenticationError)
    assert (found.fault, found.code, found.message) == (Fault.LOGIN, "ExpiredAuthenticationToken", "old")


def test_an_authority_answers_in_its_own_format() -> None:
    body = {"error": "invalid_client", "error_description": "AADSTS7000215: Invalid client secret provided."}
    raised = ClientAuthenticationError(message="Authentication failed: AADSTS7000215", response=answer(401, body))
    found = translate(raised)
    assert (found.fault, found.code) == (Fault.LOGIN, "CredentialUnavailable")
    assert "AADSTS7000215" in found.message


@pytest.mark.parametrize(
    ("kind", "status", "fault"),
    [(ResourceNotFoundError, 404, Fault.ABSENT), (ResourceExistsError, 412, Fault.EXISTS)],
)
def test_a_class_of_the_sdk_says_no_more_than_its_status(kind: Any, status: int, fault: Fault) -> None:
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
def test_what_never_reached_azure_is_unreachable(raised: AzureError, code: str) -> None:
    found = translate(raised, "group g")
    assert (found.fault, found.code, found.subject) == (Fault.UNREACHABLE, code, "group g")
    assert found.message


def test_an_answer_that_cannot_be_read_is_no_success() -> None:
    assert isinstance(translate(DecodeError("JSON is invalid", response=answer(200, "<html>"))), CloudError)


def test_nothing_of_the_sdk_leaves_the_block() -> None:
    with pytest.raises(CloudError) as caught, translated("disk d"):
        raise ServiceRequestError("nobody there")
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


def test_a_code_alone_is_enough() -> None:
    assert fault_of("AllocationFailed") is Fault.CAPACITY
    assert fault_of("") is Fault.OTHER
    assert str(CloudError(Fault.OTHER, "Code", "words")) == "Code: words"
