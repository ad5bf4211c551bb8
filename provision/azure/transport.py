"""Policies for every request: note Azure's time, and keep the waits that Azure asks for within the deadline."""

import time
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from azure.core.pipeline.policies import RetryPolicy, SansIOHTTPPolicy

from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.progress import Progress, Silent
from gpuinfra.provision.waiting import Deadline, Interrupt

CONNECT_SECONDS = 10
READ_SECONDS = 60
MAX_COMMAND_SECONDS = 3600.0


class RequestLimits:
    """The limits of a command's requests: deadline, interrupt, where waits are reported, and whether they may write."""

    def __init__(
        self,
        deadline: Deadline | None = None,
        progress: Progress | None = None,
        *,
        writes: bool = True,
        interrupt: Interrupt | None = None,
    ) -> None:
        self.writes = writes
        self.deadline = deadline or Deadline.after(MAX_COMMAND_SECONDS)
        self.progress: Progress = progress or Silent()
        self.interrupt = interrupt or Interrupt()


class Clock(SansIOHTTPPolicy[Any, Any]):
    """Azure's time, from the Date header of its responses, advanced by the local monotonic clock."""

    def __init__(self) -> None:
        self._seen: tuple[datetime, float] | None = None

    def on_response(self, request: Any, response: Any) -> None:  # noqa: ARG002 the base class defines the signature
        """Note the response's date."""
        try:
            date = parsedate_to_datetime(response.http_response.headers["Date"])
        except (KeyError, TypeError, ValueError):
            return
        self._seen = (date.astimezone(UTC), time.monotonic())

    def now(self) -> datetime:
        """Return Azure's time, or the local time before the first response."""
        if self._seen is None:
            return datetime.now(UTC)
        date, noted = self._seen
        return date + timedelta(seconds=time.monotonic() - noted)


class Retries(RetryPolicy[Any, Any]):
    """The SDK's retry policy, with waits that are shown and never exceed the deadline."""

    def __init__(self, limits: RequestLimits) -> None:
        super().__init__(retry_total=12, retry_connect=3, retry_read=3, retry_status=5, retry_backoff_max=20)
        self.limits = limits

    def send(self, request: Any) -> Any:
        """Send the request. In a command that must not write, raise CloudError instead of registering a provider."""
        response = super().send(request)
        if not self.limits.writes and _status(response) == 409 and "MissingSubscriptionReg" in _text(response):
            message = "the subscription does not use this resource provider yet; `gpuinfra up` registers it"
            raise CloudError(Fault.OTHER, "MissingSubscriptionRegistration", message, status=409)
        return response

    def increment(self, settings: dict[str, Any], response: Any = None, error: Any = None) -> bool:
        """Return whether to retry. Throttling does not count as a failure: only the deadline limits it."""
        if error is None and _status(response) == 429:
            settings["total"] += 1
            settings["status"] += 1
        return super().increment(settings, response=response, error=error)

    def sleep(self, settings: dict[str, Any], transport: Any, response: Any = None) -> None:  # noqa: ARG002
        """Wait as long as Azure asks. Raise CloudError if that exceeds the deadline."""
        asked = self.get_retry_after(response) if response else None
        seconds = asked or self.get_backoff_time(settings)
        status = _status(response)
        if seconds > self.limits.deadline.left:
            raise CloudError(
                Fault.THROTTLED if status == 429 else Fault.UNREACHABLE,
                "TooManyRequests" if status == 429 else f"HTTP {status or 'connection'}",
                f"Azure asks to wait {seconds:.0f} s, which is beyond the deadline of this command",
                status=status,
            )
        if asked and seconds >= 1:
            self.limits.progress.wait("Azure is throttling" if status == 429 else "Azure is busy", seconds)
        self.limits.interrupt.sleep(seconds)


def _status(response: Any) -> int | None:
    answer = getattr(response, "http_response", None)
    return answer.status_code if answer is not None else None


def _text(response: Any) -> str:
    try:
        return str(response.http_response.text())
    except (UnicodeDecodeError, ValueError):
        return ""
