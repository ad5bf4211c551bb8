"""Fetch the host key of a new machine, and check which targets answer."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuinfra.models.target import Reachability
from gpuinfra.runner.connection.handshake import MAX_THREADS, fetch_host_key, reachability
from gpuinfra.runner.connection.known_hosts import HostKey
from gpuinfra.runner.errors import Unreachable
from tests.integration.runner.conftest import WAIT_SECONDS, ReservedPort, SshServer, make_key

WEB_SERVER = b"HTTP/1.1 400 Bad Request\r\n\r\n"


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
def test_best_host_key_is_fetched_without_a_login(
    server: SshServer, tmp_path: Path, kinds: tuple[str, ...], best: str
) -> None:
    keys = {kind: make_key(tmp_path / kind, kind) for kind in kinds}
    server.settings |= {"HostKey": "\nHostKey ".join(str(key) for key in keys.values()), "LogLevel": "DEBUG1"}
    server.start()
    assert fetch_host_key("127.0.0.1", server.port, WAIT_SECONDS) == public(keys[best])
    log = (server.folder / "log").read_text()
    assert "userauth-request" not in log
    assert "service-request" not in log


def test_host_key_is_fetched_by_host_name(shared: SshServer) -> None:
    assert fetch_host_key("localhost", shared.port, WAIT_SECONDS) == public(shared.host_key)


def test_no_thread_is_left_after_fetching_a_host_key(shared: SshServer) -> None:
    before = set(threading.enumerate())
    fetch_host_key("127.0.0.1", shared.port, WAIT_SECONDS)
    assert set(threading.enumerate()) <= before


@contextlib.contextmanager
def listening(greeting: bytes | None) -> Iterator[int]:
    """A server that sends a greeting and closes the connection, or that stays silent."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    link, _ = listener.accept()
                    if greeting is not None:
                        link.sendall(greeting)
                        link.close()
                    else:
                        held.append(link)

        held: list[socket.socket] = []
        threading.Thread(target=answer, daemon=True).start()
        yield int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)
        for link in held:
            link.close()


def test_other_servers_are_reported_immediately() -> None:
    closed = ReservedPort()
    with pytest.raises(Unreachable, match=r"cannot connect to 127\.0\.0\.1:\d+: Connection refused") as caught:
        fetch_host_key("127.0.0.1", closed.number, WAIT_SECONDS)
    assert caught.value.help
    with (
        listening(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port,
        pytest.raises(Unreachable, match="not as an SSH server"),
    ):
        fetch_host_key("127.0.0.1", port, WAIT_SECONDS)
    with listening(None) as port, pytest.raises(Unreachable, match="not as an SSH server"):
        fetch_host_key("127.0.0.1", port, 0.5)


def test_reachability_of_each_target_is_returned_in_order(shared: SshServer, tmp_path: Path) -> None:
    other = str(public(make_key(tmp_path / "other")))
    rsa = str(public(make_key(tmp_path / "rsa", "rsa")))
    closed = ReservedPort()
    with listening(b"220 smtp ready\r\n") as mail:
        cases: list[tuple[dict[str, str | int], Reachability]] = [
            ({}, Reachability("yes")),
            ({"host_key": ""}, Reachability("yes")),
            ({"host_key": other}, Reachability("other-key", f"shows {public(shared.host_key).fingerprint}")),
            ({"host_key": rsa}, Reachability("other-key", "shows a key of another kind")),
            ({"host_key": "nonsense"}, Reachability("no", "the recorded host key is invalid")),
            ({"port": closed.number}, Reachability("no", "connection refused")),
            ({"address": "no-such-name.invalid"}, Reachability("no", "name unknown")),
            ({"port": mail}, Reachability("no", "not an SSH server")),
        ]
        targets = [shared.target_with(**changes) for changes, _ in cases]
        assert reachability(targets, WAIT_SECONDS) == tuple(expected for _, expected in cases)


def test_silent_machine_times_out(shared: SshServer) -> None:
    with listening(None) as silent:
        assert reachability([shared.target_with(port=silent)], 1.0) == (Reachability("no", "timed out"),)


def test_many_targets_are_checked_in_parallel(shared: SshServer) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=MAX_THREADS) as listener:

        def answer() -> None:
            """Stay silent until all clients have connected."""
            links = [listener.accept()[0] for _ in range(MAX_THREADS)]
            for link in links:
                with link:
                    link.sendall(b"220 smtp ready\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        targets = [shared.target_with(port=listener.getsockname()[1])] * MAX_THREADS
        found = reachability([*targets, shared.target], WAIT_SECONDS)
        thread.join(WAIT_SECONDS)
    assert found == (*[Reachability("no", "not an SSH server")] * MAX_THREADS, Reachability("yes"))


def test_reachability_of_no_targets_is_empty() -> None:
    assert reachability([], 1.0) == ()
