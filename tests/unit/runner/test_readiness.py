"""Wait for a machine, with a simulated clock."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from gpuinfra.models.target import GpuFacts, Target
from gpuinfra.runner.connection.port import Completed
from gpuinfra.runner.errors import (
    Broken,
    ConnectError,
    HostKeyInvalid,
    HostKeyMismatch,
    KeyUnusable,
    LoginRefused,
    TimedOut,
    Unreachable,
)
from gpuinfra.runner.readiness import NotReady, wait_until_ready
from tests.progress import RecordedSteps

TARGET = Target("my_dsvm", "my-dsvm", "remotedocker", "203.0.113.7", 22, "azureuser", "ssh-ed25519 AAAA")
GPU = Completed(0, "Tesla T4, 535.161.08, 15360 MiB, 7.5\n", "")
NO_DRIVER = Completed(9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", "")
MISMATCH = HostKeyMismatch("203.0.113.7:22", "SHA256:ours", "SHA256:theirs")

# The answers, each from a second on.
Timeline = Sequence[tuple[float, ConnectError | Completed | None]]


@dataclass
class Machine(RecordedSteps):
    """A machine whose answers depend on the time, which passes only in pauses and attempts."""

    logins: Timeline = ((0, None),)
    answers: Timeline = ((0, GPU),)
    attempt_seconds: float = 0.0
    now: float = 1000.0
    pauses: list[float] = field(default_factory=list)
    timeouts: list[float] = field(default_factory=list)
    opened: int = 0
    closed: int = 0
    reports: list[tuple[str, ...]] = field(default_factory=list)

    def wait(self, **settings: float) -> GpuFacts:
        return wait_until_ready(
            TARGET, progress=self, clock=lambda: self.now, pause=self.pause, opener=self.open, **settings
        )

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def _now(self, timeline: Timeline) -> ConnectError | Completed | None:
        self.now += self.attempt_seconds
        return next(answer for since, answer in reversed(timeline) if self.now - 1000 >= since)

    def open(self, target: Target, timeout: float) -> "Machine":
        assert target is TARGET
        self.timeouts.append(timeout)
        answer = self._now(self.logins)
        if isinstance(answer, ConnectError):
            raise answer
        self.opened += 1
        return self

    def run(self, command: Sequence[str] | str, *, timeout: float) -> Completed:
        assert "nvidia-smi" in command
        answer = self._now(self.answers)
        if isinstance(answer, ConnectError):
            raise answer
        assert answer is not None
        return answer

    def close(self) -> None:
        self.closed += 1


def test_ready_machine_needs_no_pause() -> None:
    machine = Machine()
    assert machine.wait().models == ("Tesla T4",)
    assert machine.pauses == []
    assert (machine.opened, machine.closed) == (1, 1)
    assert machine.reports == [
        ("begin", "ssh my-dsvm", "waiting for SSH"),
        ("end", "ssh my-dsvm", "azureuser@203.0.113.7:22"),
        ("begin", "gpu my-dsvm", "waiting for nvidia-smi"),
        ("end", "gpu my-dsvm", "Tesla T4, 15360 MiB, driver 535.161.08"),
    ]


def test_pauses_grow_from_a_fifth_of_a_second_to_two() -> None:
    machine = Machine([(0, Unreachable("no")), (60, None)])
    machine.wait()
    assert machine.pauses[:3] == pytest.approx([0.2, 0.3, 0.45])
    assert machine.pauses[-2:] == [2.0, 2.0]
    assert sum(machine.pauses) < 63


def test_progress_shows_each_stage_of_a_boot() -> None:
    machine = Machine(
        [(0, Unreachable("no")), (30, MISMATCH), (80, LoginRefused("no")), (120, None)],
        [(0, NO_DRIVER), (200, GPU)],
    )
    machine.wait()
    doings = [words[2] for words in machine.reports if words[0] == "begin"]
    assert doings == [
        *("waiting for SSH", "waiting for its host key", "waiting for its login key"),
        "waiting for nvidia-smi",
    ]
    assert machine.opened == machine.closed == 1


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (Unreachable("no"), 600),
        (Broken("no"), 600),
        (LoginRefused("no"), 180),
        (MISMATCH, 60),
        (KeyUnusable("no"), 0),
        (HostKeyInvalid("no"), 0),
    ],
)
def test_each_error_has_its_own_grace_period(error: ConnectError, seconds: float) -> None:
    machine = Machine([(0, error)])
    with pytest.raises(NotReady) as caught:
        machine.wait()
    assert caught.value.stage == "ssh"
    assert str(error) in caught.value.reason
    assert machine.now - 1000 == pytest.approx(seconds, abs=2.1)
    assert machine.reports[-1] == ("fail", "ssh my-dsvm", caught.value.reason)


def test_grace_period_starts_with_the_first_occurrence() -> None:
    machine = Machine([(0, Unreachable("no")), (300, MISMATCH)])
    with pytest.raises(NotReady, match="SHA256:theirs"):
        machine.wait()
    assert machine.now - 1000 == pytest.approx(360, abs=2.1)


def test_no_attempt_starts_after_the_deadline() -> None:
    machine = Machine([(0, Unreachable("no"))], attempt_seconds=19)
    with pytest.raises(NotReady, match=r"\(waited 100 s\)"):
        machine.wait(ssh_seconds=100)
    assert machine.now - 1000 < 100 + 20
    assert max(machine.timeouts) == 20
    assert machine.timeouts[-1] < 20


def test_gpu_timeout_quotes_nvidia_smi() -> None:
    machine = Machine(answers=[(0, NO_DRIVER)])
    with pytest.raises(NotReady) as caught:
        machine.wait()
    error = caught.value
    assert error.stage == "gpu"
    assert error.reason.startswith(
        "the NVIDIA driver is not loaded; nvidia-smi exited with code 9 and printed: NVIDIA-SMI has"
    )
    assert error.help == "look for yourself: `gpuinfra ssh my-dsvm -- nvidia-smi`"
    assert machine.now - 1000 == pytest.approx(300, abs=2.1)
    assert machine.opened == machine.closed == 1


def test_machine_that_restarts_for_its_driver_is_connected_again() -> None:
    machine = Machine(
        [(0, None), (5, Unreachable("restarting")), (60, None)],
        [(0, NO_DRIVER), (4, Broken("gone")), (60, GPU)],
    )
    machine.wait()
    assert machine.opened == machine.closed == 2


def test_lost_machine_fails_at_the_ssh_stage() -> None:
    machine = Machine([(0, None), (5, Unreachable("gone"))], [(0, NO_DRIVER), (4, Broken("gone"))])
    with pytest.raises(NotReady) as caught:
        machine.wait(gpu_seconds=100)
    assert (caught.value.stage, caught.value.reason) == ("ssh", "gone (waited 100 s)")
    assert machine.reports[-1][:2] == ("fail", "gpu my-dsvm")


def test_slow_driver_keeps_the_connection() -> None:
    machine = Machine(answers=[(0, TimedOut("slow")), (20, GPU)])
    machine.wait()
    assert machine.opened == 1


@pytest.mark.parametrize("wait", [lambda machine: machine.wait(), lambda machine: machine.wait(gpu_seconds=math.inf)])
def test_interrupted_wait_closes_the_connection(wait: Callable[[Machine], object]) -> None:
    class Interrupted(Machine):
        def pause(self, seconds: float) -> None:
            raise KeyboardInterrupt

    machine = Interrupted(answers=[(0, NO_DRIVER)])
    with pytest.raises(KeyboardInterrupt):
        wait(machine)
    assert machine.closed == 1
