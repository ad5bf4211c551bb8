"""Log files of jobs have whole frames, even if a writer is killed."""

import os
from pathlib import Path

import pytest

from gpuinfra.diagnostics import Code
from gpuinfra.models.run import STDERR, STDOUT, Frame
from gpuinfra.remote.job_log import JobLog
from gpuinfra.runner.errors import JobError
from gpuinfra.runner.job import Position
from gpuinfra.runner.log import HEADER, FrameReader, LogFile

FRAMES = [
    Frame(STDOUT, 1_000, b"one\n"),
    Frame(STDERR, 2_000, b"\x00\xff not text"),
    Frame(STDOUT, 2_000, b""),
    Frame(STDOUT, 3_000, b"x" * 100_000),
]


def written(path: Path, frames: list[Frame] = FRAMES) -> Path:
    with LogFile(path) as log:
        assert log.try_lock()
        for frame in frames:
            log.append(frame)
    return path


def encoded(frame: Frame) -> bytes:
    return HEADER.pack(frame.stream, frame.time, len(frame.data)) + frame.data


def test_written_frames_are_read_unchanged(tmp_path: Path) -> None:
    assert list(LogFile(written(tmp_path / "runs" / "log")).frames()) == FRAMES


def test_frame_header_has_the_documented_format(tmp_path: Path) -> None:
    found = written(tmp_path / "log", FRAMES[:1]).read_bytes()
    assert found == b"\x01" + (1_000).to_bytes(8, "big") + (4).to_bytes(4, "big") + b"one\n"


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, Position()),
        (1, Position(17, 1_000, stdout=4)),
        (2, Position(41, 2_000, stdout=4, stderr=11)),
        (3, Position(54, 2_000, stdout=4, stderr=11)),
        (4, Position(100_067, 3_000, stdout=100_004, stderr=11)),
    ],
)
def test_position_counts_the_bytes_of_each_stream(tmp_path: Path, count: int, expected: Position) -> None:
    path = tmp_path / "log"
    with LogFile(path) as log:
        assert log.try_lock()
        for frame in FRAMES[:count]:
            log.append(frame)
        assert log.position == expected
    assert LogFile(path).position == expected


def test_frames_after_a_position_are_read(tmp_path: Path) -> None:
    log = LogFile(written(tmp_path / "log"))
    assert list(log.frames(17)) == FRAMES[1:]
    assert list(log.frames(log.position.size)) == []


@pytest.mark.parametrize("cut", [1, 12, 13, 14, 99_999])
def test_readers_skip_an_incomplete_last_frame(tmp_path: Path, cut: int) -> None:
    path = written(tmp_path / "log")
    os.truncate(path, path.stat().st_size - 100_013 + cut)
    log = LogFile(path)
    assert list(log.frames()) == FRAMES[:3]
    assert log.position == Position(54, 2_000, 4, 11)
    assert path.stat().st_size == 54 + cut  # who only reads changes nothing


@pytest.mark.parametrize("tail", [b"\x01", encoded(FRAMES[3])[:50], b"\0" * 4096, b"\x07" * 40, b"\x01" + b"\xff" * 40])
def test_next_writer_removes_an_incomplete_last_frame(tmp_path: Path, tail: bytes) -> None:
    path = written(tmp_path / "log", FRAMES[:2])
    with path.open("ab") as file:
        file.write(tail)
    written(path, FRAMES[3:])
    assert list(LogFile(path).frames()) == [*FRAMES[:2], FRAMES[3]]


def test_reader_sees_frames_that_are_appended(tmp_path: Path) -> None:
    path = tmp_path / "log"
    reader = LogFile(path)
    with LogFile(path) as log:
        assert log.try_lock()
        seen, size = [], 0
        for frame in FRAMES:
            log.append(frame)
            seen += list(reader.frames(size))
            size = reader.position.size
    assert seen == FRAMES


def test_only_one_process_can_write(tmp_path: Path) -> None:
    first, second = LogFile(tmp_path / "log"), LogFile(tmp_path / "log")
    with first, second:
        assert first.try_lock()
        assert first.try_lock()
        assert not second.try_lock()
        assert (first.is_followed, second.is_followed) == (True, True)
        with pytest.raises(RuntimeError):
            second.append(FRAMES[0])
        first.close()
        assert (first.is_followed, second.is_followed) == (False, False)
        assert second.try_lock()


def test_full_disk_leaves_no_incomplete_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "log", FRAMES[:2])
    real = os.write

    def half(file: int, data: memoryview) -> int:
        if len(data) > 20:
            return real(file, data[:20])
        raise OSError(28, "No space left on device")

    with LogFile(path) as log:
        assert log.try_lock()
        monkeypatch.setattr(os, "write", half)
        with pytest.raises(JobError) as caught:
            log.append(Frame(STDOUT, 9, b"y" * 30))
        monkeypatch.undo()
        assert caught.value.code == Code.DISK_FULL
        log.append(FRAMES[3])
    assert list(LogFile(path).frames()) == [*FRAMES[:2], FRAMES[3]]


def test_missing_file_is_an_empty_log(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "nowhere" / "log")
    assert (list(log.frames()), log.position, log.is_followed) == ([], Position(), False)
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("size", [1, 2, 13, 14, 1000, 10**6])
def test_frames_are_parsed_from_pieces_of_any_size(size: int) -> None:
    data = b"".join(map(encoded, FRAMES))
    data = data[:2000] if size < 10 else data
    reader, found = FrameReader(), []
    for start in range(0, len(data), size):
        found += list(reader.add(data[start : start + size]))
    assert found == FRAMES[: 3 if size < 10 else 4]


def test_invalid_frame_is_refused() -> None:
    reader = FrameReader()
    with pytest.raises(ValueError, match="invalid data"):
        list(reader.add(encoded(FRAMES[0]) + b"\x09" * 20))


class FullDisk:
    """Replaces `os.write` as on a disk with limited space."""

    def __init__(self) -> None:
        self.left = 0
        self._real = os.write

    def __call__(self, file: int, data: bytes) -> int:
        if not self.left:
            raise OSError(28, "No space left on device")
        count = self._real(file, data[: self.left])
        self.left -= count
        return count


@pytest.mark.parametrize("left", [0, 1, 12, 13, 15, 17])
def test_log_on_the_target_reports_bytes_lost_to_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    """A follower may have read a part of the frame, so the rest of it is written later."""
    path, disk = tmp_path / "log", FullDisk()
    log = JobLog(str(path))
    monkeypatch.setattr(os, "write", disk)
    disk.left = left
    log.add(STDOUT, b"12345")
    before = path.read_bytes()
    log.add(STDOUT, b"lost")
    disk.left = 10**6
    log.add(STDERR, b"after")
    log.end()
    assert path.read_bytes().startswith(before)
    frames = list(LogFile(path).frames())
    lost = 4 if left else 9
    assert log.missing == lost
    assert [frame.stream for frame in frames] == [STDOUT, STDERR, STDERR][0 if left else 1 :]
    assert b" %d bytes " % lost in frames[-2].data
    assert frames[-1].data == b"after"
    assert [frame.time for frame in frames] == sorted(frame.time for frame in frames)
