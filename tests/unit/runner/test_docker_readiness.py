"""Wait for Docker on a booting machine, with a simulated clock."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from gpuinfra.models.target import Target, TargetCheck
from gpuinfra.runner.connection.port import Completed
from gpuinfra.runner.docker.check import MARK
from gpuinfra.runner.errors import ConnectError, Unreachable
from gpuinfra.runner.readiness import DOCKER, ENGINE_SECONDS, SSH, NotReady, wait_for_docker
from tests.progress import RecordedSteps

TARGET = Target("my_dsvm", "my-dsvm", "remotedocker", "203.0.113.7", 22, "azureuser", "ssh-ed25519 AAAA")
WORKS = (0, "engine 27.5.1")
DENIED = (1, "permission denied while trying to connect to the Docker daemon socket")
STOPPED = (1, "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?")
MISSING = (127, "sh: docker: not found")
Answer = tuple[int, str] | ConnectError


@dataclass
class Machine(RecordedSteps):
    """A machine whose Docker answers depend on the time, which passes only in pauses."""

    answers: Sequence[tuple[float, Answer]]
    boots: float = 0.0
    now: float = 1000.0
    logins: int = 0
    reports: list[tuple[str, ...]] = field(default_factory=list)

    def wait(self, *, simulated: bool = False) -> TargetCheck:
        return wait_for_docker(
            TARGET,
            seconds=300,
            progress=self,
            simulated=simulated,
            clock=lambda: self.now,
            pause=self.pause,
            opener=self.open,
        )

    def pause(self, seconds: float) -> None:
        self.now += seconds

    def open(self, target: Target, timeout: float) -> "Machine":
        del target, timeout
        self.logins += 1
        return self

    def run(self, command: Sequence[str] | str, *, timeout: float) -> Completed:
        del command, timeout
        answer = next(answer for since, answer in reversed(self.answers) if self.now - 1000 >= since)
        if isinstance(answer, ConnectError):
            raise answer
        status = "running" if self.now - 1000 < self.boots else "done"
        said = f"\n{MARK} docker {answer[0]}\n{answer[1]}\n\n{MARK} boot 0\nstatus: {status}\n"
        return Completed(0, said, "")

    def close(self) -> None:
        pass


def test_working_docker_is_checked_once() -> None:
    machine = Machine([(0, WORKS)])
    assert machine.wait().passed
    assert machine.logins == 1
    assert machine.reports[-1] == ("end", "docker my-dsvm", "Docker Engine 27.5.1")


@pytest.mark.parametrize("before", [DENIED, STOPPED, MISSING, Unreachable("no answer")])
def test_each_check_of_a_booting_machine_logs_in_again(before: Answer) -> None:
    machine = Machine([(0, before), (100, WORKS)], boots=101)
    assert machine.wait().passed
    assert machine.logins > 10


def test_new_membership_in_the_docker_group_is_seen_by_the_next_login() -> None:
    machine = Machine([(0, DENIED), (0.1, WORKS)])
    assert machine.wait().passed
    assert machine.logins == 2


def test_denied_docker_after_the_boot_fails_with_the_usermod_command() -> None:
    machine = Machine([(0, DENIED)], boots=20)
    with pytest.raises(NotReady) as caught:
        machine.wait()
    assert caught.value.stage == DOCKER
    assert "`sudo usermod -aG docker azureuser`" in str(caught.value.help)
    assert "gpuinfra ssh my-dsvm" in str(caught.value.help)
    assert 20 <= machine.now - 1000 < 30
    assert machine.reports[-1][0] == "fail"


def test_engine_may_start_shortly_after_the_boot() -> None:
    assert Machine([(0, STOPPED), (ENGINE_SECONDS - 5, WORKS)]).wait().passed
    machine = Machine([(0, STOPPED)])
    with pytest.raises(NotReady, match="Cannot connect to the Docker daemon"):
        machine.wait()
    assert machine.now - 1000 < ENGINE_SECONDS + 5


def test_wait_for_a_boot_without_end_times_out() -> None:
    machine = Machine([(0, DENIED)], boots=10_000)
    with pytest.raises(NotReady):
        machine.wait()
    assert 300 <= machine.now - 1000 < 310


def test_lost_connection_fails_at_the_ssh_stage() -> None:
    with pytest.raises(NotReady) as caught:
        Machine([(0, Unreachable("no answer"))]).wait()
    assert caught.value.stage == SSH


@pytest.mark.parametrize("answer", [STOPPED, MISSING])
def test_simulated_machine_without_an_engine_fails_the_check_at_once(answer: Answer) -> None:
    machine = Machine([(0, answer)])
    assert not machine.wait(simulated=True).passed
    assert machine.now == 1000
    outcome, _, reason = machine.reports[-1]
    assert outcome == "fail"
    assert "no Docker Engine on this computer" in reason


def test_simulated_machine_that_denies_docker_is_not_ready() -> None:
    with pytest.raises(NotReady):
        Machine([(0, DENIED)]).wait(simulated=True)
