"""The installed program, for tests: executed, or forked from a process that has already imported it.

Starting Python with Azure's SDK takes more than a second of processor time, and the tests start the program thousands
of times. `Program` takes the same arguments as `subprocess.Popen` and is one, but its process comes from a fork server.
"""

import inspect
import json
import os
import select
import socket
import subprocess
import sys
import threading
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PROGRAM = Path(sys.executable).with_name("gpuinfra")
ROOT = Path(__file__).parents[1]
START_SECONDS = 60.0
# Python reads these when it starts, which a fork does not.
READ_AT_START = ("PYTHON", "LANG", "LC_")


class ForkServer:
    """A process that has imported the program, and forks for each command. `tests/fork_server.py` is its other side."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.fork_server", str(theirs.fileno())],
                cwd=ROOT,
                env={name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._asking = threading.Lock()
        self._socket.settimeout(START_SECONDS)
        assert self._socket.recv(100) == b"ready"

    def warm_up(self, folder: Path, environment: Mapping[str, str], *commands: Sequence[str]) -> None:
        """Run commands in the server itself: the SDK prepares each of its models at the first use."""
        codes = self._ask({"warm": commands, "cwd": str(folder), "env": dict(environment)})["codes"]
        assert codes == [0] * len(commands), codes

    def fork(self, request: dict[str, Any], files: Sequence[int]) -> int:
        """The process id of a command that has these standard files, and writes its wait status to the last."""
        return int(self._ask(request, files)["pid"])

    def _ask(self, request: dict[str, Any], files: Sequence[int] = ()) -> dict[str, Any]:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", files))] if files else []
        with self._asking:  # tests start programs in threads, too
            self._socket.sendmsg([json.dumps(request).encode()], rights)
            answer: dict[str, Any] = json.loads(self._socket.recv(1000))
        return answer

    def close(self) -> None:
        self._socket.close()
        self._process.wait(timeout=START_SECONDS)


_server: ForkServer | None = None
_starting = threading.Lock()


def fork_server() -> ForkServer:
    """The fork server of this test process, started at the first call and stopped at the end of the session."""
    global _server  # noqa: PLW0603 - one for each test process, whichever test needs it first
    with _starting:
        if _server is None:
            _server = ForkServer()
        return _server


def stop_fork_server() -> None:
    """End the fork server, if there is one."""
    global _server  # noqa: PLW0603
    if _server:
        _server.close()
        _server = None


class Program(subprocess.Popen[Any]):
    """`gpuinfra WORDS…` as a process, with what `subprocess.Popen` offers: pipes, signals, `wait`, `communicate`."""

    def __init__(
        self,
        *words: str | Path,
        cwd: Path,
        env: Mapping[str, str],
        patch: Mapping[str, float] | None = None,
        terminal: bool = False,
        executed: bool = False,
        **options: Any,
    ) -> None:
        """`patch` sets constants, such as `runner.heartbeat.PERIOD_SECONDS`, in this process alone.

        With `terminal`, standard input is a terminal, and the process is the one that its Ctrl-C reaches. With
        `executed` it is not forked: its command line can be seen in the list of processes.
        """
        self._status, self._executed = -1, executed
        self._more = {"patch": dict(patch or {}), "terminal": terminal}
        options |= {"start_new_session": True} if terminal else {}
        super().__init__([str(PROGRAM), *map(str, words)], cwd=cwd, env=dict(env), **options)

    def _execute_child(self, *values: Any) -> None:
        # Popen's own hook: it has made the pipes, and wants a process that uses their ends.
        given = dict(zip(inspect.signature(subprocess.Popen._execute_child).parameters, (self, *values), strict=True))  # type: ignore[attr-defined]
        if self._executed or any(name.startswith(READ_AT_START) for name in given["env"]):
            assert not any(self._more.values()), "only a fork can be patched, or be given a terminal"
            super()._execute_child(*values)  # type: ignore[misc]
            return
        ends = [given[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        files = [number if end == -1 else end for number, end in enumerate(ends)]
        self._status, theirs = os.pipe()
        request = {"words": given["args"], "cwd": str(given["cwd"]), "env": given["env"]}
        request |= {"session": given["start_new_session"], "umask": given["umask"], **self._more}
        try:
            self.pid = fork_server().fork(request, [*files, theirs])
            self._child_created = True
        finally:
            os.close(theirs)
            pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
            self._close_pipe_fds(*(given[name] for name in pipes))  # type: ignore[attr-defined]

    def _internal_poll(self, *values: Any, **more: Any) -> int | None:
        if self._status == -1:
            return super()._internal_poll(*values, **more)  # type: ignore[misc,no-any-return]
        self._wait_for_status(0)
        return self.returncode

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._status == -1:
            return super()._try_wait(wait_flags)  # type: ignore[misc,no-any-return]
        has_ended = self._wait_for_status(0 if wait_flags & os.WNOHANG else None)
        return (self.pid, self._wait_status) if has_ended else (0, 0)

    def _wait_for_status(self, seconds: float | None) -> bool:
        if self.returncode is None and select.select([self._status], [], [], seconds)[0]:
            said = os.read(self._status, 100)
            os.close(self._status)
            assert said, "the fork server has ended"
            self._wait_status = int(said)
            self.returncode = os.waitstatus_to_exitcode(self._wait_status)
        return self.returncode is not None


def run(
    *words: str | Path,
    cwd: Path,
    env: Mapping[str, str],
    stdin: str | bytes | None = "",
    timeout: float = 60,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a command to its end, as `subprocess.run` does with `capture_output`."""
    text = not isinstance(stdin, bytes)
    pipe = subprocess.PIPE
    with Program(*words, cwd=cwd, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=text, **options) as process:
        try:
            out, err = process.communicate(stdin, timeout=timeout)
        except BaseException:
            process.kill()
            raise
        return subprocess.CompletedProcess([PROGRAM, *words], process.returncode, out, err)
