"""Jobs in containers of a real engine, on this computer and over a real OpenSSH server."""

import contextlib
import hashlib
import itertools
import os
import threading
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpuinfra.models.run import STDERR, STDOUT, Frame
from gpuinfra.runner import container
from gpuinfra.runner.connection.local import LocalConnection
from gpuinfra.runner.connection.remote_client import RemoteClient
from gpuinfra.runner.container import ContainerJob, container_config, start_container
from gpuinfra.runner.docker.client import Engine
from gpuinfra.runner.errors import Broken, ConnectError, JobError
from gpuinfra.runner.job import Job, Position, StopReason
from gpuinfra.runner.job_spec import Gpus, StartRequest
from gpuinfra.runner.remote_runs import start_recorder
from tests.integration.runner.conftest import WAIT_SECONDS, eventually
from tests.lab import BUSYBOX, PYTHON, Lab
from tests.variants import variants

LOCAL, REMOTE = "on this computer", "over ssh"


@pytest.fixture(params=variants(REMOTE, LOCAL))
def engine(request: pytest.FixtureRequest, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """The lab's engine, local and over SSH."""
    monkeypatch.setenv("DOCKER_HOST", lab.engine.address)
    with contextlib.ExitStack() as stack:
        there = stack.enter_context(lab.connected()) if request.param == REMOTE else LocalConnection()
        yield stack.enter_context(contextlib.closing(Engine(there, 20)))


@pytest.fixture
def mortal(lab: Lab) -> Iterator[Lab]:
    """The lab, whose engine is started again after the test."""
    yield lab
    if not lab.engine.is_running:
        lab.engine.start()


@pytest.fixture
def remote(lab: Lab) -> Iterator[Engine]:
    """The lab's engine over SSH."""
    with lab.connected() as connection, contextlib.closing(Engine(connection, 20)) as engine:
        yield engine


def order(*command: str, **more: Any) -> StartRequest:
    return StartRequest(**{"run": uuid.uuid4().hex, "command": command, "folder": "/", "image": BUSYBOX, **more})


def shell(script: str, **more: Any) -> StartRequest:
    return order("sh", "-c", script, **more)


def printed(frames: list[Frame], stream: int = STDOUT) -> bytes:
    return b"".join(frame.data for frame in frames if frame.stream == stream)


def followed(job: Job) -> list[Frame]:
    return list(job.frames(Position()))


def test_job_runs_with_its_folder_variables_and_mounts(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("seen")
    job: Job = start_container(
        engine,
        shell(
            'pwd; cat in; echo "$A-$B-$NVIDIA_VISIBLE_DEVICES"; echo wrong >&2; echo out > made; exit 7',
            folder="/project",
            environment={"A": "a b"},
            secrets={"B": "hunter2"},
            mounts=((str(tmp_path), "/project"),),
            labels={"gpuinfra.project": "p"},
        ),
    )
    frames = followed(job)
    assert printed(frames) == b"/project\nseena b-hunter2-void\n"
    assert printed(frames, STDERR) == b"wrong\n"
    assert (tmp_path / "made").read_text() == "out\n"
    ended = job.ended()
    assert ended is not None
    assert (ended.exit_code, ended.stop_reason) == (7, StopReason.EXITED)
    job.remove()
    job.remove()


def test_job_without_output_has_an_empty_log(engine: Engine) -> None:
    engine.prepare()
    job = start_container(engine, order("true"))
    assert followed(job) == []
    ended = job.ended()
    assert ended is not None
    assert ended.exit_code == 0


def test_entrypoint_of_the_image_does_not_replace_the_command(remote: Engine, lab: Lab) -> None:
    from tests.images import busybox_archive

    lab.engine.add_image("greeting:test", busybox_archive(), 'ENTRYPOINT ["echo", "swallowed"]', "ENV KEPT=yes")
    job = start_container(remote, shell("echo $KEPT", image="greeting:test"))
    assert printed(followed(job)) == b"yes\n"


def test_long_lines_and_binary_output_are_unchanged(engine: Engine, tmp_path: Path) -> None:
    content = os.urandom(300_000) + b"x" * 10_000_000 + b"\n" + bytes(range(256))
    (tmp_path / "data").write_bytes(content)
    job = start_container(engine, order("cat", "/in/data", mounts=((str(tmp_path), "/in"),)))
    frames = followed(job)
    assert hashlib.sha256(printed(frames)).digest() == hashlib.sha256(content).digest()
    # Resume in the middle of a line.
    half = len(frames) - 100
    place = Position()
    for frame in frames[:half]:
        place = place.after(frame)
    assert printed(list(job.frames(place))) == printed(frames[half:])


@pytest.mark.parametrize("is_recorded", [True, False])
def test_no_line_is_lost_or_doubled_when_the_connection_is_lost_three_times(lab: Lab, is_recorded: bool) -> None:
    count, cuts = 50_000, 3
    script = (
        "import sys, time\n"
        f"for i in range(1, {count} + 1):\n"
        "    print('line', i, 'x' * 80, flush=True)\n"
        "    if i % 10 == 0: print(i, file=sys.stderr, flush=True)\n"
        "    if i % 1000 == 0: time.sleep(0.02)\n"
        "sys.exit(3)"
    )
    wanted = order("python3", "-c", script, image=PYTHON)
    got: list[Frame] = []
    place, tries, identity = Position(), 0, ""
    while True:
        tries += 1
        with lab.connected() as connection, contextlib.closing(Engine(connection, 20)) as engine:
            remote = RemoteClient(connection) if is_recorded else None
            if not identity:
                identity = start_container(engine, wanted, before_start=partial(_record, remote, wanted.run)).id
            job = ContainerJob(engine, identity, remote=remote, run=wanted.run)
            try:
                for number, frame in enumerate(job.frames(place)):
                    got.append(frame)
                    place = place.after(frame)
                    # Recorded frames are blocks of lines.
                    if number == (3 if is_recorded else 1000) and tries <= cuts:
                        lab.server.cut()  # data in transit still arrives
            except ConnectError:
                continue
            ended = job.ended()
            job.remove()
            break
    assert tries == cuts + 1
    assert printed(got) == b"".join(b"line %d %s\n" % (number, b"x" * 80) for number in range(1, count + 1))
    assert printed(got, STDERR) == b"".join(b"%d\n" % number for number in range(10, count + 1, 10))
    assert all(before.time <= after.time for before, after in itertools.pairwise(got))
    assert ended is not None
    assert ended.exit_code == 3


def _record(remote: RemoteClient | None, run: str, job: ContainerJob) -> None:
    if remote:
        start_recorder(remote, run, job.id)


@pytest.mark.parametrize("way", variants("kill", "stop"))
def test_restarted_engine_sends_all_earlier_output(mortal: Lab, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setenv("DOCKER_HOST", mortal.engine.address)
    with contextlib.closing(Engine(LocalConnection(), 20)) as engine, contextlib.ExitStack() as stack:
        connection = stack.enter_context(mortal.connected())
        over_ssh = Engine(connection, 20, expected=True)
        over_ssh.prepare()
        job = start_container(engine, shell("i=0; while true; do i=$((i+1)); echo $i; sleep 0.02; done"))
        got: list[Frame] = []

        def read() -> None:
            for frame in job.frames(Position()):
                got.append(frame)
                if len(got) == 10:
                    getattr(mortal.engine, way)()

        with pytest.raises(ConnectError):
            read()
        with pytest.raises(ConnectError):
            job.ended()
        with pytest.raises(ConnectError):
            ContainerJob(over_ssh, job.id).ended()
        mortal.engine.start()
        place = Position()
        for frame in got:
            place = place.after(frame)
        if not connection.is_open:  # a slow computer may have lost the connection
            over_ssh = Engine(stack.enter_context(mortal.connected()), 20, expected=True)
        # The earlier streams are closed, which must not cause an error.
        got += ContainerJob(over_ssh, job.id).frames(place)
        numbers = [int(frame.data) for frame in got]
        assert numbers == list(range(1, len(numbers) + 1))
        ended = job.ended()
        assert ended is not None
        assert ended.stop_reason is StopReason.ENGINE_STOPPED
        over_ssh.close()
        job.remove()


def test_job_that_another_user_killed_is_not_blamed_on_the_engine(remote: Engine, lab: Lab) -> None:
    job = start_container(remote, order("sleep", "60"))
    lab.engine.docker("kill", job.id)
    assert followed(job) == []
    ended = job.ended()
    assert ended is not None
    assert (ended.exit_code, ended.stop_reason) == (137, StopReason.EXITED)


def test_silent_job_is_followed(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "SILENCE_SECONDS", 0.3)
    job = start_container(engine, shell("echo one; sleep 1; echo two"))
    assert printed(followed(job)) == b"one\ntwo\n"


def test_repeated_start_returns_the_running_job(engine: Engine, tmp_path: Path) -> None:
    again = shell("echo begun >> /out/file; sleep 60", mounts=((str(tmp_path), "/out"),))
    first, second = start_container(engine, again), start_container(engine, again)
    assert first.id == second.id
    assert eventually((tmp_path / "file").exists)
    assert first.ended() is None
    first.cancel(0)
    assert start_container(engine, again).ended() is not None
    assert (tmp_path / "file").read_text() == "begun\n"


def test_created_container_that_was_not_started_is_started(remote: Engine) -> None:
    wanted = shell("echo begun")
    made = container._create(remote, wanted, container_config(wanted))
    assert made is not None
    ended = made.ended()
    assert ended is not None
    assert ended.stop_reason is StopReason.LOST
    job = start_container(remote, wanted)
    assert job.id == made.id
    assert printed(followed(job)) == b"begun\n"


def test_container_of_another_run_is_not_used(remote: Engine, lab: Lab) -> None:
    wanted = order("true")
    lab.engine.docker("create", "--name", f"gpuinfra-{wanted.run}", BUSYBOX, "true")
    with pytest.raises(JobError, match="name is taken"):
        start_container(remote, wanted)


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"image": "example/missing:1"}, "no-image", "example/missing:1"),
        ({"mounts": (("/no/such/folder", "/in"),)}, "job-failed", "/no/such/folder"),
        ({"gpus": Gpus(ids=("9",))}, "no-gpu", "starting the container"),
        ({"memory": 1}, "job-failed", "memory"),
    ],
)
def test_container_that_cannot_start_is_reported_and_removed(
    engine: Engine, lab: Lab, changes: dict[str, Any], code: str, words: str
) -> None:
    with pytest.raises(JobError) as caught:
        start_container(engine, order("true", **changes))
    assert caught.value.code == code
    assert words.casefold() in str(caught.value).casefold()
    assert lab.engine.containers() == []
    assert not Path("/no").exists()


