"""SSH connections to a real OpenSSH server."""

import contextlib
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuinfra.models.target import Target
from gpuinfra.runner.connection.known_hosts import HostKey
from gpuinfra.runner.connection.ssh import SshConnection
from gpuinfra.runner.errors import (
    Broken,
    ConnectError,
    HostKeyInvalid,
    HostKeyMismatch,
    KeyUnusable,
    LoginRefused,
    TimedOut,
    Unreachable,
)
from tests.integration.runner.conftest import WAIT_SECONDS, ReservedPort, SshServer, eventually, make_key
from tests.real import program
from tests.variants import variants

Add = Callable[[Path], None]
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0Z0OTJvTXCTQOXWPUDF6wvEYGcUZtC4xRuWzWvfwKx"


@contextlib.contextmanager
def connected(target: Target) -> Iterator[SshConnection]:
    with contextlib.closing(SshConnection.open(target, WAIT_SECONDS)) as connection:
        yield connection


def can_log_in(target: Target) -> bool:
    with connected(target) as connection:
        return connection.run("echo in", timeout=WAIT_SECONDS).stdout == "in\n"


# Commands.


def test_command_returns_output_errors_and_exit_code(shared: SshServer) -> None:
    with connected(shared.target) as connection:
        done = connection.run("echo to-out; echo to-err >&2; exit 7", timeout=WAIT_SECONDS)
        assert (done.exit_code, done.stdout, done.stderr) == (7, "to-out\n", "to-err\n")
        assert connection.run("true", timeout=WAIT_SECONDS).exit_code == 0


def test_arguments_arrive_unchanged(shared: SshServer) -> None:
    words = ["a b", "$HOME", "'", '"', "*", "", "\\", ";", "ü", "-x"]
    with connected(shared.target) as connection:
        done = connection.run(["printf", "<%s>\\n", *words], timeout=WAIT_SECONDS)
    assert done.stdout.splitlines() == [f"<{word}>" for word in words]


def test_large_output_on_both_streams_is_complete(shared: SshServer) -> None:
    # More than the window that both streams share, first one after the other and then mixed.
    script = (
        "head -c 5000000 /dev/zero | tr '\\0' e >&2; head -c 5000000 /dev/zero | tr '\\0' o;"
        "for i in 1 2 3 4; do head -c 500000 /dev/zero | tr '\\0' e >&2; head -c 500000 /dev/zero | tr '\\0' o; done"
    )
    with connected(shared.target) as connection:
        done = connection.run(script, timeout=WAIT_SECONDS * 2)
    digests = [hashlib.sha256(text.encode()).digest() for text in (done.stdout, done.stderr)]
    assert digests == [hashlib.sha256(letter * 7_000_000).digest() for letter in (b"o", b"e")]


def test_invalid_utf8_in_output_is_replaced(shared: SshServer) -> None:
    with connected(shared.target) as connection:
        assert connection.run("printf 'a\\377b'", timeout=WAIT_SECONDS).stdout == "a\N{REPLACEMENT CHARACTER}b"


def test_command_has_no_input(shared: SshServer) -> None:
    with connected(shared.target) as connection:
        assert connection.run("wc -c", timeout=WAIT_SECONDS).stdout.strip() == "0"


def test_exit_code_of_a_killed_command_is_minus_one(shared: SshServer) -> None:
    with connected(shared.target) as connection:
        assert connection.run("kill -KILL $$", timeout=WAIT_SECONDS).exit_code == -1
        assert connection.run("exit 3", timeout=WAIT_SECONDS).exit_code == 3


def test_commands_run_in_parallel_on_one_connection(shared: SshServer, tmp_path: Path) -> None:
    found: list[str] = []
    (tmp_path / "begun").mkdir()
    # Each command waits for all the others.
    script = f"cd {tmp_path}/begun; touch {{0}}; until [ -e 0 -a -e 1 -a -e 2 -a -e 3 -a -e 4 ]; do sleep 0.02; done"
    with connected(shared.target) as connection:

        def run(number: int) -> None:
            done = connection.run(f"{script.format(number)}; echo {number}", timeout=WAIT_SECONDS)
            found.append(done.stdout.strip())

        threads = [threading.Thread(target=run, args=(number,)) for number in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_SECONDS)
    assert sorted(found) == ["0", "1", "2", "3", "4"]


