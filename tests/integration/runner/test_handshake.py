"""What a machine shows to somebody who has never seen it, and which of many answer."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuinfra.models.target import Reachability
from gpuinfra.runner.connection.handshake import first_meeting
from gpuinfra.runner.connection.host_key import HostKey
from gpuinfra.runner.connection.reachability import AT_ONCE, reachability
from gpuinfra.runner.errors import Unreachable
from tests.integration.runner.conftest import WAIT_SECONDS, ReservedPort, SshServer, make_key


def public(key: Path) -> HostKey:
    return HostKey.parse(Path(f"{key}.pub").read_text())


@pytest.mark.parametrize(
    ("kinds", "best"),
    [
        (("rsa", "ecdsa", "ed25519"), "ed25519"),
        (("rsa", "ecdsa"), "ecdsa"),
        (("rsa",), "rsa"),
    ],
)
def test_the_best_host_key_is_shown_and_nothing_is_said(
    server: SshServer, tmp_path: Path, kinds: tuple[str, ...], best: str
) -> None:
    keys = {kind: make_key(tmp_path / kind, kind) for kind in kinds}
    server.settings |= {"HostKey": "\nHostKey ".join(str(key) for key in keys.values()), "LogLevel": "DEBUG1"}
    server.start()
    assert first_meeting("127.0.0.1", server.port, WAIT_SECONDS) == public(keys[best])
    log = (server.folder / "log").read_text()
    assert "userauth-request" not in log
    assert "service-request" not in log


def test_a_machine_is_met_by_its_name_as_well(shared: SshServer) -> None:
    assert first_meeting("localhost", shared.port, WAIT_SECONDS) == public(shared.host_key)


def test_nothing_is_left_after_a_meeting(shared: SshServer) -> None:
    before = set(threading.enumerate())
    first_meeting("127.0.0.1", shared.port, WAIT_SECONDS)
    assert set(threading.enumerate()) <= before


@contextlib.contextmanager
def talker(says: bytes | None) -> Iterator[int]:
    """Somebody who listens, and says this, or nothing at all."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    link, _ = listener.accept()
                    if says is not None:
                        link.sendall(says)
                        link.close()
                    else:
                        held.append(link)

        held: list[socket.socket] = []
        threading.Thread(target=answer, daemon=True).start()
        yield int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)
        for link in held:
            link.close()


def test_who_is_no_machine_is_told() -> None:
    closed = ReservedPort()
    with pytest.raises(Unreachable, match=r"nobody answers at 127\.0\.0\.1:\d+: Connection refused") as caught:
        first_meeting("127.0.0.1", closed.number, WAIT_SECONDS)
    assert caught.value.help
    with talker(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port, pytest.raises(Unreachable, match="not as an SSH server"):
        first_meeting("127.0.0.1", port, WAIT_SECONDS)
    with talker(None) as port, pytest.raises(Unreachable, match="not as an SSH server"):
        first_meeting("127.0.0.1", port, 0.5)


def test_each_of_many_is_told_in_their_order(shared: SshServer, tmp_path: Path) -> None:
    other = str(public(make_key(tmp_path / "other")))
    rsa = str(public(make_key(tmp_path / "rsa", "rsa")))
    closed = ReservedPort()
    with talker(b"220 smtp ready\r\n") as mail:
        cases: list[tuple[dict[str, str | int], Reachability]] = [
            ({}, Reachability("yes")),
            ({"host_key": ""}, Reachability("yes")),
            ({"host_key": other}, Reachability("other-key", f"shows {public(shared.host_key).fingerprint}")),
            ({"host_key": rsa}, Reachability("other-key", "shows a key of another kind")),
            ({"host_key": "nonsense"}, Reachability("no", "the host key that is expected is no key")),
            ({"port": closed.number}, Reachability("no", "connection refused")),
            ({"address": "no-such-name.invalid"}, Reachability("no", "name unknown")),
            ({"port": mail}, Reachability("no", "not an SSH server")),
        ]
        targets = [shared.target_with(**changes) for changes, _ in cases]
        assert reachability(targets, WAIT_SECONDS) == tuple(expected for _, expected in cases)


def test_silent_machine_times_out(shared: SshServer) -> None:
    with talker(None) as silent:
        assert reachability([shared.target_with(port=silent)], 1.0) == (Reachability("no", "timed out"),)


def test_many_machines_are_asked_at_once(shared: SshServer) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=AT_ONCE) as listener:

        def answer() -> None:
            """Say nothing until all of them have called."""
            links = [listener.accept()[0] for _ in range(AT_ONCE)]
            for link in links:
                with link:
                    link.sendall(b"220 smtp ready\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        targets = [shared.target_with(port=listener.getsockname()[1])] * AT_ONCE
        found = reachability([*targets, shared.target], WAIT_SECONDS)
        thread.join(WAIT_SECONDS)
    assert found == (*[Reachability("no", "not an SSH server")] * AT_ONCE, Reachability("yes"))


def test_none_at_all_is_no_error() -> None:
    assert reachability([], 1.0) == ()
