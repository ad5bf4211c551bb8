"""A deadline for calls that have none."""

import threading
import time

import pytest

from gpuinfra.models.target import Reachability, Target
from gpuinfra.runner.background import within
from gpuinfra.runner.connection import reachability

TARGET = Target("lab", "lab", "remote", "gpu.lab", 22, "me", "")


def test_a_call_gives_or_raises_what_it_would() -> None:
    assert within(5, lambda: 7) == 7
    assert within(5, lambda: None) is None
    with pytest.raises(ZeroDivisionError):
        within(5, lambda: 1 // 0)


def test_a_call_that_hangs_is_left_to_itself() -> None:
    hanging = threading.Event()
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"no answer within 0\.05 s"):
        within(0.05, lambda: hanging.wait(60))
    assert time.monotonic() - began < 30
    hanging.set()


def test_a_name_that_nobody_resolves_holds_up_no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = threading.Event()
    monkeypatch.setattr(reachability, "greet", lambda *_: hanging.wait(60))
    monkeypatch.setattr(reachability, "GRACE_SECONDS", 0.0)
    began = time.monotonic()
    found = reachability.reachability([TARGET] * (reachability.AT_ONCE + 1), 0.05)
    assert found == (Reachability("no", "timed out"),) * (reachability.AT_ONCE + 1)
    assert time.monotonic() - began < 30
    hanging.set()
