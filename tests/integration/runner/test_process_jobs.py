"""Jobs without a container, on this computer and over a real OpenSSH server. They run without their client."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpuinfra.diagnostics import Code
from gpuinfra.models.run import STDERR, STDOUT, Frame
from gpuinfra.runner.connection.remote_client import RemoteClient
from gpuinfra.runner.connection.ssh import SshConnection
from gpuinfra.runner.errors import ConnectError, JobError
from gpuinfra.runner.job import JobEnd, Position, StopReason
from gpuinfra.runner.job_spec import Gpus, StartRequest
from gpuinfra.runner.log import LogFile
from gpuinfra.runner.process import ProcessJob, start_process
from gpuinfra.runner.remote_runs import forget_run, read_state, read_usage, start_recorder
from tests.integration.runner.conftest import SshServer, eventually
from tests.real import missing

OPEN_SECONDS = 20.0
LINES = 100_000


# Tests that run in parallel need different ids: the processes of a lost run are found by it.
RUN = f"run-{uuid.uuid4().hex[:8]}"


def request(*command: str, **changes: object) -> StartRequest:
    return replace(StartRequest(run=RUN, command=command, folder="/tmp"), **changes)  # type: ignore[arg-type]


def python(program: str, **changes: object) -> StartRequest:
    return request(sys.executable, "-c", program, **changes)


def text(frames: list[Frame], stream: int) -> bytes:
    return b"".join(frame.data for frame in frames if frame.stream == stream)


def read_frames(job: ProcessJob) -> list[Frame]:
    return list(job.frames(Position()))


def ended(job: ProcessJob) -> JobEnd:
    found: list[JobEnd] = []

    def is_over() -> bool:
        found.extend(filter(None, [job.ended()]))
        return bool(found)

    assert eventually(is_over)
    return found[0]


@pytest.fixture
def runs(home: Path) -> Path:
    return home / ".gpuinfra" / "runs"


def test_streams_are_separate_and_the_exit_code_is_returned(remote: RemoteClient, runs: Path) -> None:
    job = start_process(remote, request("sh", "-c", "echo out; echo err >&2; pwd; exit 7", environment={"A": "1"}))
    frames = read_frames(job)
    assert text(frames, STDOUT) == b"out\n/tmp\n"
    assert text(frames, STDERR) == b"err\n"
    found = ended(job)
    assert (found.exit_code, found.stop_reason) == (7, StopReason.EXITED)
    assert found.at is not None
    assert abs(found.at.timestamp() - time.time()) < 60
    assert (runs / RUN / "log").is_file()


def test_output_appears_at_once(remote: RemoteClient) -> None:
    job = start_process(remote, request("sh", "-c", "echo first; sleep 60"))
    frames = job.frames(Position())
    assert next(frames).data == b"first\n"
    assert job.ended() is None
    frames.close()  # type: ignore[attr-defined]
    job.cancel(0)


def test_repeated_start_runs_the_job_once(remote: RemoteClient) -> None:
    """The reply to the first start may have been lost."""
    start = request("sh", "-c", "echo once")
    read_frames(start_process(remote, start))
    assert text(read_frames(start_process(remote, start)), STDOUT) == b"once\n"


def test_job_is_not_started_in_a_copy_that_another_run_got(local: RemoteClient, runs: Path) -> None:
    """The client may have been away for long between the upload and the start, on a computer that slept."""
    slot = runs.parent / "projects/project/slot-1"
    for folder in (slot, runs / RUN):
        folder.mkdir(parents=True)
    (runs / RUN / "slot").write_text("project/slot-1")
    (slot / "holder").write_text("another")
    for start in (
        lambda: start_process(local, request("touch", str(slot / "started"))),
        lambda: start_recorder(local, RUN, "container"),
    ):
        with pytest.raises(JobError, match="another run") as refused:
            start()
        assert refused.value.code == Code.UPLOAD_FAILED
    assert not (slot / "started").exists()
    (slot / "holder").write_text(RUN)
    read_frames(start_process(local, request("touch", str(slot / "started"))))
    assert (slot / "started").exists()


def test_exit_code_contains_the_signal_that_ended_the_job(local: RemoteClient) -> None:
    job = start_process(local, request("sh", "-c", "kill -SEGV $$"))
    read_frames(job)
    assert ended(job) == replace(ended(job), exit_code=128 + signal.SIGSEGV, stop_reason=StopReason.EXITED)


def test_environment_has_the_variables_of_the_session_and_the_job(remote: RemoteClient, home: Path) -> None:
    start = request("sh", "-c", "echo $HOME:$A:$S:${CUDA_VISIBLE_DEVICES-unset}:$PATH")
    job = start_process(remote, replace(start, environment={"A": "x y"}, secrets={"S": "s"}))
    found = text(read_frames(job), STDOUT).decode()
    assert found.startswith(f"{home}:x y:s::/")


@pytest.mark.parametrize(("gpus", "expected"), [(None, b"\n"), (Gpus(count=2), b"0,1\n"), (Gpus(ids=("3",)), b"3\n")])
def test_job_sees_only_its_gpus(local: RemoteClient, gpus: Gpus | None, expected: bytes) -> None:
    job = start_process(local, request("sh", "-c", "echo $CUDA_VISIBLE_DEVICES", gpus=gpus))
    assert text(read_frames(job), STDOUT) == expected


@pytest.mark.parametrize(
    ("start", "code"),
    [
        (request("no-such-program"), Code.NO_PYTHON),
        (request("/etc/passwd"), Code.NO_PYTHON),
        (request("./here"), Code.NO_PYTHON),
        (request("sh", folder="/no/such/folder"), Code.JOB_FAILED),
        (request("sh", environment={"A": "x" * (1 << 20)}), Code.ENVIRONMENT_TOO_LARGE),
    ],
)
def test_command_that_cannot_start_is_reported_and_leaves_no_job(
    remote: RemoteClient, start: StartRequest, code: Code
) -> None:
    with pytest.raises(JobError) as caught:
        start_process(remote, start)
    assert caught.value.code == code
    assert "xxx" not in str(caught.value)
    with pytest.raises(JobError) as caught:
        ProcessJob(remote, RUN).ended()
    assert caught.value.code == Code.NO_SUCH_RUN
    assert text(read_frames(start_process(remote, request("echo", "now"))), STDOUT) == b"now\n"


def test_unreadable_folder_in_the_path_does_not_hide_the_start_error(
    local: RemoteClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Root can read every folder, but no user can execute this file.
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sh").touch(0o600)
    monkeypatch.setenv("PATH", f"{hidden}:{os.environ['PATH']}")
    with pytest.raises(JobError) as caught:
        start_process(local, request("sh", environment={"A": "x" * (1 << 20)}))
    assert caught.value.code == Code.ENVIRONMENT_TOO_LARGE
    assert text(read_frames(start_process(local, request("sh", "-c", "echo now"))), STDOUT) == b"now\n"


def test_binary_output_and_a_very_long_line_are_unchanged(remote: RemoteClient) -> None:
    program = "import sys; w = sys.stdout.buffer.write; w(bytes(range(256)) * 10); w(b'x' * (10 << 20) + b'\\n')"
    found = text(read_frames(start_process(remote, python(program))), STDOUT)
    assert found == bytes(range(256)) * 10 + b"x" * (10 << 20) + b"\n"


def test_no_line_is_lost_or_doubled_when_the_connection_is_cut(remote_home: SshServer, tmp_path: Path) -> None:
    # The program waits at each quarter for the next lost connection.
    program = (
        "import os, sys, time\n"
        f"for n in range({LINES}):\n"
        f"    gate = {str(tmp_path)!r} + f'/gate-{{n // {LINES // 4}}}'\n"
        f"    while n >= {LINES // 4} and n % {LINES // 4} == 0 and not os.path.exists(gate): time.sleep(0.02)\n"
        "    print(n, flush=not n % 50)\n"
        "    if n % 10 == 0: print('e', n, file=sys.stderr, flush=True)\n"
    )
    with contextlib.closing(SshConnection.open(remote_home.target, OPEN_SECONDS)) as connection:
        job = start_process(RemoteClient(connection), python(program))
    lost = 0
    with LogFile(tmp_path / "log") as log:
        assert log.try_lock()
        while lost < 4:
            with contextlib.closing(SshConnection.open(remote_home.target, OPEN_SECONDS)) as connection:
                job = ProcessJob(RemoteClient(connection), RUN)
                try:
                    lines = 0
                    for frame in job.frames(log.position):
                        log.append(frame)
                        # Count lines, not frames: a slow reader gets many lines in one frame.
                        is_first, lines = lines < 100, lines + frame.data.count(b"\n")
                        if is_first and lines >= 100 and lost < 3:
                            remote_home.cut()
                    break
                except ConnectError:
                    lost += 1
                    (tmp_path / f"gate-{lost}").touch()
        frames = list(log.frames())
    assert lost == 3
    assert text(frames, STDOUT).split() == [str(n).encode() for n in range(LINES)]
    assert text(frames, STDERR) == b"".join(b"e %d\n" % n for n in range(0, LINES, 10))
    assert [frame.time for frame in frames] == sorted(frame.time for frame in frames)


def test_time_limit_applies_without_a_connection(remote_home: SshServer, runs: Path) -> None:
    with contextlib.closing(SshConnection.open(remote_home.target, OPEN_SECONDS)) as connection:
        start_process(
            RemoteClient(connection), request("sh", "-c", "trap 'echo asked' TERM; sleep 60 & wait; wait", timeout=1)
        )
    remote_home.stop()
    state = runs / RUN / "state.json"
    assert eventually(lambda: "ended" in json.loads(state.read_text()))
    found = json.loads(state.read_text())
    assert (found["how"], found["kind"]) == ("timed out", "process")
    assert [frame.data for frame in LogFile(runs / RUN / "log").frames()] == [b"asked\n"]


def test_job_that_ignores_sigterm_is_killed_with_its_children(local: RemoteClient) -> None:
    job = start_process(
        local, request("sh", "-c", "trap '' TERM; sleep 987 & echo $!; sleep 986", timeout=0.5), grace=0.5
    )
    frames = read_frames(job)
    assert ended(job) == replace(ended(job), exit_code=137, stop_reason=StopReason.TIMED_OUT)
    child = int(text(frames, STDOUT))
    assert eventually(lambda: not is_running(child))


def is_running(pid: int) -> bool:
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_cancelled_job_ends(remote: RemoteClient) -> None:
    job = start_process(remote, request("sleep", "600"))
    assert job.ended() is None
    job.cancel(30)
    found = job.ended()
    assert found is not None
    assert (found.exit_code, found.stop_reason) == (143, StopReason.CANCELLED)
    job.cancel(30)  # a second call does nothing


def test_job_with_a_killed_supervisor_is_lost_and_its_processes_end(remote: RemoteClient) -> None:
    job = start_process(remote, request("sleep", "600"))
    state = read_state(remote, job.id)
    assert state["alive"]
    os.kill(state["supervisor"], signal.SIGKILL)
    assert read_frames(job) == []
    assert ended(job).stop_reason is StopReason.LOST
    assert eventually(lambda: not is_running(state["pid"]))
    job.cancel(1)


def test_children_that_keep_the_streams_open_end_with_the_job(local: RemoteClient) -> None:
    job = start_process(local, request("sh", "-c", "sleep 600 & echo $!; exit 3"))
    child = int(text(read_frames(job), STDOUT))
    assert ended(job).exit_code == 3
    assert not is_running(child)


def test_orphans_of_a_job_are_reaped_while_it_runs(local: RemoteClient, home: Path) -> None:
    # When the subshell ends, the supervisor becomes the parent of its child.
    job = start_process(local, request("sh", "-c", f"(sleep 0.1 & echo $! > {home}/pid); sleep 600"))
    assert eventually(lambda: (home / "pid").exists() and (home / "pid").read_text() != "")
    child = Path("/proc", (home / "pid").read_text().strip())
    assert eventually(lambda: not child.exists())
    job.cancel(0)


def test_secrets_are_not_in_files_or_process_lists(remote: RemoteClient, home: Path) -> None:
    secret = "hunter2-" + os.urandom(8).hex()
    job = start_process(remote, request("sleep", "600", secrets={"TOKEN": secret}))
    read_state(remote, job.id)
    lines = subprocess.run(["grep", "-rl", secret, str(home)], capture_output=True, text=True, timeout=30, check=False)
    assert lines.stdout == ""
    words = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words.append((entry / "cmdline").read_bytes())
    assert any(b"sleep\x00600" in each for each in words)
    assert not any(secret.encode() in each for each in words)
    pid = read_state(remote, job.id)["pid"]
    assert f"TOKEN={secret}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    job.cancel(0)


def test_remove_keeps_outputs_and_forget_run_deletes_them(remote: RemoteClient, runs: Path) -> None:
    job = start_process(remote, request("sleep", "600"))
    (runs / RUN / "outputs" / "model").write_text("m")
    with pytest.raises(JobError, match="has not ended"):
        forget_run(remote, RUN)
    job.remove()
    assert sorted(each.name for each in (runs / RUN).iterdir()) == ["outputs", "state.json"]
    assert (runs / RUN / "outputs" / "model").read_text() == "m"
    assert read_state(remote, RUN)["how"] == "cancelled"
    job.remove()
    forget_run(remote, RUN)
    assert not (runs / RUN).exists()
    forget_run(remote, RUN)
    job.remove()


def test_gpu_is_sampled_while_the_job_runs(
    local: RemoteClient, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uses a fake `nvidia-smi`."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\necho "$@" >> "$0.calls"\n'
        'while :; do echo "0, 35, 1234"; echo "1, [N/A], 5"; echo >> "$0.rounds"; sleep 0.1; done\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    samples = home / ".gpuinfra" / "runs" / RUN / "samples"
    # The job ends after a few samples.
    waiting = f"until [ -e {samples} ] && [ $(wc -l < {samples}) -gt 4 ]; do sleep 0.05; done"
    job = start_process(local, request("sh", "-c", waiting, gpus=Gpus(ids=("0", "1"))))
    read_frames(job)
    found = read_usage(local, RUN)
    assert found is not None
    assert (found.peak_utilization, found.mean_utilization, found.peak_memory_mib) == (35, 35.0, 1234)
    rounds = len(Path(f"{program}.rounds").read_text().splitlines())
    assert 2 <= found.samples <= rounds
    calls = Path(f"{program}.calls").read_text().splitlines()
    assert calls == ["-i 0,1 --query-gpu=index,utilization.gpu,memory.used --format=csv,noheader,nounits -l 2"]


def test_job_without_a_gpu_has_no_samples(local: RemoteClient) -> None:
    job = start_process(local, request("true", gpus=Gpus()))
    read_frames(job)
    assert ended(job).exit_code == 0
    assert read_usage(local, RUN) is None


@pytest.fixture
def small_home(home: Path) -> Iterator[Path]:
    """A home on a disk of 1 MiB."""
    if os.geteuid() != 0 or not shutil.which("mount"):
        missing("a small disk needs root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(home)], check=True, timeout=20)
    yield home
    subprocess.run(["umount", "-l", str(home)], check=True, timeout=20)


def test_full_disk_loses_output_but_not_the_job(small_home: Path, local: RemoteClient) -> None:
    """The job prints more than fits, then frees space and prints more."""
    program = (
        "import fcntl, os, struct, sys, termios, time\n"
        "for n in range(40): os.write(1, b'x' * 50_000)\n"
        # Until the supervisor has read all of it.
        "while struct.unpack('i', fcntl.ioctl(1, termios.FIONREAD, bytes(4)))[0]: time.sleep(0.01)\n"
        "os.unlink(os.environ['HOME'] + '/ballast')\n"
        "os.write(1, b'after\\n')\n"
        "sys.exit(3)\n"
    )
    (small_home / "ballast").write_bytes(b"b" * 500_000)
    job = start_process(local, python(program))
    frames = read_frames(job)
    assert ended(job).exit_code == 3
    gap = read_state(local, job.id)["logGap"]
    assert 1_000_000 < gap < 2_000_000
    assert frames[-1].data.endswith(b"after\n")
    [said] = [frame.data.decode() for frame in frames if frame.stream == STDERR]
    assert f" {gap} bytes " in said
    assert len(text(frames, STDOUT)) + gap == 2_000_006


def test_end_of_a_job_is_recorded_on_a_full_disk(small_home: Path, local: RemoteClient) -> None:
    job = start_process(local, python("import os\nfor n in range(40): os.write(1, b'x' * 50_000)\nos._exit(3)"))
    frames = read_frames(job)
    assert ended(job).exit_code == 3
    assert 0 < len(text(frames, STDOUT)) < 1 << 20
