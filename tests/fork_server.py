"""The fork server's own side: imports the program once, and forks for each command. See `tests/program.py`.

It has no threads, so that a fork of it is whole.
"""

import faulthandler
import fcntl
import gc
import importlib
import io
import json
import os
import pkgutil
import select
import signal
import socket
import sys
import termios
import threading
import time
from array import array
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from typing import Any, NoReturn

import gpuinfra

SDK = ("azure.identity", "azure.mgmt.compute", "azure.mgmt.network", "azure.mgmt.resource.resources")
THREADS_END_SECONDS = 10.0
MOST_FILES = 1 << 16


def import_everything() -> None:
    """Import what any command may need."""
    for module in pkgutil.walk_packages(gpuinfra.__path__, "gpuinfra."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in SDK:
        importlib.import_module(name)


def serve(requests: socket.socket) -> None:
    """Carry out requests until the test process closes its side."""
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    statuses: dict[int, int] = {}
    while True:
        ready = select.select([requests.fileno(), woken], [], [])[0]
        if woken in ready:
            os.read(woken, 4096)
            report_ended(statuses)
        if requests.fileno() in ready:
            message, rights, _, _ = requests.recvmsg(1 << 20, socket.CMSG_SPACE(16))
            if not message:
                return
            request: dict[str, Any] = json.loads(message)
            if "warm" in request:
                requests.send(json.dumps({"codes": warm_up(request)}).encode())
                report_ended(statuses)  # the program has its own handlers meanwhile
                continue
            files = array("i", rights[0][2]).tolist()
            assert threading.active_count() == 1, "a process with threads cannot be forked safely"
            pid = os.fork()
            if not pid:
                become(request, files)
            statuses[pid] = files.pop()
            for file in files:
                os.close(file)
            requests.send(json.dumps({"pid": pid}).encode())


def report_ended(statuses: dict[int, int]) -> None:
    """Write the wait status of each child that has ended to the pipe that came with it."""
    for pid in list(statuses):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            file = statuses.pop(pid)
            with suppress(BrokenPipeError):  # the test no longer waits for it
                os.write(file, str(status).encode())
            os.close(file)


def warm_up(request: Mapping[str, Any]) -> list[int]:
    from gpuinfra.cli.main import main

    os.chdir(request["cwd"])
    set_environment(request["env"])
    unseen = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with redirect_stdout(unseen), redirect_stderr(unseen):
        codes = [int(main(words)) for words in request["warm"]]
    gc.collect()
    deadline = time.monotonic() + THREADS_END_SECONDS
    while threading.active_count() > 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    gc.freeze()
    return codes


def set_environment(variables: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(variables)
    time.tzset()


def become(request: Mapping[str, Any], files: list[int]) -> NoReturn:
    """Become the command: with its files, folder, environment and signals, and nothing of the server."""
    from gpuinfra.cli.main import program

    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if request["session"]:
            os.setsid()
        if request["umask"] >= 0:
            os.umask(request["umask"])
        os.chdir(request["cwd"])
        set_environment(request["env"])
        # Above all numbers that are replaced, so that none is overwritten too early.
        safe = [os.dup(file) for file in files[:3]]
        for place, file in enumerate(safe):
            os.dup2(file, place)
        os.closerange(3, MOST_FILES)
        if request["terminal"]:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        for name, value in request["patch"].items():
            module, _, attribute = name.rpartition(".")
            assert hasattr(importlib.import_module(module), attribute), name
            setattr(importlib.import_module(module), attribute, value)
        sys.stdin = sys.__stdin__ = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8")  # type: ignore[misc]
        sys.stdout = sys.__stdout__ = text_file(1, "strict")  # type: ignore[misc]
        sys.stderr = sys.__stderr__ = text_file(2, "backslashreplace")  # type: ignore[misc]
        faulthandler.register(signal.SIGUSR1)  # shows where a program hangs
        sys.argv[:] = request["words"]
        program()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
        raise
    finally:
        os._exit(70)


def text_file(number: int, errors: str) -> io.TextIOWrapper:
    """Return a standard stream as Python creates it: line-buffered for errors, and for output on a terminal."""
    buffer = io.BufferedWriter(io.FileIO(number, "w", closefd=False))
    return io.TextIOWrapper(buffer, encoding="utf-8", errors=errors, line_buffering=number == 2 or os.isatty(number))


def main() -> None:
    """Import, say so, and serve."""
    import_everything()
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        os.set_inheritable(requests.fileno(), False)
        gc.collect()
        gc.freeze()
        requests.send(b"ready")
        serve(requests)


if __name__ == "__main__":
    main()
