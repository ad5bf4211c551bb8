"""A hostile machine cannot write outside of the outputs folder, or place damaged files.

The machine is a list of messages, which no real one would send.
"""

import contextlib
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuinfra.remote.outputs import PACKED, PLAIN, digest
from gpuinfra.remote.wire import DATA, JSON
from gpuinfra.runner.errors import ConnectError, JobError, RemoteError
from gpuinfra.runner.fetch import Fetched, fetch

Message = dict[str, Any] | bytes
END: Message = {"confirmed": 1, "changed": 0, "gone": 0}


class HostileMachine:
    """Sends the same messages in every call."""

    def __init__(self, *messages: Message | Exception) -> None:
        self._messages = messages
        self.calls = 0

    @contextlib.contextmanager
    def call(self, verb: str, request: dict[str, Any], *, idle: float | None = 60.0) -> Iterator["HostileMachine"]:
        self.calls += 1
        self._left = iter(self._messages)
        yield self

    def send(self, payload: bytes) -> None:
        pass

    def receive(self) -> tuple[bytes, bytes]:
        message = next(self._left)
        if isinstance(message, Exception):
            raise message
        return (DATA, message) if isinstance(message, bytes) else (JSON, json.dumps(message).encode())


def fetch_from(tmp_path: Path, machine: HostileMachine) -> Fetched:
    return fetch(machine, "run-1", tmp_path / "run" / "outputs", final=True)  # type: ignore[arg-type]


def file(path: str, content: bytes, **changes: Any) -> list[Message]:
    found = digest()
    found.update(content)
    header = {"file": path, "stamp": [len(content), 1, 1], "mode": 0o644, "offset": 0, **changes}
    return [header, PLAIN + content, {"digest": found.hexdigest()}]


def files_in(tmp_path: Path) -> set[str]:
    found = {str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*") if not each.is_dir()}
    return found - {"run/outputs-index", "run/outputs-lock"}


def test_correct_messages_are_accepted(tmp_path: Path) -> None:
    found = fetch_from(tmp_path, HostileMachine(*file("a/b", b"content"), END))
    assert (found.complete, found.files, found.size) == (True, 1, 7)
    assert files_in(tmp_path) == {"run/outputs/a/b"}


@pytest.mark.parametrize("path", ["../a", "/tmp/gpuinfra-machine", "a/../../b", "", "a\0b", "./a"])
def test_unsafe_paths_are_refused(tmp_path: Path, path: str) -> None:
    for messages in (file(path, b"x"), [{"folders": [[path, 0o755]]}], [{"links": [[path, "a"]]}]):
        with pytest.raises(JobError, match="outside `outputs`"):
            fetch_from(tmp_path, HostileMachine(*messages, END))
    assert files_in(tmp_path) == set()
    assert not Path("/tmp/gpuinfra-machine").exists()


def test_file_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "run" / "outputs" / "real").mkdir(parents=True)
    fetch_from(tmp_path, HostileMachine({"links": [["l", "real"]]}, *file("l/x", b"x"), END))
    assert files_in(tmp_path) == {"run/outputs/l/x"}
    assert (tmp_path / "run" / "outputs" / "l.before-1").is_symlink()
    assert not (tmp_path / "run" / "outputs" / "real" / "x").exists()


def test_damaged_file_is_requested_again_and_never_placed(tmp_path: Path) -> None:
    header, data, _ = file("a", b"content")
    machine = HostileMachine(header, data, {"digest": "0" * 32}, END)
    found = fetch_from(tmp_path, machine)
    assert (found.complete, found.files, machine.calls) == (False, 0, 3)
    assert files_in(tmp_path) == set()


def test_missing_file_makes_the_fetch_incomplete(tmp_path: Path) -> None:
    assert not fetch_from(tmp_path, HostileMachine(END)).complete


@pytest.mark.parametrize(
    "messages",
    [
        [*file("a", b"x")[:1], PLAIN + b"much longer than one byte"],
        [*file("a", b"x")[:1], PACKED + b"no zlib"],
        [*file("a", b"x", offset=5)],
        [*file("a", b"x", stamp=[1, 2**200, 1])],
        [*file("a", b"x", stamp="abc")],
        [*file("a", b"x", mode="rwx")],
        [{"file": "a"}],
        [{"same": [["a", 1, 1, 1, "00"]]}],
        [{"folders": [1]}],
        [{"confirmed": 1}],
    ],
)
def test_malformed_messages_leave_no_file(tmp_path: Path, messages: list[Message]) -> None:
    with pytest.raises(JobError):
        fetch_from(tmp_path, HostileMachine(*messages, END))
    assert files_in(tmp_path) == set()


def test_decompression_bomb_is_refused(tmp_path: Path) -> None:
    bomb = zlib.compress(b"\0" * (8 << 20), 1)
    with pytest.raises(JobError, match="longer than announced"):
        fetch_from(tmp_path, HostileMachine(file("a", b"x")[0], PACKED + bomb, END))
    assert files_in(tmp_path) == set()


@pytest.mark.parametrize("error", [ConnectError("cut"), RemoteError("disk-full", "no space")])
def test_interrupted_fetch_leaves_no_partial_small_file(tmp_path: Path, error: Exception) -> None:
    header, data, _ = file("a", b"content")
    with pytest.raises((ConnectError, JobError)):
        fetch_from(tmp_path, HostileMachine(header, data, error))
    assert files_in(tmp_path) == set()


def test_list_of_unreadable_files_is_limited(tmp_path: Path) -> None:
    many: Message = {"unreadable": [[f"{number}/{'x' * 200}", "permission"] for number in range(1000)]}
    with pytest.raises(JobError, match="too many unreadable files"):
        fetch_from(tmp_path, HostileMachine(*[many] * 200, END))


@pytest.mark.parametrize(
    "messages",
    [
        [message for number in range(4) for message in file(f"{number}", b"")],
        [{"folders": [[f"{number}", 0o755]]} for number in range(4)],
        [{"links": [[f"{number}", "a"]]} for number in range(4)],
    ],
    ids=["files", "folders", "links"],
)
def test_number_of_outputs_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: list[Message]) -> None:
    monkeypatch.setattr("gpuinfra.runner.fetch.MAX_ENTRIES", 3, raising=False)
    with pytest.raises(JobError, match="too many outputs"):
        fetch_from(tmp_path, HostileMachine(*messages, END))
    assert len(list((tmp_path / "run" / "outputs").iterdir())) == 3


def test_number_of_outputs_is_limited_for_all_calls_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuinfra.runner.fetch.MAX_ENTRIES", 3, raising=False)
    fetch_from(tmp_path, HostileMachine(*file("0", b""), *file("1", b""), END))
    with pytest.raises(JobError, match="too many outputs"):
        fetch_from(tmp_path, HostileMachine(*file("2", b""), *file("3", b""), END))
