"""Ctrl-C while a job is followed."""

from types import SimpleNamespace
from typing import Any

import pytest

from gpuinfra.app import job_session
from gpuinfra.app.job_session import JobSession
from gpuinfra.runner import progress


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def test_second_ctrl_c_waits_for_the_kill_as_long_as_the_grace_period(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may need seconds to kill the job. Without the client, the job runs until its grace period ends."""
    waited: list[float] = []
    monkeypatch.setattr(progress, "in_thread", lambda *_: SimpleNamespace(result=waited.append))
    record = SimpleNamespace(run=SimpleNamespace(state=SimpleNamespace(is_over=False)), change=lambda **_: None)
    link = SimpleNamespace(retry_policy=lambda *_, **__: None, retry=interrupt)
    session: Any = SimpleNamespace(frontend=SimpleNamespace(note=lambda _: None))
    following: Any = SimpleNamespace(record=record, link=link)
    with pytest.raises(KeyboardInterrupt):
        JobSession._cancel(session, following)
    assert waited == [job_session.CANCEL_GRACE]
