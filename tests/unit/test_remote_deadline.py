"""A machine that answers too slowly."""

import pytest

from gpuinfra.runner.connection import remote_client
from gpuinfra.runner.errors import TimedOut
from tests.unit.test_remote_answers import Client, Machine


def test_byte_every_two_seconds_does_not_defeat_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine({"runs": ["x"] * 100}, pause=2.0)
    monkeypatch.setattr(remote_client, "monotonic", lambda: machine.clock)
    with pytest.raises(TimedOut, match="60 s"):
        Client(machine).ask("runs")
    assert machine.clock < 70


def test_answer_within_the_limit_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine({}, pause=2.0)
    monkeypatch.setattr(remote_client, "monotonic", lambda: machine.clock)
    assert Client(machine).ask("run-keep") == {}


def test_greeting_without_end_does_not_defeat_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine("x" * 1000, pause=2.0)
    monkeypatch.setattr(remote_client, "monotonic", lambda: machine.clock)
    with pytest.raises(TimedOut, match="60 s"):
        Client(machine)._take().start(b"source")
    assert machine.clock < 70
