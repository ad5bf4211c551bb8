"""The transport of every request, with a fake server. Time passes only in waits."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from azure.core.exceptions import AzureError, ServiceRequestError
from azure.core.pipeline import Pipeline
from azure.core.rest import HttpRequest

from gpuinfra.provision.azure import transport
from gpuinfra.provision.azure.transport import Clock, RequestLimits, Retries
from gpuinfra.provision.errors import CloudError, Fault
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
    monkeypatch.setattr(transport, "time", SimpleNamespace(monotonic=time))
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
