"""Which standard input would be lost, because jobs have none."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuinfra.cli.standard_input import has_input


@pytest.fixture(autouse=True)
def own_input() -> Iterator[None]:
    kept = os.dup(0)
    yield
    os.dup2(kept, 0)
    os.close(kept)


def test_pipe_with_data_is_input() -> None:
    reading, writing = os.pipe()
    os.dup2(reading, 0)
    assert not has_input(), "its writer may never write"
    os.write(writing, b"x")
    assert has_input()
    os.read(0, 1)
    os.close(writing)
    assert not has_input()
    os.close(reading)


def test_file_that_was_not_read_is_input(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("data")
    file = os.open(tmp_path / "data", os.O_RDONLY)
    os.dup2(file, 0)
    assert has_input()
    os.lseek(0, 4, os.SEEK_SET)
    assert not has_input()
    os.close(file)


def test_socket_with_data_is_input() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        os.dup2(theirs.fileno(), 0)
        assert not has_input()
        ours.send(b"x")
        assert has_input()


def test_device_and_closed_input_are_none() -> None:
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    assert not has_input()
    os.close(0)
    assert not has_input()
