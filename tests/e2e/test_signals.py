"""Signals of the program as a background job, under `nohup` or after its terminal closed."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuinfra.sandbox import running
from tests.e2e.azure import Azure
from tests.e2e.run_help import SECONDS, Start, guest_home, is_off, project, runs_of
from tests.e2e.test_front_door import wait_until_reading
from tests.e2e.user import PROGRAM, User, inherited
from tests.variants import variant, variants

# A shell without job control ignores INT and QUIT for `gpuinfra … &`, `nohup` HUP; other parents ignore the rest.
BACKGROUND = "--ignore-signal=INT,QUIT"
EVERYTHING = "--ignore-signal=INT,QUIT,HUP,TERM,PIPE,CHLD"
DEFAULTS = "--default-signal=INT,QUIT,HUP,TERM,PIPE,CHLD"
BLOCKED = "--block-signal=INT,HUP,TERM,ALRM,URG"
SAYS_WHAT_IS_IGNORED = """
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("SigIgn")))
"""


def ignored(mask: str) -> set[str]:
    """Return the signals of a mask in the kernel's format."""
    return {each.name for each in signal.Signals if int(mask, 16) >> (each - 1) & 1}


def mask_of(pid: int) -> str:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith("SigIgn"))


def waiting(signals: str) -> "subprocess.Popen[str]":
    """Start the program with these ignored signals, while it waits for standard input."""
    started = subprocess.Popen(
        ["env", signals, PROGRAM, "validate", "-"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_until_reading(started.pid)
    return started


@pytest.mark.parametrize(
    ("signals", "number"),
    variants(
        (EVERYTHING, signal.SIGINT),
        (BLOCKED, signal.SIGTERM),
        (DEFAULTS, signal.SIGHUP),
        (BACKGROUND, signal.SIGINT),
        (BACKGROUND, signal.SIGHUP),
        (EVERYTHING, signal.SIGTERM),
        (BLOCKED, signal.SIGINT),
        first=3,
    ),
)
def test_signal_interrupts_however_the_program_was_started(signals: str, number: signal.Signals) -> None:
    with waiting(signals) as program:
        program.send_signal(number)
        assert program.wait(timeout=20) == 130
        assert program.stderr is not None
        assert program.stderr.read() == "interrupted\n"


LOST = """
import signal, threading
from gpuinfra.app.interruption import handled_signals
lock = threading.Lock()
lock.acquire()
# What another thread receives does not end the main thread's wait by itself.
other = threading.Timer(0.2, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT))
try:
    with handled_signals():
        other.start()
        lock.acquire()
except KeyboardInterrupt:
    print("interrupted")
"""


def test_signal_that_another_thread_receives_interrupts_a_wait_for_a_lock() -> None:
    done = subprocess.run([sys.executable, "-c", LOST], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr


HANGS = """
import threading
from concurrent.futures import ThreadPoolExecutor
from gpuinfra.cli import main
main.main = lambda: 4
ThreadPoolExecutor().submit(threading.Event().wait)
main.program()
"""


def test_program_ends_while_a_call_hangs_in_a_thread() -> None:
    done = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (4, "")


RESTORES = """
import signal
from gpuinfra.app.interruption import handled_signals
def handlers():
    return [signal.getsignal(number) for number in signal.Signals]
before = handlers()
with handled_signals():
    assert handlers() != before
print(handlers() == before)
"""


def test_signals_are_as_before_when_a_command_has_ended() -> None:
    done = subprocess.run([sys.executable, "-c", RESTORES], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_closed_terminal_does_not_end_what_nohup_started() -> None:
    with waiting(EVERYTHING) as program:
        for number in (signal.SIGHUP, signal.SIGQUIT):
            program.send_signal(number)
        with pytest.raises(subprocess.TimeoutExpired):
            program.wait(timeout=1)
        program.send_signal(signal.SIGTERM)
        assert program.wait(timeout=20) == 130


def test_run_in_the_background_is_interrupted_and_its_machine_switched_off(
    user: User, azure: Azure, start: Start
) -> None:
    project(user)
    client = start("run", "gpu.yaml", "waits.py", signals=BACKGROUND)
    client.until_says("begun")
    client.send(signal.SIGINT)
    assert client.end() in {130, 143}
    assert [run["state"] for run in runs_of(user)] == ["cancelled"]
    assert is_off(azure)


def test_signals_of_a_closed_terminal_count_as_one_interrupt(user: User, azure: Azure, start: Start) -> None:
    project(user)
    client = start("run", "gpu.yaml", "waits.py")
    client.until_says("begun")
    # As systemd ends a session, and as shell and kernel report a closed terminal.
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGHUP):
        client.send(number)
    assert client.end() in {130, 143}
    assert "is left as it is" not in client.err
    assert [run["state"] for run in runs_of(user)] == ["running"]


def run_in_terminal(user: User, signals: str, *arguments: str) -> tuple[int, int]:
    """Start the program in a terminal of its own, and wait until its job prints `begun`."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(user.workspace)
        variables = {**inherited(), **user.variables, "GPUINFRA_CLOUD": "sandbox", "TERM": "xterm"}
        os.execvpe("env", ["env", signals, str(PROGRAM), *arguments], variables)
    seen, ends = b"", time.monotonic() + SECONDS
    while b"begun" not in seen:
        assert time.monotonic() < ends, seen.decode(errors="replace")
        seen += os.read(terminal, 4096)
    return child, terminal


def test_command_that_ignores_hangups_continues_when_its_terminal_closes(user: User) -> None:
    (user.workspace / "job.py").write_text(
        "import pathlib, time\n"
        "print('begun', flush=True)\n"
        f"while not pathlib.Path({str(user.workspace / 'closed')!r}).exists(): time.sleep(0.05)\n"
        "print('the end')\n"
    )
    child, terminal = run_in_terminal(user, "--ignore-signal=HUP", "submit", "-c", "local", "job.py")
    os.close(terminal)
    (user.workspace / "closed").touch()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert "the end" in user("logs", "last").stdout


@variant
def test_job_continues_when_the_terminal_of_run_closes_and_the_agent_deallocates_the_machine(
    user: User, azure: Azure
) -> None:
    project(user)
    child, terminal = run_in_terminal(user, DEFAULTS, "run", "gpu.yaml", "waits.py")
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) in {130, 143}
    (run,) = runs_of(user)
    assert run["state"] == "running"
    assert not is_off(azure)
    # The agent waits for the job and then deallocates the machine; test_waste.py tests that.
    told = guest_home(azure) / ".gpuinfra" / "runs" / run["id"] / "attended.json"
    assert json.loads(told.read_text()) == {"afterRun": "deallocate", "detached": True}


def test_local_job_ignores_only_the_signals_that_python_ignores(user: User) -> None:
    (user.workspace / "job.py").write_text(SAYS_WHAT_IS_IGNORED)
    done = subprocess.run(
        ["env", EVERYTHING, PROGRAM, "submit", "-c", "local", "job.py"],
        cwd=user.workspace,
        env={**inherited(), **user.variables},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert ignored(done.stdout.strip()) == {"SIGPIPE", "SIGXFSZ"}


@pytest.mark.parametrize(("signals", "kept"), variants((EVERYTHING, {"SIGHUP"}), (BACKGROUND, set())))
def test_ssh_ignores_only_the_signal_of_nohup(
    user: User, azure: Azure, tmp_path: Path, signals: str, kept: set[str]
) -> None:
    user.up()
    programs = tmp_path / "programs"
    programs.mkdir()
    stand_in = programs / "ssh"
    stand_in.write_text("#!/bin/sh\ngrep SigIgn /proc/$$/status\n")
    stand_in.chmod(0o755)
    done = subprocess.run(
        ["env", signals, PROGRAM, "ssh", "my-dsvm"],
        cwd=user.workspace,
        env={
            **inherited(),
            **user.variables,
            "GPUINFRA_CLOUD": "sandbox",
            "PATH": f"{programs}:{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert ignored(done.stdout.split()[1]) == kept


def test_sandbox_ignores_only_the_signals_that_python_ignores(tmp_path: Path) -> None:
    folder = tmp_path / "sandbox"
    start = "import sys, pathlib; from gpuinfra.sandbox.running import start; start(pathlib.Path(sys.argv[1]))"
    words = ["env", "--ignore-signal=INT,QUIT,HUP", sys.executable, "-c", start, str(folder)]
    try:
        subprocess.run(words, check=True, timeout=SECONDS)
        described = running.status(folder)
        assert described is not None
        assert ignored(mask_of(described.pid)) == {"SIGPIPE", "SIGXFSZ"}
    finally:
        running.stop(folder)
