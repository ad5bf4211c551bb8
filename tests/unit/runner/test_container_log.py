"""Parse a container's log as the engine sends it."""

import struct

import pytest

from gpuinfra.models.run import STDERR, STDOUT, Frame
from gpuinfra.runner.container_log import Parser, new_frames, restore_line_ends
from gpuinfra.runner.errors import JobError
from gpuinfra.runner.job import Position

START = 1_794_832_096_000_000_000  # 2026-11-16T12:28:16Z


def sent(stream: int, stamp: str, data: bytes) -> bytes:
    content = stamp.encode() + b" " + data
    return struct.pack(">BxxxI", stream, len(content)) + content


def test_frames_are_parsed_from_pieces_of_any_size() -> None:
    content = sent(STDOUT, "2026-11-16T12:28:16.000000005Z", b"one two\n")
    content += sent(STDERR, "2026-11-16T12:28:17.120000000Z", b"\x00\xff \n")
    expected = [Frame(STDOUT, START + 5, b"one two\n"), Frame(STDERR, START + 1_120_000_000, b"\x00\xff \n")]
    for size in range(1, len(content) + 1):
        parser = Parser()
        pieces = [content[place : place + size] for place in range(0, len(content), size)]
        assert [frame for piece in pieces for frame in parser.feed(piece)] == expected
        assert parser.is_whole


def test_incomplete_frame_is_detected() -> None:
    parser = Parser()
    assert not list(parser.feed(sent(STDOUT, "2026-11-16T12:28:16.000000005Z", b"one")[:-1]))
    assert not parser.is_whole


def test_times_with_fewer_digits_and_offsets_are_parsed() -> None:
    (frame,) = Parser().feed(sent(STDOUT, "2026-11-16T12:28:16.5Z", b"x"))
    assert frame.time == START + 500_000_000
    (frame,) = Parser().feed(sent(STDOUT, "2026-11-16T12:28:16Z", b"x"))
    assert frame.time == START
    (frame,) = Parser().feed(sent(STDOUT, "2026-11-16T13:58:16.000000001+01:30", b"x"))
    assert frame.time == START + 1


@pytest.mark.parametrize(
    "content",
    [sent(3, "Error", b"grabbing logs: invalid character"), sent(STDOUT, "no", b"time"), sent(STDOUT, "", b"")],
)
def test_invalid_log_line_is_reported(content: bytes) -> None:
    with pytest.raises(JobError, match="log cannot be read"):
        list(Parser().feed(content))


def test_missing_end_of_a_long_line_is_restored() -> None:
    parts = [Frame(STDOUT, 10, b"x" * 16384), Frame(STDERR, 11, b"other\n"), Frame(STDOUT, 10, b"xx")]
    lost = [*parts, Frame(STDERR, 12, b"more\n"), Frame(STDOUT, 13, b"next\n")]
    assert list(restore_line_ends(lost)) == [*parts, Frame(STDERR, 12, b"more\n"), Frame(STDOUT, 13, b"\nnext\n")]
    kept = [parts[0], Frame(STDOUT, 10, b"xx\n"), Frame(STDOUT, 13, b"next")]
    assert list(restore_line_ends(kept)) == kept


def test_times_never_go_back() -> None:
    frames = [Frame(STDOUT, 10, b"a"), Frame(STDERR, 8, b"b"), Frame(STDOUT, 11, b"c")]
    assert [frame.time for frame in new_frames(frames, Position())] == [10, 10, 11]


def test_known_bytes_of_each_stream_are_skipped() -> None:
    frames = [Frame(STDOUT, 10, b"one\n"), Frame(STDERR, 8, b"wrong\n"), Frame(STDOUT, 11, b"two\n")]
    assert list(new_frames(frames, Position(99, 20, stdout=6, stderr=6))) == [Frame(STDOUT, 20, b"o\n")]
    assert [frame.data for frame in new_frames(frames, Position(99, 9, stdout=4))] == [b"wrong\n", b"two\n"]
    assert list(new_frames(frames, Position(99, 20, stdout=8, stderr=6))) == []


def test_frame_that_is_too_large_is_an_error() -> None:
    with pytest.raises(JobError, match="too large"):
        list(Parser().feed(struct.pack(">BxxxI", STDOUT, 2**32 - 1)))
