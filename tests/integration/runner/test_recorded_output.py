"""What a container prints arrives when it prints it, and is complete if the process that records it ends."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuinfra.models.run import STDERR, STDOUT, Frame
from gpuinfra.remote import recorder
from gpuinfra.runner.connection.local import LocalConnection
from gpuinfra.runner.connection.remote_client import RemoteClient
from gpuinfra.runner.container import ContainerJob, start_container
from gpuinfra.runner.docker.client import Engine
from gpuinfra.runner.job import Position
from gpuinfra.runner.job_spec import StartRequest
from gpuinfra.runner.remote_runs import start_recorder
from tests.integration.runner.conftest import eventually
from tests.integration.runner.test_container_jobs import printed, shell
from tests.lab import Lab

WAITS = "until [ -e /in/{} ]; do sleep 0.02; done".format
Start = Callable[[StartRequest], ContainerJob]


@pytest.fixture(params=["local", "ssh"])
def start(request: pytest.FixtureRequest, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start a recorded container on the lab's engine, from this computer and over SSH."""
    monkeypatch.setenv("DOCKER_HOST", lab.engine.address)
    monkeypatch.setenv("HOME", str(lab.home))
    with contextlib.ExitStack() as stack:
        there = stack.enter_context(lab.connected()) if request.param == "ssh" else LocalConnection()
        engine = stack.enter_context(contextlib.closing(Engine(there, 20)))
        remote = stack.enter_context(contextlib.closing(RemoteClient(there)))

        def started(order: StartRequest) -> ContainerJob:
            begin: Callable[[ContainerJob], None] = lambda job: start_recorder(remote, order.run, job.id)  # noqa: E731
            job = start_container(engine, order, before_start=begin)
            return ContainerJob(engine, job.id, remote=remote, run=order.run)

        yield started


def until(frames: Iterator[Frame], ending: bytes) -> bytes:
    """Return what is printed until it ends so."""
    found = b""
    while not found.endswith(ending):
        found += next(frames).data
    return found


def test_unfinished_lines_arrive_when_they_are_printed(start: Start, tmp_path: Path) -> None:
    script = rf"""
    printf 'Name? '; {WAITS("asked")}
    for i in 1 2 3; do printf '\r%s/3' $i >&2; {WAITS("$i")}; done
    echo; exit 4"""
    job = start(shell(script, mounts=((str(tmp_path), "/in"),)))
    frames = job.frames(Position())
    assert until(frames, b"Name? ") == b"Name? "
    (tmp_path / "asked").touch()
    for number in (b"1", b"2", b"3"):
        assert until(frames, b"/3") == b"\r%s/3" % number
        (tmp_path / number.decode()).touch()
    assert b"".join(frame.data for frame in frames) == b"\n"
    ended = job.ended()
    assert ended is not None
    assert ended.exit_code == 4


def test_output_is_complete_if_its_recorder_is_killed(start: Start, lab: Lab, tmp_path: Path) -> None:
    script = rf"""
    for i in $(seq 2000); do echo line $i; done; echo wrong >&2; printf 'half '
    {WAITS("killed")}; echo done; printf end"""
    order = shell(script, mounts=((str(tmp_path), "/in"),))
    job = start(order)
    got: list[Frame] = []
    place, frames = Position(), job.frames(Position())
    while not printed(got).endswith(b"half ") or not printed(got, STDERR):
        got.append(next(frames))
        place = place.after(got[-1])
    _kill_recorder(lab)
    (tmp_path / "killed").touch()
    got += frames
    lines = b"".join(b"line %d\n" % number for number in range(1, 2001))
    assert printed(got) == lines + b"half done\nend"
    assert printed(got, STDERR) == b"wrong\n"
    assert [frame.time for frame in got] == sorted(frame.time for frame in got)
    # After a reconnect, too: from a position in the recorded part, and from the end.
    later = b"".join(frame.data for frame in job.frames(place) if frame.stream == STDOUT)
    assert later == b"done\nend"
    end = Position(10**6, got[-1].time, len(printed(got)), len(printed(got, STDERR)))
    assert list(job.frames(end)) == []


def test_repeated_start_of_the_recorder_does_nothing(start: Start, lab: Lab, tmp_path: Path) -> None:
    order = shell(f"echo one; {WAITS('go')}; echo two", mounts=((str(tmp_path), "/in"),))
    job = start(order)
    frames = job.frames(Position())
    assert until(frames, b"one\n") == b"one\n"
    assert job._remote is not None
    start_recorder(job._remote, order.run, job.id)
    (tmp_path / "go").touch()
    assert b"".join(frame.data for frame in frames) == b"two\n"


def _kill_recorder(lab: Lab) -> None:
    """Kill the processes that record, which hold `docker system dial-stdio` as a child."""
    (file,) = (lab.home / ".gpuinfra" / "runs").glob("*/recorder")
    holders = [int(each.parts[2]) for each in Path("/proc").glob("[0-9]*/fd/*") if _leads_to(each, file)]
    for process in holders:
        os.kill(process, signal.SIGKILL)
    assert eventually(lambda: not recorder.is_recording(file.parent.name))


def _leads_to(link: Path, file: Path) -> bool:
    with contextlib.suppress(OSError):
        return link.readlink() == file
    return False
