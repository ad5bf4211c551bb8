"""A local port that leads somewhere else, with plain sockets in place of tunnels."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from gpuinfra.runner.forwarding import LOOPBACK, PortForward

SECONDS = 20.0


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The tunnel, and the machine's end of it."""
    ends = socket.socketpair()
    for end in ends:
        end.settimeout(SECONDS)
    with ends[0], ends[1]:
        yield ends


def test_data_passes_in_both_directions_until_one_side_closes(pair: tuple[socket.socket, socket.socket]) -> None:
    tunnel, machine = pair
    with (
        PortForward(lambda: tunnel, 0) as forward,
        socket.create_connection((LOOPBACK, forward.port), SECONDS) as client,
    ):
        data = bytes(range(256)) * 4096
        threading.Thread(target=client.sendall, args=(data,), daemon=True).start()
        found = bytearray()
        while len(found) < len(data):
            found += machine.recv(1 << 16)
        assert found == data
        machine.sendall(b"answer")
        assert client.recv(100) == b"answer"
        client.shutdown(socket.SHUT_WR)
        assert machine.recv(1) == b""
        machine.sendall(b"after the end of the input")
        machine.close()
        assert client.recv(100) == b"after the end of the input"
        assert client.recv(1) == b""


def test_port_in_use_is_replaced_only_on_request(pair: tuple[socket.socket, socket.socket]) -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            PortForward(lambda: pair[0], port)
        with PortForward(lambda: pair[0], port, is_only=False) as forward:
            assert forward.port != port
            assert forward.address == f"{LOOPBACK}:{forward.port}"


def test_port_is_closed_after_the_block_and_refused_tunnels_close_their_connection() -> None:
    def refuse() -> socket.socket:
        raise ConnectionRefusedError

    with PortForward(refuse, 0) as forward:
        client = socket.create_connection((LOOPBACK, forward.port), SECONDS)
        with client, contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((LOOPBACK, forward.port), SECONDS)
