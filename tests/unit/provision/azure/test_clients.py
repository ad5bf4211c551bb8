"""The transport of every request, with a fake server. Time passes only in waits."""

import json
from datetime import UTC, datetime, timedelta
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
from azure.core.pipeline import Pipeline
from azure.core.rest import HttpRequest
from azure.mgmt.core.exceptions import ARMErrorFormat

from gpuinfra.provision.azure import clients
from gpuinfra.provision.azure.clients import Clock, RequestLimits, Retries, translate, translated
from gpuinfra.provision.errors import CODES, STATUSES, CloudError, Fault, fault_of
from tests.unit.provision_help import InstantInterrupt, RecordedProgress, Time


class FakeTransport:
    """A transport with prepared responses: a status with headers, or an error."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.sent = list(answers), 0

    def __enter__(self) -> "FakeTransport":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def send(self, request: Any, **_: Any) -> Any:
        self.sent += 1
        found = self.answers.pop(0)
        if isinstance(found, Exception):
            raise found
        status, headers = found
        return SimpleNamespace(status_code=status, headers=headers, request=request, context={})


class FakeChannel:
    """Everything between a request and its response."""

    def __init__(self, *answers: Any, seconds: float = 3600) -> None:
        self.time, self.heard, self.wire, self.clock = Time(), RecordedProgress(), FakeTransport(*answers), Clock()
        limits = RequestLimits(self.time.deadline(seconds), self.heard)
        limits.interrupt = InstantInterrupt(self.time)
        self.limits = limits
        policies: Any = [Retries(limits), self.clock]
        self._pipeline: Any = Pipeline(self.wire, policies)  # type: ignore[arg-type]

    def send(self, method: str = "GET") -> int:
        status: int = self._pipeline.run(HttpRequest(method, "https://localhost/")).http_response.status_code
        return status


def throttled(seconds: str) -> tuple[int, dict[str, str]]:
    return 429, {"Retry-After": seconds}


OK: tuple[int, dict[str, str]] = (200, {})


def test_successful_response_is_returned() -> None:
    channel = FakeChannel(OK)
    assert channel.send() == 200
    assert (channel.wire.sent, channel.time.pauses) == (1, [])


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "POST", "DELETE"])
def test_retry_after_is_respected_and_shown(method: str) -> None:
    channel = FakeChannel(throttled("7"), OK)
    assert channel.send(method) == 200
    assert channel.time.pauses == [7]
    assert channel.heard.lines == ["Azure is throttling, 7 s"]


def test_throttling_is_never_a_failure() -> None:
    channel = FakeChannel(*[throttled("2")] * 50, OK)
    assert channel.send() == 200
    assert channel.time.pauses == [2] * 50


def test_wait_beyond_the_deadline_is_refused() -> None:
    channel = FakeChannel(throttled("30"), seconds=20)
    with pytest.raises(CloudError) as caught:
        channel.send()
    assert (caught.value.fault, caught.value.status) == (Fault.THROTTLED, 429)
    assert "asks to wait 30 s, which is beyond the deadline" in caught.value.message
    assert (channel.wire.sent, channel.time.pauses, channel.heard.lines) == (1, [], [])


def test_waits_add_up_to_the_deadline() -> None:
    channel = FakeChannel(*[throttled("6")] * 10, seconds=20)
    with pytest.raises(CloudError):
        channel.send()
    assert channel.time.pauses == [6, 6, 6]


def test_busy_server_is_retried() -> None:
    channel = FakeChannel((503, {"Retry-After": "3"}), OK)
    assert channel.send() == 200
    assert channel.heard.lines == ["Azure is busy, 3 s"]


@pytest.mark.parametrize("headers", [{}, {"Retry-After": "0"}])
def test_retry_without_a_hint_is_silent(headers: dict[str, str]) -> None:
    channel = FakeChannel((429, headers), (500, headers), (500, headers), OK)
    assert channel.send() == 200
    assert len(channel.time.pauses) == 3
    assert channel.heard.lines == []


def test_permanent_server_error_is_returned() -> None:
    channel = FakeChannel(*[(500, {})] * 20)
    assert channel.send() == 500
    assert 1 < channel.wire.sent < 10


def test_connection_is_retried_a_few_times() -> None:
    channel = FakeChannel(ServiceRequestError("refused"), OK)
    assert channel.send() == 200
    channel = FakeChannel(*[ServiceRequestError("refused")] * 20)
    with pytest.raises(AzureError, match="refused"):
        channel.send()
    assert 1 < channel.wire.sent < 10


def test_connection_is_not_retried_beyond_the_deadline() -> None:
    channel = FakeChannel(*[ServiceRequestError("refused")] * 20, seconds=1)
    with pytest.raises(CloudError) as caught:
        channel.send()
    assert (caught.value.fault, caught.value.code) == (Fault.UNREACHABLE, "HTTP connection")
    assert channel.time.seconds <= 1


def test_ctrl_c_interrupts_a_wait() -> None:
    channel = FakeChannel(throttled("7"), OK)
    channel.limits.interrupt.set()
    with pytest.raises(CloudError) as caught:
        channel.send()
    assert caught.value.fault is Fault.INTERRUPTED


@pytest.mark.parametrize("status", [400, 403, 404, 409, 412])
def test_refusal_is_not_retried(status: int) -> None:
    channel = FakeChannel((status, {}))
    assert channel.send() == status
    assert channel.wire.sent == 1


# Azure's time
def dated(text: str) -> tuple[int, dict[str, str]]:
    return 200, {"Date": text}


def test_clock_follows_the_date_of_responses(monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time()
    monkeypatch.setattr(clients, "time", SimpleNamespace(monotonic=time))
    channel = FakeChannel(dated("Mon, 16 Nov 2026 08:00:00 GMT"))
    channel.send()
    assert channel.clock.now() == datetime(2026, 11, 16, 8, tzinfo=UTC)
    time.pause(90)
    assert channel.clock.now() == datetime(2026, 11, 16, 8, 1, 30, tzinfo=UTC)


def test_clock_is_local_before_the_first_response() -> None:
    assert abs(Clock().now() - datetime.now(UTC)) < timedelta(minutes=1)


@pytest.mark.parametrize("headers", [{}, {"Date": "yesterday"}, {"Date": ""}])
def test_response_without_a_date_keeps_the_clock(headers: dict[str, str]) -> None:
    channel = FakeChannel(dated("Mon, 16 Nov 2026 08:00:00 GMT"), (200, headers))
    channel.send()
    channel.send()
    assert channel.clock.now() - datetime(2026, 11, 16, 8, tzinfo=UTC) < timedelta(minutes=1)


REFUSALS = {
    Fault.CAPACITY: """SkuNotAvailable AllocationFailed ZonalAllocationFailed OverconstrainedAllocationRequest
    OverconstrainedZonalAllocationRequest SpotPriceGreaterThanProvidedMaxPrice""",
    Fault.QUOTA: "QuotaExceeded",
    Fault.ABSENT: "ResourceNotFound ResourceGroupNotFound NotFound",
    Fault.EXISTS: "PreconditionFailed ConditionNotMet InvalidResourceGroupLocation",
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
