"""The supervisor of a job without a container: it writes the log, enforces the timeout, and records how it ended."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import time
from collections.abc import Callable
from typing import Any

from gpuinfra.remote import environments, home, processes, run_folder, states
from gpuinfra.remote.job_log import STDERR, STDOUT, JobLog, PipeReader
from gpuinfra.remote.processes import JOB_PATH
from gpuinfra.remote.run_folder import CONTROL, LOG, SAMPLES
from gpuinfra.remote.samples import Sampler

# How long to wait for more output after the job has ended, if its child processes keep the streams open.
DRAIN_SECONDS = 2.0
STATE_SECONDS, STATE_PAUSE = 60.0, 1.0
REAP_SECONDS = 1.0
PROGRAM_ERRORS = {
    errno.ENOENT: "is not found",
    errno.EACCES: "is not executable",
    errno.ENOEXEC: "is not a program",
    errno.ENOTDIR: "is not found",
}


class Supervisor:
    """Supervises one job from its start to its end."""

    def __init__(self, order: dict[str, Any], secrets: dict[str, str]) -> None:
        self.run: str = order["run"]
        self._order = order
        self._environment = {**environment(order, secrets), processes.MARKER: self.run}
        self._adopts = False
        self._state: dict[str, Any] = {}
        self._child: Any = None
        self._streams: dict[int, int] = {}
        self._pipes: dict[int, PipeReader] = {}
        self._sampler: Sampler | None = None
        # Why the job is being stopped, when it will be killed, and when it exited.
        self._ending, self._kill_at, self._exited_at = "", 0.0, 0.0
        self._was_killed = False
        # Whether an adopted process may have ended, and when to reap next.
        self._has_orphans, self._reap_at = False, 0.0
        self._detail = ""

    def work(self, report: Callable[[dict[str, Any]], None]) -> None:
        """Start the job, report whether it started, and supervise it until it has ended."""
        os.chdir(home.run_folder(self.run))
        folder = self._order.get("environmentFolder")
        # It stays open until this process ends.
        self._environment_lock = environments.use(folder) if folder else None
        if folder and self._environment_lock is None:
            report({"code": "environment-gone", "message": f"{folder} does not exist"})
            return
        self._adopts = processes.adopt_orphans()
        self._oom_kills = _count_oom_kills()
        try:
            self._start()
        except (OSError, ValueError) as error:
            with contextlib.suppress(OSError):
                os.unlink(states.path(self.run, run_folder.STATE))
            report(_start_error(error, self._order))
            return
        report({"started": self._state["started"], "pid": self._child.pid})
        self._log = JobLog(states.path(self.run, LOG))
        with contextlib.suppress(OSError):
            states.reserve(self.run)
        while not self._is_done():
            self._serve()
        self._end()

    def _start(self) -> None:
        import subprocess  # slow to import, and few calls need it

        control = states.path(self.run, CONTROL)
        with contextlib.suppress(FileExistsError):
            os.mkfifo(control, 0o600)
        # Also open it for writing, so that it never reports an end of file.
        self._control = os.open(control, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._handle_signals()
        # Write it before the start: a state without a supervisor means that the job may have run.
        self._state = {"kind": "process", "started": time.time()}
        states.write(self.run, self._state)
        self._child = subprocess.Popen(  # noqa: S603 the user's own job
            self._order["command"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self._order["folder"],
            executable=_program(self._order["command"][0], self._environment),
            env=self._environment,
            bufsize=0,
            start_new_session=True,
        )
        self._began = time.monotonic()
        self._streams = {self._child.stdout.fileno(): STDOUT, self._child.stderr.fileno(): STDERR}
        self._pipes = {number: PipeReader(number) for number in self._streams}
        self._state.update(pid=self._child.pid, ticks=states.ticks(self._child.pid), supervisor=os.getpid())
        with contextlib.suppress(OSError):  # a full disk must not end the job
            states.write(self.run, self._state)
        if self._order.get("gpus") is not None:
            self._sampler = Sampler(["nvidia-smi", *_gpu_option(self._order["gpus"])], states.path(self.run, SAMPLES))

    def _handle_signals(self) -> None:
        """Let signals end the wait for events."""
        self._signals, writing = os.pipe()
        for number in (self._signals, writing):
            os.set_blocking(number, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # Clients do not send this signal, so the system is shutting down.
        signal.signal(signal.SIGTERM, lambda *_: self._stop(run_folder.LOST, 10.0, "the machine was shut down"))

    def _serve(self) -> None:
        """Wait for the next event, and handle it."""
        sampler_file = self._sampler.fileno if self._sampler else None
        watched = [*self._streams, self._control, self._signals, *([] if sampler_file is None else [sampler_file])]
        poll = select.poll()
        for number in watched:
            poll.register(number, select.POLLIN)
        for number, _ in poll.poll(self._wait_milliseconds()):
            if number in self._streams:
                self._read(number)
            elif number == self._control:
                self._read_request()
            elif number == self._signals:
                os.read(number, 1 << 10)
                self._has_orphans = True
            elif self._sampler:
                self._sampler.serve()
        self._handle_deadlines()

    def _read(self, number: int) -> None:
        data = self._pipes[number].read()
        if data:
            self._log.add(self._streams[number], data)
        else:
            del self._streams[number]

    def _read_request(self) -> None:
        """Read a request to stop: a line with the grace period in seconds."""
        with contextlib.suppress(OSError, ValueError):
            self._stop(run_folder.CANCELLED, float(os.read(self._control, 1 << 10).split()[-1]), "")

    def _wait_milliseconds(self) -> float:
        moments = []
        if self._ending and not self._was_killed:
            moments.append(self._kill_at)
        elif self._exited_at:
            moments.append(self._exited_at + DRAIN_SECONDS)
        elif self._order.get("timeout") and not self._ending:
            moments.append(self._began + self._order["timeout"])
        if self._sampler and self._sampler.due is not None:
            moments.append(self._sampler.due)
        if self._has_orphans:
            moments.append(self._reap_at)
        # Wait for a limited time, because some changes send no signal, such as a stopped child that continues.
        return 1000 * max(0.0, min([moment - time.monotonic() for moment in moments] + [10.0])) + 1

    def _handle_deadlines(self) -> None:
        now = time.monotonic()
        if not self._exited_at:
            options = os.WEXITED | os.WNOHANG | os.WNOWAIT
            # Do not reap it yet, so that its process ID is not reused.
            if os.waitid(os.P_PID, self._child.pid, options):
                self._exited_at = now
        timeout = self._order.get("timeout")
        if timeout and not self._ending and not self._exited_at and now >= self._began + timeout:
            self._stop(run_folder.TIMED_OUT, self._order.get("grace", 10.0), f"after {timeout:g} s")
        if self._ending and not self._was_killed and (now >= self._kill_at or (self._exited_at and not self._streams)):
            self._was_killed = True
            self._signal(signal.SIGKILL)
        if self._has_orphans and now >= self._reap_at:
            self._has_orphans, self._reap_at = False, now + REAP_SECONDS
            processes.reap(but=self._child.pid)
        if self._sampler and self._sampler.due is not None and now >= self._sampler.due:
            self._sampler.start()

    def _stop(self, how: str, grace: float, detail: str) -> None:
        """Ask the job to end, and kill it after the grace period."""
        kill_at = time.monotonic() + grace
        if self._ending:  # a second request can only shorten the grace period
            self._kill_at = min(self._kill_at, kill_at)
        elif self._child and not self._exited_at:
            self._ending, self._kill_at, self._detail = how, kill_at, detail
            self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self._child.pid, number)
        for pid in self._remaining():
            with contextlib.suppress(OSError):
                if os.getpgid(pid) != self._child.pid:
                    os.kill(pid, number)

    def _remaining(self) -> list[int]:
        """Return the running processes of the job, including detached ones."""
        if not self._adopts:
            return processes.marked(self.run)
        return processes.descendants(os.getpid(), but=self._sampler.sessions if self._sampler else ())

    def _is_done(self) -> bool:
        if not self._exited_at:
            return False
        if self._ending and not self._was_killed:
            return False
        return not self._streams or time.monotonic() >= self._exited_at + DRAIN_SECONDS

    def _end(self) -> None:
        if self._sampler:
            self._sampler.stop()
        left = processes.end(self._remaining)
        self._log.end()
        code = self._child.wait()
        how = self._ending or run_folder.EXITED
        if code == -signal.SIGKILL and not self._was_killed and _count_oom_kills() > self._oom_kills:
            how = run_folder.OUT_OF_MEMORY
        self._state.update(ended=time.time(), exitCode=code if code >= 0 else 128 - code, how=how)
        if self._detail:
            self._state["detail"] = self._detail
        if how in (run_folder.CANCELLED, run_folder.LOST):
            # The guest agent may have requested the stop.
            self._state.update(states.stop_reason_at(self.run, self._state["ended"]))
        if left and not self._ending:
            self._state["leftProcesses"] = left
        if self._log.missing:
            self._state["logGap"] = self._log.missing
        self._write_state()

    def _write_state(self) -> None:
        ends = time.monotonic() + STATE_SECONDS
        while True:
            try:
                return states.write(self.run, self._state)
            except OSError:
                if time.monotonic() > ends:
                    raise
            time.sleep(STATE_PAUSE)


def environment(order: dict[str, Any], secrets: dict[str, str]) -> dict[str, str]:
    """Return the job's environment: this session's, the requested variables, and the GPUs that the job can see."""
    found = dict(os.environ)
    if JOB_PATH in found:
        found["PATH"] = found.pop(JOB_PATH)
    # Scripts in subfolders import from the project's top folder. The job's own value takes precedence.
    search_path = [found["PYTHONPATH"]] if found.get("PYTHONPATH") else []
    found["PYTHONPATH"] = os.pathsep.join([*search_path, order["folder"]])
    if order.get("environmentFolder"):
        programs = os.path.join(order["environmentFolder"], "bin")
        found["PATH"] = os.pathsep.join([programs, found.get("PATH", os.defpath)])
        found["VIRTUAL_ENV"] = order["environmentFolder"]
        found.pop("PYTHONHOME", None)
    found = {**found, **order.get("environment", {}), **secrets}
    gpus = order.get("gpus")
    if gpus is None:
        found["CUDA_VISIBLE_DEVICES"] = ""
    elif gpus.get("ids"):
        found["CUDA_VISIBLE_DEVICES"] = ",".join(gpus["ids"])
    elif gpus.get("count") is not None:
        found["CUDA_VISIBLE_DEVICES"] = ",".join(str(index) for index in range(gpus["count"]))
    return found


def _gpu_option(gpus: dict[str, Any]) -> list[str]:
    """Return the option that limits `nvidia-smi` to the job's GPUs."""
    selected = gpus.get("ids") or [str(index) for index in range(gpus.get("count") or 0)]
    return ["-i", ",".join(selected)] if selected else []


