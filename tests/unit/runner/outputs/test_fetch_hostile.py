"""A machine that lies about its outputs: nothing of it ends outside of the folder, or under a name it has no right to.

The remote side is a script of messages: no real one sends these.
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
from gpuinfra.runner.outputs.fetch import Fetched, fetch

Message = dict[str, Any] | bytes
END: Message = {"confirmed": 1, "changed": 0, "gone": 0}


class Liar:
    """Says the same whatever it is asked."""

    def __init__(self, *messages: Message | Exception) -> None:
        self._messages = messages
        self.calls = 0

    @contextlib.contextmanager
    def call(self, verb: str, request: dict[str, Any], *, idle: float | None = 60.0) -> Iterator["Liar"]:
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


def told(tmp_path: Path, liar: Liar) -> Fetched:
    return fetch(liar, "run-1", tmp_path / "run" / "outputs", final=True)  # type: ignore[arg-type]


def file(path: str, content: bytes, **changes: Any) -> list[Message]:
    found = digest()
    found.update(content)
    header = {"file": path, "stamp": [len(content), 1, 1], "mode": 0o644, "offset": 0, **changes}
    return [header, PLAIN + content, {"digest": found.hexdigest()}]


def files_in(tmp_path: Path) -> set[str]:
    found = {str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*") if not each.is_dir()}
    return found - {"run/outputs-index", "run/outputs-lock"}


def test_an_honest_script_is_believed(tmp_path: Path) -> None:
    found = told(tmp_path, Liar(*file("a/b", b"content"), END))
    assert (found.complete, found.files, found.size) == (True, 1, 7)
    assert files_in(tmp_path) == {"run/outputs/a/b"}


@pytest.mark.parametrize("path", ["../a", "/tmp/gpuinfra-liar", "a/../../b", "", "a\0b", "./a"])
def test_no_path_leads_out(tmp_path: Path, path: str) -> None:
    for messages in (file(path, b"x"), [{"folders": [[path, 0o755]]}], [{"links": [[path, "a"]]}]):
        with pytest.raises(JobError, match="leads elsewhere"):
            told(tmp_path, Liar(*messages, END))
    assert files_in(tmp_path) == set()
    assert not Path("/tmp/gpuinfra-liar").exists()


def test_a_link_and_then_a_file_behind_it_stay_apart(tmp_path: Path) -> None:
    (tmp_path / "run" / "outputs" / "real").mkdir(parents=True)
    told(tmp_path, Liar({"links": [["l", "real"]]}, *file("l/x", b"x"), END))
    assert files_in(tmp_path) == {"run/outputs/l/x"}
    assert (tmp_path / "run" / "outputs" / "l.before-1").is_symlink()
    assert not (tmp_path / "run" / "outputs" / "real" / "x").exists()


def test_a_damaged_file_is_asked_for_again_and_never_placed(tmp_path: Path) -> None:
    header, data, _ = file("a", b"content")
    liar = Liar(header, data, {"digest": "0" * 32}, END)
    found = told(tmp_path, liar)
    assert (found.complete, found.files, liar.calls) == (False, 0, 3)
    assert files_in(tmp_path) == set()


def test_a_file_that_is_said_to_be_sent_and_is_not_makes_it_incomplete(tmp_path: Path) -> None:
    assert not told(tmp_path, Liar(END)).complete


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
def test_what_makes_no_sense_is_told_and_leaves_nothing(tmp_path: Path, messages: list[Message]) -> None:
    with pytest.raises(JobError):
        told(tmp_path, Liar(*messages, END))
    assert files_in(tmp_path) == set()


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    bomb = zlib.compress(b"\0" * (8 << 20), 1)
    with pytest.raises(JobError, match="longer than"):
        told(tmp_path, Liar(file("a", b"x")[0], PACKED + bomb, END))
    assert files_in(tmp_path) == set()


@pytest.mark.parametrize("error", [ConnectError("cut"), RemoteError("disk-full", "no space")])
def test_what_is_cut_off_leaves_no_part_of_a_small_file(tmp_path: Path, error: Exception) -> None:
    header, data, _ = file("a", b"content")
    with pytest.raises((ConnectError, JobError)):
        told(tmp_path, Liar(header, data, error))
    assert files_in(tmp_path) == set()


def test_endless_list_of_unreadable_files_makes_no_sense(tmp_path: Path) -> None:
    many: Message = {"unreadable": [[f"{number}/{'x' * 200}", "permission"] for number in range(1000)]}
    with pytest.raises(JobError, match="makes no sense"):
        told(tmp_path, Liar(*[many] * 200, END))


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
    monkeypatch.setattr("gpuinfra.runner.outputs.fetch.MOST_ENTRIES", 3, raising=False)
    with pytest.raises(JobError, match="too many outputs"):
        told(tmp_path, Liar(*messages, END))
    assert len(list((tmp_path / "run" / "outputs").iterdir())) == 3


def test_number_of_outputs_is_limited_for_all_calls_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuinfra.runner.outputs.fetch.MOST_ENTRIES", 3, raising=False)
    told(tmp_path, Liar(*file("0", b""), *file("1", b""), END))
    with pytest.raises(JobError, match="too many outputs"):
        told(tmp_path, Liar(*file("2", b""), *file("3", b""), END))
