"""The watcher of a container on the target, with a real engine: without a connection, and across its restarts."""

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
from gpuinfra.runner.job import StopReason
from gpuinfra.runner.remote_runs import forget_run, keep_run, parse_job_end, read_state, read_usage, start_watcher
from tests.integration.runner.conftest import eventually
from tests.lab import BUSYBOX, Lab
from tests.variants import variant

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
    """Wait until a script has set its signal handler and printed `ready`."""
    assert eventually(lambda: "ready" in lab.engine.docker("logs", id_).stdout)


def state(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "state.json").read_text())
    return found


def has_ended(run: Path) -> bool:
    return "ended" in state(run)


def is_over(remote: RemoteClient) -> bool:
    """Return whether the run has ended according to the target."""
    return "ended" in read_state(remote, RUN)


def test_watcher_records_the_end_without_a_connection(lab: Lab, run: Path) -> None:
    began = time.time()
    id_ = container(lab, "trap 'exit 7' TERM; echo ready; while :; do sleep 0.1; done")
    wait_until_ready(lab, id_)
    with lab.connected() as connection, contextlib.closing(RemoteClient(connection)) as remote:
        start_watcher(remote, RUN, id_, timeout=None)
        found = read_state(remote, RUN)
        assert (found["kind"], found["container"], found["alive"]) == ("container", id_, True)
        assert parse_job_end(found) is None
    lab.engine.docker("kill", "--signal", "TERM", id_)
    assert eventually(lambda: has_ended(run))
    ended = parse_job_end(state(run))
    assert ended is not None
    assert (ended.exit_code, ended.stop_reason) == (7, StopReason.EXITED)
    assert ended.at is not None
    assert began - 1 < ended.at.timestamp() < time.time() + 1


def test_watcher_enforces_the_time_limit_without_a_connection(lab: Lab, run: Path) -> None:
    id_ = container(lab, "trap 'exit 3' TERM; echo ready; while :; do sleep 0.1; done")
    wait_until_ready(lab, id_)
    with lab.connected() as connection, contextlib.closing(RemoteClient(connection)) as remote:
        start_watcher(remote, RUN, id_, timeout=1.0, grace=60)
    assert eventually(lambda: has_ended(run))
    found = state(run)
    assert (found["how"], found["exitCode"]) == ("timed out", 3)


def test_watcher_samples_the_gpus(lab: Lab, remote: RemoteClient, run: Path) -> None:
    lab.nvidia.load(60, 2000)
    id_ = container(lab, "sleep 600", "--gpus", "1")
    start_watcher(remote, RUN, id_, timeout=None, gpu=True)
    assert eventually(lambda: read_usage(remote, RUN) is not None)
    lab.engine.docker("kill", id_)
    assert eventually(lambda: has_ended(run))
    found = read_usage(remote, RUN)
    assert found is not None
    assert (found.peak_utilization, found.mean_utilization, found.peak_memory_mib) == (60, 60.0, 2000)
    assert found.samples >= 1
    assert found.was_used


@variant
def test_container_without_a_gpu_has_no_samples(lab: Lab, remote: RemoteClient, run: Path) -> None:
    id_ = container(lab, "sleep 1")
    start_watcher(remote, RUN, id_, timeout=None, gpu=True)
    assert eventually(lambda: has_ended(run))
    assert (state(run)["exitCode"], read_usage(remote, RUN)) == (0, None)


def test_only_one_watcher_runs_and_a_killed_one_is_replaced(lab: Lab, remote: RemoteClient, run: Path) -> None:
    id_ = container(lab, "sleep 60")
    start_watcher(remote, RUN, id_, timeout=None)
    start_watcher(remote, RUN, id_, timeout=None)
    assert eventually(lambda: len(watchers(run)) == 1)
    [watcher] = watchers(run)
    os.kill(watcher, signal.SIGKILL)
    assert eventually(lambda: not read_state(remote, RUN)["alive"])
    assert not is_over(remote)
    start_watcher(remote, RUN, id_, timeout=time.time() - state(run)["started"] + 0.5, grace=0)
    assert eventually(lambda: has_ended(run))
    assert state(run)["how"] == "timed out"
    start_watcher(remote, RUN, id_, timeout=None)  # does nothing: the run has ended


def watchers(run: Path) -> list[int]:
    """Return the processes that have the run's lock open, without forked children."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(link.readlink() == run / "alive" for link in (entry / "fd").iterdir()):
                found[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    return [process for process, parent in found.items() if parent not in found]


def test_watcher_records_a_crash_of_the_engine(lab: Lab, run: Path) -> None:
    id_ = container(lab, "sleep 600")
    with lab.connected() as connection, contextlib.closing(RemoteClient(connection)) as remote:
        start_watcher(remote, RUN, id_, timeout=None)
    lab.engine.kill()
    assert not has_ended(run)
    assert watchers(run) != []
    lab.engine.start()
    assert eventually(lambda: has_ended(run), 60)
    found = state(run)
    assert found["how"] == "the engine was stopped"
    assert found["exitCode"] in {137, 143}


def test_watcher_ends_if_its_run_is_deleted_while_the_engine_is_down(lab: Lab, run: Path) -> None:
    id_ = container(lab, "sleep 600")
    with lab.connected() as connection, contextlib.closing(RemoteClient(connection)) as remote:
        start_watcher(remote, RUN, id_, timeout=None)
    assert eventually(lambda: len(watchers(run)) == 1)
    [watcher] = watchers(run)
    lab.engine.kill()
    try:
        shutil.rmtree(run)
        assert eventually(lambda: not Path(f"/proc/{watcher}/cwd").exists())
    finally:
        lab.engine.start()


def test_run_of_a_removed_container_can_be_forgotten(lab: Lab, remote: RemoteClient, run: Path) -> None:
    id_ = container(lab, "sleep 600")
    start_watcher(remote, RUN, id_, timeout=None)
    with pytest.raises(JobError, match="has not ended"):
        forget_run(remote, RUN)
    lab.engine.docker("rm", "-f", id_)
    forget_run(remote, RUN)
    assert not run.exists()
    assert eventually(lambda: watchers(run) == [])
    assert not run.exists()


def test_run_without_a_job_has_no_state(remote: RemoteClient, run: Path) -> None:
    keep_run(remote, RUN)
    with pytest.raises(JobError) as caught:
        read_state(remote, RUN)
    assert caught.value.code == Code.NO_SUCH_RUN
    assert read_usage(remote, RUN) is None
    run.mkdir(parents=True)
    os.utime(run, (0, 0))
    keep_run(remote, RUN)
    assert time.time() - run.stat().st_mtime < 60