def _program(name: str, environment: dict[str, str]) -> str | None:
    """Return the program of this name in the PATH, or None to let the system search for it.

    The system would report an unreadable folder of the PATH instead of the program's own error.
    """
    if os.sep in name:
        return None
    for folder in os.get_exec_path(environment):
        file = os.path.join(folder, name)
        if os.path.isabs(folder) and os.path.isfile(file) and os.access(file, os.X_OK):
            return file
    return None


def _start_error(error: Exception, order: dict[str, Any]) -> dict[str, str]:
    """Return the code and message for a job that could not start."""
    number = getattr(error, "errno", None)
    if number == errno.E2BIG:
        return {"code": "environment-too-large", "message": "the environment and the arguments are too large"}
    if isinstance(error, ValueError):
        return {"code": "no-program", "message": f"the job cannot start: {error}"}
    if getattr(error, "filename", None) == order["folder"]:
        return {"code": "no-folder", "message": f"cannot enter the folder `{order['folder']}`: {error}"}
    name = order["command"][0]
    if number in PROGRAM_ERRORS and str(getattr(error, "filename", None)).endswith(name):
        return {"code": "no-program", "message": f"`{name}` {PROGRAM_ERRORS[number]}"}
    code = "disk-full" if number in {errno.ENOSPC, errno.EDQUOT} else "system"
    return {"code": code, "message": str(error)}


def _count_oom_kills() -> int:
    """Return how many processes this machine has killed because memory ran out."""
    with contextlib.suppress(OSError, ValueError), open("/proc/vmstat", "rb") as lines:
        for line in lines:
            if line.startswith(b"oom_kill "):
                return int(line.split()[1])
    return 0