def test_command_without_end_times_out(shared: SshServer) -> None:
    with connected(shared.target) as connection:
        with pytest.raises(TimedOut, match=r"`sleep 30` did not end within 0\.5 s"):
            connection.run("sleep 30", timeout=0.5)
        assert connection.run("echo still here", timeout=WAIT_SECONDS).stdout == "still here\n"


def test_command_with_endless_output_times_out(shared: SshServer) -> None:
    with connected(shared.target) as connection, pytest.raises(TimedOut):
        connection.run("while echo still; do sleep 0.05; done", timeout=0.5)


@pytest.mark.parametrize("command", variants("yes", "yes >&2"))
def test_command_with_too_much_output_fails_early(shared: SshServer, command: str) -> None:
    with connected(shared.target) as connection:
        with pytest.raises(ConnectError, match="printed more than 16 MiB"):
            connection.run(command, timeout=WAIT_SECONDS)
        assert connection.run("echo still here", timeout=WAIT_SECONDS).stdout == "still here\n"


def test_output_without_end_is_not_complete(shared: SshServer) -> None:
    with connected(shared.target) as connection, pytest.raises(TimedOut):
        connection.run("echo begun; sleep 60 & exit 0", timeout=0.7)


def test_lost_connection_is_reported(server: SshServer, tmp_path: Path) -> None:
    server.start()
    begun = tmp_path / "begun"

    def cut() -> None:
        assert eventually(begun.exists)
        server.cut()

    with connected(server.target) as connection:
        cutting = threading.Thread(target=cut)
        cutting.start()
        with pytest.raises(Broken, match=f"the connection to 127.0.0.1:{server.port} is lost"):
            connection.run(f"touch {begun}; exec sleep 60", timeout=WAIT_SECONDS * 2)
        cutting.join(WAIT_SECONDS)
        with pytest.raises(Broken):
            connection.run("true", timeout=WAIT_SECONDS)


def test_command_on_a_hanging_machine_times_out(server: SshServer) -> None:
    server.start()
    with connected(server.target) as connection:
        assert connection.run("true", timeout=WAIT_SECONDS).exit_code == 0
        (pid,) = server.serving()
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises((Broken, TimedOut)):
                connection.run("true", timeout=0.5)
        finally:
            os.kill(pid, signal.SIGCONT)


def test_close_ends_all_threads(shared: SshServer) -> None:
    before = set(threading.enumerate())
    connection = SshConnection.open(shared.target, WAIT_SECONDS)
    connection.run("true", timeout=WAIT_SECONDS)
    connection.close()
    connection.close()
    assert eventually(lambda: set(threading.enumerate()) <= before)
    with pytest.raises(Broken):
        connection.run("true", timeout=WAIT_SECONDS)


# Host keys.


def test_other_host_key_is_refused_before_the_login(server: SshServer, tmp_path: Path) -> None:
    server.settings["LogLevel"] = "DEBUG1"
    server.start()
    other = make_key(tmp_path / "other")
    expected = Path(f"{other}.pub").read_text()
    with pytest.raises(HostKeyMismatch) as caught:
        SshConnection.open(server.target_with(host_key=expected), WAIT_SECONDS)
    assert caught.value.expected == HostKey.parse(expected).fingerprint
    assert caught.value.shown == HostKey.parse(server.target.host_key).fingerprint
    assert caught.value.expected in str(caught.value)
    assert caught.value.shown in str(caught.value)
    assert "userauth-request" not in (server.folder / "log").read_text()


