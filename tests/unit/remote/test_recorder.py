"""The streams of an attached container."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from gpuinfra.remote.recorder import Demultiplexer


def sent(stream: int, data: bytes) -> bytes:
    return struct.pack(">BxxxI", stream, len(data)) + data


@given(st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=9))), st.integers(1, 40))
def test_streams_are_separated_from_pieces_of_any_size(frames: list[tuple[int, bytes]], size: int) -> None:
    data = b"".join(sent(*frame) for frame in frames)
    demultiplexer = Demultiplexer()
    got = [each for start in range(0, len(data), size) for each in demultiplexer.feed(data[start : start + size])]
    for stream in (1, 2):
        assert b"".join(part for each, part in got if each == stream) == b"".join(
            part for each, part in frames if each == stream
        )


def test_parts_of_a_stream_are_joined_in_order() -> None:
    data = sent(1, b"one ") + sent(1, b"two") + sent(2, b"bad") + sent(1, b"three") + sent(3, b"from the engine")
    assert list(Demultiplexer().feed(data)) == [(1, b"one two"), (2, b"bad"), (1, b"three")]
