"""Ctrl-C at an instruction at which the interrupted code holds a lock of the whole process."""

from pathlib import Path

import pytest

from tests.e2e.azure import Azure
from tests.e2e.run_help import is_off, project
from tests.e2e.user import User

# The lock of all logging. Python 3.11 takes it by a call, and begins the `try` that releases it after that.
CTRL_C_WITH_LOCK = """
import logging, os, signal, sys, threading

class Lock:
    def __init__(self, lock):
        self.lock, self.is_armed = lock, True

    def acquire(self):
        self.lock.acquire()
        if self.is_armed and threading.current_thread() is threading.main_thread() and self.is_used_by_ssh():
            self.is_armed = False
            os.kill(os.getpid(), signal.SIGINT)

    def is_used_by_ssh(self):
        frame = sys._getframe()
        while frame and frame.f_globals["__name__"] != "gpuinfra.runner.connection.handshake":
            frame = frame.f_back
        return frame is not None

    def release(self):
        self.lock.release()

    __enter__ = acquire

    def __exit__(self, *_):
        self.release()

logging._lock = Lock(logging._lock)
"""


@pytest.fixture
def user(user: User) -> User:
    project(user)
    return user


def test_machine_is_switched_off_after_an_interrupt_with_the_lock_of_logging(
    user: User, azure: Azure, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(CTRL_C_WITH_LOCK)
    azure.fault("ssh-refuses")
    done = user("run", "gpu.yaml", "quick.py", PYTHONPATH=str(tmp_path))
    assert done.returncode == 130, done.stderr
    assert "Azure reports PowerState/deallocated" in done.stdout
    assert is_off(azure)
