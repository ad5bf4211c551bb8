"""Nothing of paramiko's leaves its adapter."""

import inspect
import re
from typing import Any

import paramiko
import pytest
from paramiko import ssh_exception
from paramiko.pkey import UnknownKeyType

from gpuinfra.runner import errors
from gpuinfra.runner.connection.handshake import told
from gpuinfra.runner.errors import Broken, LoginRefused, Unreachable

FOREIGN = [kind for _, kind in inspect.getmembers(ssh_exception, inspect.isclass) if issubclass(kind, Exception)]
ARGUMENTS: dict[type[Exception], tuple[Any, ...]] = {
    ssh_exception.BadAuthenticationType: ("x", []),
    ssh_exception.BadHostKeyException: ("x", paramiko.PKey(), paramiko.PKey()),
    ssh_exception.ChannelException: (1, "x"),
    ssh_exception.NoValidConnectionsError: ({("127.0.0.1", 22): OSError()},),
    ssh_exception.ProxyCommandFailure: ("x", "x"),
    UnknownKeyType: ("x", b""),
}


@pytest.mark.parametrize("kind", [*FOREIGN, UnknownKeyType, EOFError, OSError, ValueError, TypeError])
def test_every_foreign_exception_has_a_meaning(kind: type[Exception]) -> None:
    error = kind(*ARGUMENTS.get(kind, ("x",)))
    expected = LoginRefused if isinstance(error, paramiko.AuthenticationException) else Unreachable
    assert type(told(error, "x")) is expected
    assert type(told(error, "x", is_open=True)) is Broken


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "x: Connection refused"),
        (TimeoutError("timed out"), "x: timed out"),
        (EOFError(), "x: EOFError"),
        (paramiko.SSHException("words"), "x: words"),
    ],
)
def test_the_reason_is_always_told(error: Exception, text: str) -> None:
    assert str(told(error, "x")) == text


def test_the_tree_at_the_top_of_the_file_is_the_tree() -> None:
    drawn = set(re.findall(r"^[│├└─ ]*([A-Z]\w+)  ", errors.__doc__ or "", re.MULTILINE)) | {"ConnectError"}
    kinds = {name for name, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__}
    assert kinds == drawn
