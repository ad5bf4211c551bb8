"""The last lines of a log, and what was printed since a time."""

from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuinfra.models.run import STDERR, STDOUT, Frame
from gpuinfra.runner import log_window
from gpuinfra.runner.log import LogFile
from gpuinfra.runner.log_window import LogWindow

FRAMES = [
    Frame(STDOUT, 10, b"one\ntw"),
    Frame(STDERR, 20, b"bad\n"),
    Frame(STDOUT, 30, b"o\nthree\nfo"),
    Frame(STDERR, 40, b"half"),
]


def log_of(folder: Path, frames: list[Frame]) -> LogFile:
    (folder / "log").unlink(missing_ok=True)
    log = LogFile(folder / "log")
    with log:
        assert log.try_lock()
        for frame in frames:
            log.append(frame)
    return log


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (LogWindow(), [b"one\ntw", b"bad\n", b"o\nthree\nfo", b"half"]),
        (LogWindow(0), []),
        (LogWindow(2), [b"fo", b"half"]),
        (LogWindow(4), [b"two\n", b"three\n", b"fo", b"half"]),
        (LogWindow(99), [b"one\n", b"bad\n", b"two\n", b"three\n", b"fo", b"half"]),
        (LogWindow(2, streams=(STDERR,)), [b"bad\n", b"half"]),
        (LogWindow(since=20), [b"bad\n", b"o\nthree\nfo", b"half"]),
        (LogWindow(3, since=30), [b"three\n", b"fo", b"half"]),
        (LogWindow(since=41), []),
    ],
)
def test_window_selects_lines(tmp_path: Path, window: LogWindow, expected: list[bytes]) -> None:
    assert [frame.data for frame in window.frames(log_of(tmp_path, FRAMES))] == expected


def test_frames_after_the_end_are_left_out(tmp_path: Path) -> None:
    log, end = log_of(tmp_path, FRAMES), sum(frame.size for frame in FRAMES[:2])
    assert [frame.data for frame in LogWindow(2).frames(log, end)] == [b"bad\n", b"tw"]
    assert [frame.data for frame in LogWindow().frames(log, end)] == [b"one\ntw", b"bad\n"]


@given(
    st.lists(
        st.tuples(st.sampled_from([STDOUT, STDERR]), st.sampled_from([b"a", b"\n", b"bc\nd", b"e\n"])), max_size=20
    ),
    st.integers(0, 9),
    st.sampled_from([(STDOUT, STDERR), (STDOUT,)]),
)
def test_last_lines_are_those_of_the_whole_log(
    tmp_path_factory: pytest.TempPathFactory, parts: list[tuple[int, bytes]], tail: int, streams: Collection[int]
) -> None:
    log = log_of(tmp_path_factory.mktemp("log"), [Frame(stream, 1, data) for stream, data in parts])
    whole = list(LogWindow(10**6, streams=streams).frames(log))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_window, "FIRST_BYTES", 8)
        found = list(LogWindow(tail, streams=streams).frames(log))
    assert found == whole[max(0, len(whole) - tail) :]


def test_only_the_end_of_a_large_log_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of(tmp_path, [Frame(STDOUT, number, b"x" * 50_000 + b"\n") for number in range(100)])
    read: list[int] = []
    frames = LogFile.frames

    def counted(log: LogFile, after_size: int = 0, end: int | None = None) -> Iterator[Frame]:
        read.append(after_size)
        return frames(log, after_size, end)

    monkeypatch.setattr(LogFile, "frames", counted)
    assert len(list(LogWindow(2).frames(log))) == 2
    assert read[-1] > 4_000_000