def test_job_with_gpus_sees_them(engine: Engine) -> None:
    job = start_container(engine, order("nvidia-smi", "-L", gpus=Gpus(count=1)))
    assert b"simulated" in printed(followed(job)).lower()


def test_cancelled_job_ends(engine: Engine) -> None:
    job = start_container(engine, order("sleep", "60"))
    job.cancel(20)
    ended = job.ended()
    assert ended is not None
    assert ended.exit_code == 143
    job.cancel(20)
    job.remove()
    job.cancel(20)


def test_job_that_ignores_sigterm_is_killed(remote: Engine) -> None:
    job = start_container(remote, shell("trap '' TERM; echo deaf; while true; do sleep 0.1; done"))
    assert next(job.frames(Position())).data == b"deaf\n"
    job.cancel(1)
    ended = job.ended()
    assert ended is not None
    assert ended.exit_code == 137


def test_job_over_its_memory_limit_is_out_of_memory(remote: Engine, lab: Lab, tmp_path: Path) -> None:
    # Engines monitor the memory only a moment after the start. An engine that sees the end before the memory event
    # never reports the reason, so the test waits for each of them.
    waits = "until [ -e /in/{} ]; do sleep 0.05; done".format
    script = f"{waits('begin')}; busybox tail /dev/zero; {waits('over')}; exit 137"
    job = start_container(remote, shell(script, memory=16 << 20, mounts=((str(tmp_path), "/in"),)))
    (tmp_path / "begin").touch()
    with (
        lab.engine.api() as api,
        contextlib.closing(api.events(since=0, filters={"container": job.id, "event": "oom"})) as events,
    ):
        next(iter(events))
    (tmp_path / "over").touch()
    followed(job)
    ended = job.ended()
    assert ended is not None
    assert (ended.exit_code, ended.stop_reason) == (137, StopReason.OUT_OF_MEMORY)


