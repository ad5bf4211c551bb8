"""What happens to every request. The transport is made up, and time passes only where somebody waits."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from azure.core.exceptions import AzureError, ServiceRequestError
from azure.core.pipeline import Pipeline
from azure.core.rest import HttpRequest

from gpuinfra.provision.azure import transport
from gpuinfra.provision.azure.transport import Clock, Patience, Retries
from gpuinfra.provision.errors import CloudError, Fault
from tests.unit.provision_help import Heard, Pausing, Time


class Wire:
    """A transport that gives prepared answers: a status with headers, or an error."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.sent = list(answers), 0

    def __enter__(self) -> "Wire":
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


class Line:
    """All between a request and its answer."""

    def __init__(self, *answers: Any, seconds: float = 3600) -> None:
        self.time, self.heard, self.wire, self.clock = Time(), Heard(), Wire(*answers), Clock()
        patience = Patience(self.time.deadline(seconds), self.heard)
        patience.interrupt = Pausing(self.time)
        self.patience = patience
        policies: Any = [Retries(patience), self.clock]
        self._pipeline: Any = Pipeline(self.wire, policies)  # type: ignore[arg-type]

    def send(self, method: str = "GET") -> int:
        status: int = self._pipeline.run(HttpRequest(method, "https://localhost/")).http_response.status_code
        return status


def throttled(seconds: str) -> tuple[int, dict[str, str]]:
    return 429, {"Retry-After": seconds}


OK: tuple[int, dict[str, str]] = (200, {})


def test_an_answer_is_an_answer() -> None:
    line = Line(OK)
    assert line.send() == 200
    assert (line.wire.sent, line.time.pauses) == (1, [])


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "POST", "DELETE"])
def test_a_wait_that_azure_asks_for_is_kept_and_shown(method: str) -> None:
    line = Line(throttled("7"), OK)
    assert line.send(method) == 200
    assert line.time.pauses == [7]
    assert line.heard.lines == ["Azure is throttling, 7 s"]


def test_being_asked_to_wait_is_no_failure_however_often() -> None:
    line = Line(*[throttled("2")] * 50, OK)
    assert line.send() == 200
    assert line.time.pauses == [2] * 50


def test_a_wait_beyond_the_deadline_is_not_begun() -> None:
    line = Line(throttled("30"), seconds=20)
    with pytest.raises(CloudError) as caught:
        line.send()
    assert (caught.value.fault, caught.value.status) == (Fault.THROTTLED, 429)
    assert "asks to wait 30 s, which is beyond the deadline" in caught.value.message
    assert (line.wire.sent, line.time.pauses, line.heard.lines) == (1, [], [])


def test_waits_add_up_to_the_deadline_and_not_beyond() -> None:
    line = Line(*[throttled("6")] * 10, seconds=20)
    with pytest.raises(CloudError):
        line.send()
    assert line.time.pauses == [6, 6, 6]


def test_a_busy_azure_is_asked_again() -> None:
    line = Line((503, {"Retry-After": "3"}), OK)
    assert line.send() == 200
    assert line.heard.lines == ["Azure is busy, 3 s"]


@pytest.mark.parametrize("headers", [{}, {"Retry-After": "0"}])
def test_without_a_hint_it_backs_off_in_silence(headers: dict[str, str]) -> None:
    line = Line((429, headers), (500, headers), (500, headers), OK)
    assert line.send() == 200
    assert len(line.time.pauses) == 3
    assert line.heard.lines == []


def test_an_azure_that_is_broken_for_good_is_given_up() -> None:
    line = Line(*[(500, {})] * 20)
    assert line.send() == 500
    assert 1 < line.wire.sent < 10


def test_a_connection_is_tried_again_and_then_given_up() -> None:
    line = Line(ServiceRequestError("refused"), OK)
    assert line.send() == 200
    line = Line(*[ServiceRequestError("refused")] * 20)
    with pytest.raises(AzureError, match="refused"):
        line.send()
    assert 1 < line.wire.sent < 10


def test_a_connection_is_not_waited_for_beyond_the_deadline() -> None:
    line = Line(*[ServiceRequestError("refused")] * 20, seconds=1)
    with pytest.raises(CloudError) as caught:
        line.send()
    assert (caught.value.fault, caught.value.code) == (Fault.UNREACHABLE, "HTTP connection")
    assert line.time.seconds <= 1


def test_ctrl_c_ends_a_wait() -> None:
    line = Line(throttled("7"), OK)
    line.patience.interrupt.set()
    with pytest.raises(CloudError) as caught:
        line.send()
    assert caught.value.fault is Fault.INTERRUPTED


@pytest.mark.parametrize("status", [400, 403, 404, 409, 412])
def test_a_refusal_is_not_asked_again(status: int) -> None:
    line = Line((status, {}))
    assert line.send() == status
    assert line.wire.sent == 1


# Azure's own time


def dated(text: str) -> tuple[int, dict[str, str]]:
    return 200, {"Date": text}


def test_azures_time_is_that_of_its_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time()
    monkeypatch.setattr(transport, "time", SimpleNamespace(monotonic=time))
    line = Line(dated("Mon, 16 Nov 2026 08:00:00 GMT"))
    line.send()
    assert line.clock.now() == datetime(2026, 11, 16, 8, tzinfo=UTC)
    time.pause(90)
    assert line.clock.now() == datetime(2026, 11, 16, 8, 1, 30, tzinfo=UTC)


def test_before_the_first_answer_it_is_this_computers_own() -> None:
    assert abs(Clock().now() - datetime.now(UTC)) < timedelta(minutes=1)


@pytest.mark.parametrize("headers", [{}, {"Date": "yesterday"}, {"Date": ""}])
def test_an_answer_without_a_date_says_nothing(headers: dict[str, str]) -> None:
    line = Line(dated("Mon, 16 Nov 2026 08:00:00 GMT"), (200, headers))
    line.send()
    line.send()
    assert line.clock.now() - datetime(2026, 11, 16, 8, tzinfo=UTC) < timedelta(minutes=1)