@pytest.mark.parametrize("kind", variants("rsa", "ed25519", "ecdsa"))
def test_machine_with_several_host_keys_shows_the_expected_one(server: SshServer, tmp_path: Path, kind: str) -> None:
    keys = {each: make_key(tmp_path / each, each) for each in ("ed25519", "rsa", "ecdsa")}
    server.settings["HostKey"] = "\nHostKey ".join(str(key) for key in keys.values())
    server.start()
    assert can_log_in(server.target_with(host_key=Path(f"{keys[kind]}.pub").read_text()))


def test_machine_without_a_host_key_of_the_expected_type_is_refused(shared: SshServer, tmp_path: Path) -> None:
    other = Path(f"{make_key(tmp_path / 'other', 'rsa')}.pub").read_text()
    with pytest.raises(HostKeyMismatch, match="no host key of the expected type") as caught:
        SshConnection.open(shared.target_with(host_key=other), WAIT_SECONDS)
    assert caught.value.shown is None


def test_invalid_expected_host_key_is_refused(shared: SshServer) -> None:
    for nonsense in ("", "ssh-ed25519", "ssh-ed25519 AAAA"):
        with pytest.raises(HostKeyInvalid):
            SshConnection.open(shared.target_with(host_key=nonsense), WAIT_SECONDS)


# Login keys.


def test_unknown_key_is_refused(shared: SshServer, tmp_path: Path) -> None:
    stranger = make_key(tmp_path / "stranger")
    with pytest.raises(LoginRefused, match=f"accepts none of 1 keys, from {stranger}"):
        SshConnection.open(shared.target_with(identity=str(stranger)), WAIT_SECONDS)


def test_unknown_user_is_refused(shared: SshServer) -> None:
    with pytest.raises(LoginRefused, match="unknown-user@127"):
        SshConnection.open(shared.target_with(username="unknown-user"), WAIT_SECONDS)


@pytest.mark.parametrize(
    ("kind", "name"), variants(("ed25519", "id_ed25519"), ("ecdsa", "id_ecdsa"), ("rsa", "id_rsa"))
)
def test_default_keys_of_the_user_are_tried(server: SshServer, home: Path, kind: str, name: str) -> None:
    server.authorize(make_key(home / ".ssh" / name, kind))
    server.start()
    assert can_log_in(server.target_with(identity=None))


def test_keys_of_the_agent_are_tried(shared: SshServer, agent: Add) -> None:
    agent(shared.user_key)
    assert can_log_in(shared.target_with(identity=None))


def test_rsa_key_of_the_agent_signs_with_sha2(server: SshServer, tmp_path: Path, agent: Add) -> None:
    key = make_key(tmp_path / "rsa", "rsa")
    server.authorize(key)
    server.start()
    agent(key)
    assert can_log_in(server.target_with(identity=None))


def test_agent_key_of_a_locked_identity_is_tried_first(server: SshServer, tmp_path: Path, agent: Add) -> None:
    # The server allows only one key, so the right one has to be the first.
    server.settings["MaxAuthTries"] = "2"
    unlocked, locked = make_key(tmp_path / "unlocked"), tmp_path / "locked"
    for number in range(3):
        agent(make_key(tmp_path / f"other-{number}"))
    agent(unlocked)
    shutil.copy(f"{unlocked}.pub", f"{locked}.pub")
    make_key(tmp_path / "secret", passphrase="secret").rename(locked)
    server.authorize(unlocked)
    server.start()
    assert can_log_in(server.target_with(identity=str(locked)))


def test_locked_key_is_reported_with_the_command_to_unlock_it(shared: SshServer, tmp_path: Path) -> None:
    locked = make_key(tmp_path / "locked", passphrase="secret")
    with pytest.raises(KeyUnusable, match=f"`{locked}` is locked by a passphrase") as caught:
        SshConnection.open(shared.target_with(identity=str(locked)), WAIT_SECONDS)
    assert caught.value.help == f"add it to the SSH agent for this session: ssh-add {locked}"


def test_locked_key_is_reported_after_other_keys_fail(server: SshServer, tmp_path: Path, agent: Add) -> None:
    server.settings["MaxAuthTries"] = "2"
    server.start()
    for number in range(3):
        agent(make_key(tmp_path / f"other-{number}"))
    locked = make_key(tmp_path / "locked", passphrase="secret")
    with pytest.raises(KeyUnusable, match="is locked by a passphrase"):
        SshConnection.open(server.target_with(identity=str(locked)), WAIT_SECONDS)


