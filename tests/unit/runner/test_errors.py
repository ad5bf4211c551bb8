"""No exception of paramiko leaves its adapter, and what users are told is safe to do."""

import inspect
import re
from typing import Any

import paramiko
import pytest
from paramiko import ssh_exception
from paramiko.pkey import UnknownKeyType

from gpuinfra.runner import errors
from gpuinfra.runner.connection.handshake import to_connect_error
from gpuinfra.runner.errors import Broken, LoginRefused, RemoteError, Unreachable, problem_of

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
def test_every_exception_of_paramiko_becomes_a_connect_error(kind: type[Exception]) -> None:
    error = kind(*ARGUMENTS.get(kind, ("x",)))
    expected = LoginRefused if isinstance(error, paramiko.AuthenticationException) else Unreachable
    assert type(to_connect_error(error, "x")) is expected
    assert type(to_connect_error(error, "x", is_open=True)) is Broken


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "x: Connection refused"),
        (TimeoutError("timed out"), "x: timed out"),
        (EOFError(), "x: EOFError"),
        (paramiko.SSHException("words"), "x: words"),
    ],
)
def test_connect_error_has_a_reason_for_every_exception(error: Exception, text: str) -> None:
    assert str(to_connect_error(error, "x")) == text


def test_docstring_draws_the_class_hierarchy_of_the_errors() -> None:
    drawn = set(re.findall(r"^[│├└─ ]*([A-Z]\w+)  ", errors.__doc__ or "", re.MULTILINE)) | {"ConnectError"}
    kinds = {name for name, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__}
    assert kinds == drawn


def test_help_for_files_of_root_does_not_remove_outputs() -> None:
    (found,) = problem_of(RemoteError("foreign-files", "/tree"), "lab").diagnostics
    assert found.help
    assert "chown" in found.help
    assert "remove" not in found.help
