"""Logging in by a password, at a real OpenSSH server whose users are its own."""

import contextlib
import getpass
import io
import logging
import os
import signal
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpuinfra.models.target import Target
from gpuinfra.runner.connection import handshake, ssh
from gpuinfra.runner.connection.ssh import SshConnection
from gpuinfra.runner.errors import KeyUnusable, LoginRefused, Unreachable
from tests.integration.runner.conftest import WAIT_SECONDS, PasswordServer, SshServer, make_key

SECRET = PasswordServer.PASSWORD


class Asked:
    """Counts how often it is asked."""

    def __init__(self, answer: str) -> None:
        self.answer, self.times = answer, 0

    def __call__(self) -> str:
        self.times += 1
        return self.answer


@pytest.fixture(params=["password", "keyboard-interactive"])
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[PasswordServer]:
    server = PasswordServer(tmp_path / "sshd", interactive=request.param == "keyboard-interactive")
    yield server
    server.stop()


def who(target: Target, asked: Asked) -> str:
    with contextlib.closing(SshConnection.open(target, WAIT_SECONDS, asked)) as connection:
        return connection.run("id -un", timeout=WAIT_SECONDS).stdout.strip()


def test_the_password_lets_us_in_and_is_asked_for_once(server: PasswordServer) -> None:
    server.start()
    asked = Asked(SECRET)
    assert who(server.target, asked) == PasswordServer.USER
    assert asked.times == 1


def test_a_wrong_password_is_told_and_appears_nowhere(server: PasswordServer, caplog: pytest.LogCaptureFixture) -> None:
    server.start()
    wrong = "wr0ng-Passw0rd"
    # The level of the family is set by us; that of its members is the user's own.
    with caplog.at_level(logging.DEBUG, "paramiko.transport"), pytest.raises(LoginRefused) as caught:
        SshConnection.open(server.target, WAIT_SECONDS, Asked(wrong))
    assert f"{PasswordServer.USER}@127.0.0.1:{server.port} does not take the password" in str(caught.value)
    assert caught.value.help
    assert "userauth is OK" in caplog.text
    told = io.StringIO()
    error: BaseException | None = caught.value
    while error:
        print(repr(error), error.args, vars(error), file=told)
        error = error.__cause__ or error.__context__
    traceback.print_exception(caught.value, file=told)
    for text in (told.getvalue(), caplog.text, (server.folder / "log").read_text(), _command_lines()):
        assert wrong not in text
        assert SECRET not in text


def _command_lines() -> str:
    found = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdecimal():
                found.append((process / "cmdline").read_bytes().decode("utf-8", "replace"))
    return "\n".join(found)


def test_the_right_password_is_in_no_log_and_no_name(server: PasswordServer, caplog: pytest.LogCaptureFixture) -> None:
    server.start()
    with caplog.at_level(logging.DEBUG, "paramiko.transport"):
        connection = SshConnection.open(server.target, WAIT_SECONDS, Asked(SECRET))
    with contextlib.closing(connection):
        assert SECRET not in caplog.text + repr(connection) + repr(vars(connection)) + _command_lines()


def test_no_key_is_tried_where_there_is_a_password(server: PasswordServer, home: Path) -> None:
    # One try is all that it allows, and a key would be it.
    server.settings |= {"PubkeyAuthentication": "yes", "MaxAuthTries": "2"}
    for name in ("id_ed25519", "id_ecdsa", "id_rsa"):
        make_key(home / ".ssh" / name, name.removeprefix("id_"))
    server.start()
    assert who(server.target, Asked(SECRET)) == PasswordServer.USER
    assert "publickey" not in (server.folder / "log").read_text()


def test_the_password_comes_after_the_keys(server: PasswordServer, tmp_path: Path) -> None:
    server.settings["PubkeyAuthentication"] = "yes"
    server.start()
    asked, stranger = Asked(SECRET), make_key(tmp_path / "stranger")
    assert who(server.target_with(identity=str(stranger), password=None), asked) == PasswordServer.USER
    assert asked.times == 1


def test_nobody_is_asked_where_a_key_does(shared: SshServer) -> None:
    asked = Asked("unused")
    assert who(shared.target, asked) == getpass.getuser()
    assert asked.times == 0


def test_the_time_to_type_a_password_does_not_count(server: PasswordServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.start()
    typed = 0.0

    def type_slowly() -> str:
        nonlocal typed
        typed += WAIT_SECONDS + 1
        return "wrong"

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + typed)
    for module in (ssh, handshake):
        monkeypatch.setattr(module, "time", clock)
    # Refused, and not "does not answer".
    with pytest.raises(LoginRefused, match="does not take the password"):
        SshConnection.open(server.target, WAIT_SECONDS, type_slowly)


def test_a_machine_that_takes_no_password_says_what_it_takes(shared: SshServer) -> None:
    with pytest.raises(LoginRefused, match="takes no password, only publickey") as caught:
        SshConnection.open(shared.target_with(identity=None, password="ask"), WAIT_SECONDS, Asked("x"))
    assert caught.value.help


def test_a_password_that_nobody_was_asked_for_is_told(shared: SshServer) -> None:
    with pytest.raises(KeyUnusable, match="logs in by a password, and none is available"):
        SshConnection.open(shared.target_with(identity=None, password="ask"), WAIT_SECONDS)


def test_whoever_is_asked_may_refuse(shared: SshServer) -> None:
    def refuse() -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SshConnection.open(shared.target_with(identity=None, password="ask"), WAIT_SECONDS, refuse)


def test_half_a_character_is_refused_without_being_told(shared: SshServer) -> None:
    with pytest.raises(LoginRefused, match="characters that no machine takes") as caught:
        SshConnection.open(shared.target_with(identity=None, password="ask"), WAIT_SECONDS, Asked("secret\udcff"))
    assert caught.value.__context__ is None


def test_a_machine_that_hangs_keeps_nobody_waiting_with_a_password(server: PasswordServer) -> None:
    server.start()

    def stop() -> str:
        for pid in server.serving():
            os.kill(pid, signal.SIGSTOP)
        return SECRET

    with pytest.raises(Unreachable, match="does not answer the login"):
        SshConnection.open(server.target, 2.0, stop)