def test_key_that_the_agent_does_not_sign_with_is_skipped(
    shared: SshServer, tmp_path: Path, home: Path, agent: Add
) -> None:
    # The agent asks for a confirmation, which fails without a terminal.
    subprocess.run(
        [program("ssh-add", "openssh-client"), "-q", "-c", str(make_key(tmp_path / "asked"))],
        check=True,
        timeout=WAIT_SECONDS,
    )
    (home / ".ssh" / "id_ed25519").write_bytes(shared.user_key.read_bytes())
    assert can_log_in(shared.target_with(identity=None))


def test_missing_or_invalid_key_is_reported(shared: SshServer, tmp_path: Path) -> None:
    (tmp_path / "nonsense").write_text("nonsense")
    for name, reason in (("missing", "No such file"), ("nonsense", "not a private key")):
        with pytest.raises(KeyUnusable, match=reason):
            SshConnection.open(shared.target_with(identity=str(tmp_path / name)), WAIT_SECONDS)


def test_login_without_any_key_is_reported(shared: SshServer) -> None:
    with pytest.raises(KeyUnusable, match="no private key was found"):
        SshConnection.open(shared.target_with(identity=None), WAIT_SECONDS)


def test_connection_closed_after_too_many_keys_is_reported(server: SshServer, tmp_path: Path, agent: Add) -> None:
    server.settings["MaxAuthTries"] = "2"
    server.start()
    for number in range(4):
        agent(make_key(tmp_path / f"other-{number}"))
    with pytest.raises(LoginRefused, match="closed the connection during the login with key 2"):
        SshConnection.open(server.target_with(identity=None), WAIT_SECONDS)


def test_missing_or_silent_agent_is_skipped(shared: SshServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "gone"))
    assert can_log_in(shared.target)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.bind(str(tmp_path / "silent"))
        silent.listen()
        monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "silent"))
        assert can_log_in(shared.target)
        with pytest.raises(KeyUnusable):
            SshConnection.open(shared.target_with(identity=None), 3.0)


def test_certificate_next_to_the_key_is_not_used(server: SshServer, tmp_path: Path) -> None:
    authority = make_key(tmp_path / "authority")
    keygen = program("ssh-keygen", "openssh-client")
    sign = [keygen, "-q", "-s", str(authority), "-I", "me", "-n", "me", f"{server.user_key}.pub"]
    subprocess.run(sign, check=True, timeout=WAIT_SECONDS)
    assert Path(f"{server.user_key}-cert.pub").exists()
    server.start()
    assert can_log_in(server.target)


# Unreachable machines.


def test_refused_connection_is_reported_immediately() -> None:
    closed = ReservedPort()
    target = Target("t", "my-dsvm", "remote", "127.0.0.1", closed.number, "me", KEY)
    with pytest.raises(Unreachable, match=r"cannot connect to 127\.0\.0\.1:\d+: Connection refused") as caught:
        SshConnection.open(target, WAIT_SECONDS)
    assert caught.value.help
    assert "allowSshFrom" in caught.value.help


@pytest.mark.parametrize(
    "greeting", [None, b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-x\r\n", b"SSH-2.0-x\r\n\0\0\0\0junk" * 99]
)
def test_server_that_is_not_ssh_is_unreachable(greeting: bytes | None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        target = Target("t", "my-dsvm", "remote", "127.0.0.1", listener.getsockname()[1], "me", KEY)

        def answer() -> None:
            link, _ = listener.accept()
            with link, contextlib.suppress(OSError):
                if greeting is not None:
                    link.sendall(greeting)
                    link.shutdown(socket.SHUT_WR)
                while link.recv(1000):  # until the client closes the connection
                    pass

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(Unreachable, match="answers, but not as an SSH server"):
            SshConnection.open(target, 1.0)
        thread.join(WAIT_SECONDS)
