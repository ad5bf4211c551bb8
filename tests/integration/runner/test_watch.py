"""Keeping watch on containers from the target itself, by a real engine: with nobody connected, through its restarts."""

import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuinfra.diagnostics import Code
from gpuinfra.runner.connection.remote_client import RemoteClient
from gpuinfra.runner.errors import JobError
from gpuinfra.runner.jobs.job import StopReason
from gpuinfra.runner.jobs.remote_runs import ended_of, forget_run, keep_run, read_state, read_usage, start_watch
from tests.integration.runner.conftest import eventually
from tests.lab import BUSYBOX, Lab

RUN = "run-1"


@pytest.fixture
def remote(lab: Lab) -> Iterator[RemoteClient]:
    with lab.connected() as connection, contextlib.closing(RemoteClient(connection)) as found:
        yield found


@pytest.fixture
def run(lab: Lab) -> Path:
    return lab.home / ".gpuinfra" / "runs" / RUN


def container(lab: Lab, script: str, *options: str) -> str:
    return lab.engine.docker("run", "-d", "--init", *options, BUSYBOX, "sh", "-c", script).stdout.strip()


def wait_until_ready(lab: Lab, id_: str) -> None:
    """Wait until a script has set what it does on a signal, and says so."""
    assert eventually(lambda: "ready" in lab.engine.docker("logs", id_).stdout)


def state(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "state.json").read_text())
    return found


def has_ended(run: Path) -> bool:
    return "ended" in state(run)


def is_over(remote: RemoteClient) -> bool:
    """As those see it who want its folder."""
    return "ended" in read_state(remote, RUN)


def test_the_end_is_written_down_with_nobody_connected(lab: Lab, run: Path) -> None:
    began = time.time()
    id_ = container(lab, "trap 'exit 7' TERM; echo ready; while :; do sleep 0.1; done")
    wait_until_ready(lab, id_)
    with lab.connected() as connection, contextlib.closing(RemoteClient(connection)) as remote:
        start_watch(remote, RUN, id_, timeout=None)
        found = read_state(remote, RUN)
        assert (found["kind"], found["container"], found["alive"]) == ("container", id_, True)
        assert ended_of(found) is None
    lab.engine.docker("kill", "--signal", "TERM", id_)
    assert eventually(lambda: has_ended(run))
    ended = ended_of(state(run))
    assert ended is not None
    assert (ended.exit_code, ended.how) == (7, StopReason.EXITED)
    assert ended.at is not None
    assert began - 1 < ended.at.timestamp() < time.time() + 1


def test_the_time_is_up_with_nobody_connected(lab: Lab, run: Path) -> None:
    id_ = container(lab, "trap 'exit 3' TERM; echo ready; while :; do sleep 0.1; done")
    wait_until_ready(lab, id_)
    with lab.connected() as connection, contextlib.closing(RemoteClient(connection)) as remote:
        start_watch(remote, RUN, id_, timeout=1.0, grace=60)
    assert eventually(lambda: has_ended(run))
    found = state(run)
    assert (found["how"], found["exitCode"]) == ("timed out", 3)


def test_gpus_are_sampled_while_it_runs(lab: Lab, remote: RemoteClient, run: Path) -> None:
    lab.nvidia.load(60, 2000)
    id_ = container(lab, "sleep 600", "--gpus", "1")
    start_watch(remote, RUN, id_, timeout=None, gpu=True)
    assert eventually(lambda: read_usage(remote, RUN) is not None)
    lab.engine.docker("kill", id_)
    assert eventually(lambda: has_ended(run))
    found = read_usage(remote, RUN)
    assert found is not None
    assert (found.peak_utilization, found.mean_utilization, found.peak_memory_mib) == (60, 60.0, 2000)
    assert found.samples >= 1
    assert found.was_used


def test_no_gpu_in_the_container_is_no_trouble(lab: Lab, remote: RemoteClient, run: Path) -> None:
    id_ = container(lab, "sleep 1")
    start_watch(remote, RUN, id_, timeout=None, gpu=True)
    assert eventually(lambda: has_ended(run))
    assert (state(run)["exitCode"], read_usage(remote, RUN)) == (0, None)


def test_one_watches_and_when_it_is_lost_another_takes_over(lab: Lab, remote: RemoteClient, run: Path) -> None:
    id_ = container(lab, "sleep 60")
    start_watch(remote, RUN, id_, timeout=None)
    start_watch(remote, RUN, id_, timeout=None)
    assert eventually(lambda: len(keepers(run)) == 1)
    [keeper] = keepers(run)
    os.kill(keeper, signal.SIGKILL)
    assert eventually(lambda: not read_state(remote, RUN)["alive"])
    assert not is_over(remote)
    start_watch(remote, RUN, id_, timeout=time.time() - state(run)["started"] + 0.5, grace=0)
    assert eventually(lambda: has_ended(run))
    assert state(run)["how"] == "timed out"
    start_watch(remote, RUN, id_, timeout=None)  # it is over: nobody has to


def keepers(run: Path) -> list[int]:
    """Processes that have the run's lock open. A child of one has it too, until it becomes another program."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(link.readlink() == run / "alive" for link in (entry / "fd").iterdir()):
                found[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    return [process for process, parent in found.items() if parent not in found]


def test_an_engine_that_crashes_and_comes_again_is_seen(lab: Lab, run: Path) -> None:
    id_ = container(lab, "sleep 600")
    with lab.connected() as connection, contextlib.closing(RemoteClient(connection)) as remote:
        start_watch(remote, RUN, id_, timeout=None)
    lab.engine.kill()
    assert not has_ended(run)
    assert keepers(run) != []
    lab.engine.start()
    assert eventually(lambda: has_ended(run), 60)
    found = state(run)
    assert found["how"] == "the engine was stopped"
    assert found["exitCode"] in {137, 143}


def test_nobody_waits_for_an_engine_when_the_run_is_gone_too(lab: Lab, run: Path) -> None:
    id_ = container(lab, "sleep 600")
    with lab.connected() as connection, contextlib.closing(RemoteClient(connection)) as remote:
        start_watch(remote, RUN, id_, timeout=None)
    assert eventually(lambda: len(keepers(run)) == 1)
    [keeper] = keepers(run)
    lab.engine.kill()
    try:
        shutil.rmtree(run)
        assert eventually(lambda: not Path(f"/proc/{keeper}/cwd").exists())
    finally:
        lab.engine.start()


def test_a_container_that_is_removed_is_lost_and_its_run_can_be_forgotten(
    lab: Lab, remote: RemoteClient, run: Path
) -> None:
    id_ = container(lab, "sleep 600")
    start_watch(remote, RUN, id_, timeout=None)
    with pytest.raises(JobError, match="has not ended"):
        forget_run(remote, RUN)
    lab.engine.docker("rm", "-f", id_)
    forget_run(remote, RUN)
    assert not run.exists()
    assert eventually(lambda: keepers(run) == [])
    assert not run.exists()


def test_nothing_is_known_of_a_run_without_a_job(remote: RemoteClient, run: Path) -> None:
    keep_run(remote, RUN)
    with pytest.raises(JobError) as caught:
        read_state(remote, RUN)
    assert caught.value.code == Code.NO_SUCH_RUN
    assert read_usage(remote, RUN) is None
    run.mkdir(parents=True)
    os.utime(run, (0, 0))
    keep_run(remote, RUN)
    assert time.time() - run.stat().st_mtime < 60
