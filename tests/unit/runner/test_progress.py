"""Deadlines for calls without a timeout."""

import threading
import time

import pytest

from gpuinfra.models.target import Reachability, Target
from gpuinfra.runner.connection import handshake
from gpuinfra.runner.progress import within

TARGET = Target("lab", "lab", "remote", "gpu.lab", 22, "me", "")


def test_within_returns_the_result_or_raises_the_error() -> None:
    assert within(5, lambda: 7) == 7
    assert within(5, lambda: None) is None
    with pytest.raises(ZeroDivisionError):
        within(5, lambda: 1 // 0)


def test_within_raises_a_timeout_and_leaves_the_call_running() -> None:
    hanging = threading.Event()
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"no answer within 0\.05 s"):
        within(0.05, lambda: hanging.wait(60))
    assert time.monotonic() - began < 30
    hanging.set()


def test_hanging_name_resolution_does_not_block_the_other_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = threading.Event()
    monkeypatch.setattr(handshake, "open_transport", lambda *_: hanging.wait(60))
    monkeypatch.setattr(handshake, "GRACE_SECONDS", 0.0)
    began = time.monotonic()
    found = handshake.reachability([TARGET] * (handshake.MAX_THREADS + 1), 0.05)
    assert found == (Reachability("no", "timed out"),) * (handshake.MAX_THREADS + 1)
    assert time.monotonic() - began < 30
    hanging.set()
