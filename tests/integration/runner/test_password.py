"""Log in with a password at a real OpenSSH server with its own users."""

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
from tests.variants import variants

SECRET = PasswordServer.PASSWORD


class Prompt:
    """Returns a password and counts how often it is called."""

    def __init__(self, answer: str) -> None:
        self.answer, self.times = answer, 0

    def __call__(self) -> str:
        self.times += 1
        return self.answer


@pytest.fixture(params=variants("password", "keyboard-interactive"))
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[PasswordServer]:
    server = PasswordServer(tmp_path / "sshd", interactive=request.param == "keyboard-interactive")
    yield server
    server.stop()


def log_in(target: Target, prompt: Prompt) -> str:
    with contextlib.closing(SshConnection.open(target, WAIT_SECONDS, prompt)) as connection:
        return connection.run("id -un", timeout=WAIT_SECONDS).stdout.strip()


@pytest.mark.parametrize("server", ["password", "keyboard-interactive"], indirect=True)
def test_login_asks_for_the_password_once(server: PasswordServer) -> None:
    server.start()
    prompt = Prompt(SECRET)
    assert log_in(server.target, prompt) == PasswordServer.USER
    assert prompt.times == 1


def test_wrong_password_is_reported_but_not_leaked(server: PasswordServer, caplog: pytest.LogCaptureFixture) -> None:
    server.start()
    wrong = "wr0ng-Passw0rd"
    # The product does not change the level of paramiko's child loggers.
    with caplog.at_level(logging.DEBUG, "paramiko.transport"), pytest.raises(LoginRefused) as caught:
        SshConnection.open(server.target, WAIT_SECONDS, Prompt(wrong))
    assert f"{PasswordServer.USER}@127.0.0.1:{server.port} does not accept the password" in str(caught.value)
    assert caught.value.help
    assert "userauth is OK" in caplog.text
    printed = io.StringIO()
    error: BaseException | None = caught.value
    while error:
        print(repr(error), error.args, vars(error), file=printed)
        error = error.__cause__ or error.__context__
    traceback.print_exception(caught.value, file=printed)
    for text in (printed.getvalue(), caplog.text, (server.folder / "log").read_text(), _command_lines()):
        assert wrong not in text
        assert SECRET not in text


def _command_lines() -> str:
    found = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdecimal():
                found.append((process / "cmdline").read_bytes().decode("utf-8", "replace"))
    return "\n".join(found)


def test_password_is_not_in_logs_or_process_lists(server: PasswordServer, caplog: pytest.LogCaptureFixture) -> None:
    server.start()
    with caplog.at_level(logging.DEBUG, "paramiko.transport"):
        connection = SshConnection.open(server.target, WAIT_SECONDS, Prompt(SECRET))
    with contextlib.closing(connection):
        assert SECRET not in caplog.text + repr(connection) + repr(vars(connection)) + _command_lines()


def test_target_with_a_password_tries_no_keys(server: PasswordServer, home: Path) -> None:
    # The server allows only one attempt, which a key would use up.
    server.settings |= {"PubkeyAuthentication": "yes", "MaxAuthTries": "2"}
    for name in ("id_ed25519", "id_ecdsa", "id_rsa"):
        make_key(home / ".ssh" / name, name.removeprefix("id_"))
    server.start()
    assert log_in(server.target, Prompt(SECRET)) == PasswordServer.USER
    assert "publickey" not in (server.folder / "log").read_text()


def test_password_is_tried_after_the_keys(server: PasswordServer, tmp_path: Path) -> None:
    server.settings["PubkeyAuthentication"] = "yes"
    server.start()
    prompt, stranger = Prompt(SECRET), make_key(tmp_path / "stranger")
    assert log_in(server.target_with(identity=str(stranger), password=None), prompt) == PasswordServer.USER
    assert prompt.times == 1


def test_login_with_a_key_does_not_ask_for_the_password(shared: SshServer) -> None:
    prompt = Prompt("unused")
    assert log_in(shared.target, prompt) == getpass.getuser()
    assert prompt.times == 0


def test_time_to_type_the_password_does_not_count(server: PasswordServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.start()
    typed = 0.0

    def type_slowly() -> str:
        nonlocal typed
        typed += WAIT_SECONDS + 1
        return "wrong"

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + typed)
    for module in (ssh, handshake):
        monkeypatch.setattr(module, "time", clock)
    # Not "does not answer".
    with pytest.raises(LoginRefused, match="does not accept the password"):
        SshConnection.open(server.target, WAIT_SECONDS, type_slowly)


def test_refused_password_login_lists_the_accepted_methods(shared: SshServer) -> None:
    with pytest.raises(LoginRefused, match="accepts no password, only publickey") as caught:
        SshConnection.open(shared.target_with(identity=None, password="ask"), WAIT_SECONDS, Prompt("x"))
    assert caught.value.help


def test_missing_password_is_reported(shared: SshServer) -> None:
    with pytest.raises(KeyUnusable, match="logs in with a password, and none is available"):
        SshConnection.open(shared.target_with(identity=None, password="ask"), WAIT_SECONDS)


def test_password_prompt_can_be_interrupted(shared: SshServer) -> None:
    def refuse() -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SshConnection.open(shared.target_with(identity=None, password="ask"), WAIT_SECONDS, refuse)


def test_password_with_invalid_characters_is_refused_without_leaking_it(shared: SshServer) -> None:
    with pytest.raises(LoginRefused, match="characters that SSH does not support") as caught:
        SshConnection.open(shared.target_with(identity=None, password="ask"), WAIT_SECONDS, Prompt("secret\udcff"))
    assert caught.value.__context__ is None


def test_password_login_to_a_hanging_machine_times_out(server: PasswordServer) -> None:
    server.start()

    def stop() -> str:
        for pid in server.serving():
            os.kill(pid, signal.SIGSTOP)
        return SECRET

    with pytest.raises(Unreachable, match="does not answer the login"):
        SshConnection.open(server.target, 2.0, stop)