def test_removed_container_is_lost(engine: Engine) -> None:
    job = start_container(engine, order("sleep", "60"))
    job.remove()
    ended = job.ended()
    assert ended is not None
    assert ended.stop_reason is StopReason.LOST
    # Its log is gone too, which must not prevent fetching its outputs.
    assert followed(job) == []


def test_secrets_are_not_in_process_lists_and_deleted_with_the_container(remote: Engine, lab: Lab) -> None:
    secret = uuid.uuid4().hex
    job = start_container(remote, shell("echo $TOKEN | busybox wc -c; sleep 60", secrets={"TOKEN": secret}))
    assert next(job.frames(Position())).data.strip() == b"33"
    assert not [line for line in _command_lines() if secret in line]
    job.remove()
    holding = [
        file
        for file in (lab.engine.folder / "data" / "containers").rglob("*")
        if file.is_file() and secret.encode() in file.read_bytes()
    ]
    assert not holding


def test_lost_connection_during_silence_is_reported(lab: Lab) -> None:
    with lab.connected() as connection, contextlib.closing(Engine(connection, 20)) as engine:
        job = start_container(engine, shell("echo one; sleep 60"))
        frames = job.frames(Position())
        assert next(frames).data == b"one\n"
        lab.server.cut()
        with pytest.raises(Broken):
            next(frames)
        with pytest.raises(ConnectError):
            job.ended()


def test_log_can_be_read_during_other_requests(remote: Engine, tmp_path: Path) -> None:
    waits = "until [ -e /in/{} ]; do sleep 0.02; done".format
    script = f"for i in 1 2 3; do {waits('$i')}; echo $i; done; {waits('over')}"
    job = start_container(remote, shell(script, mounts=((str(tmp_path), "/in"),)))
    got: list[Frame] = []
    reader = threading.Thread(target=lambda: got.extend(job.frames(Position())), daemon=True)
    reader.start()

    def ask_and_let_it_print() -> bool:
        assert job.ended() is None
        (tmp_path / str(len(got) + 1)).touch()
        return len(got) == 3

    assert eventually(ask_and_let_it_print)
    (tmp_path / "over").touch()
    reader.join(WAIT_SECONDS)
    assert printed(got) == b"1\n2\n3\n"


def _command_lines() -> list[str]:
    lines = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # the process has just ended
            lines.append(file.read_text("utf-8", "replace"))
    return lines
