"""Malformed replies of a machine."""

import json
from typing import Any, cast

import pytest

from gpuinfra.remote.wire import HEADER, JSON
from gpuinfra.runner.connection.port import Process
from gpuinfra.runner.connection.remote_client import Call, RemoteClient
from gpuinfra.runner.errors import JobError, RemoteError
from gpuinfra.runner.remote_runs import count_of, list_runs, read_usage
from gpuinfra.runner.upload import _Sender


class Machine:
    """A process that replies byte by byte, with a pause before each."""

    errors = ""

    def __init__(self, answer: object, pause: float = 0.0) -> None:
        payload = json.dumps(answer).encode()
        self._left = HEADER.pack(JSON, len(payload)) + payload
        self._pause = pause
        self.clock = 0.0

    def read(self) -> bytes:
        self.clock += self._pause
        found, self._left = self._left[:1], self._left[1:]
        return found

    def write(self, data: bytes) -> None:
        pass

    def set_idle_timeout(self, seconds: float | None) -> None:
        pass

    def end_input(self) -> None:
        pass

    def close(self) -> None:
        pass


class Client(RemoteClient):
    """A client whose calls all use one process."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(cast("Any", None))
        self._machine = machine

    def _take(self) -> Call:
        return Call(cast("Process", self._machine), "the machine")


def test_missing_field_is_a_protocol_error() -> None:
    with pytest.raises(RemoteError, match="`root`") as caught:
        Client(Machine({})).ask("hello")["root"]
    assert caught.value.code == "protocol"


UPLOADS = [{}, {"seconds": "x", "same": True}, {"seconds": None, "same": True}, {"seconds": 0.0}]


@pytest.mark.parametrize("answer", UPLOADS)
def test_malformed_upload_reply_is_reported(answer: object) -> None:
    class Tree:
        digest = ""

    with pytest.raises(RemoteError):
        _Sender(cast("Any", Tree()), cast("Any", None)).send(Client(Machine(answer)), {})


@pytest.mark.parametrize("answer", [{}, {"samples": "x"}, {"samples": None}])
def test_malformed_gpu_usage_is_reported(answer: object) -> None:
    with pytest.raises(JobError):
        read_usage(Client(Machine(answer)), "run")


@pytest.mark.parametrize("answer", [{}, {"runs": 3}, {"runs": [3]}, {"runs": [{}]}])
def test_malformed_list_of_runs_is_reported(answer: object) -> None:
    with pytest.raises(JobError):
        list_runs(Client(Machine(answer)))


@pytest.mark.parametrize("hostile", ["1000", [1], {"a": 1}, -1, 1.5, True, None])
def test_malformed_count_is_reported(hostile: object) -> None:
    with pytest.raises(JobError, match="is not a count"):
        count_of({"logGap": hostile}, "logGap")


def test_missing_count_is_zero() -> None:
    assert count_of({}, "logGap") == 0
    assert count_of({"logGap": 7}, "logGap") == 7
