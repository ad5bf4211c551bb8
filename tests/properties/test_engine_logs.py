"""What a client has read of a container, with what it reads next from the engine's log, is the whole output."""

from hypothesis import given
from hypothesis import strategies as st

from gpuinfra.models.run import STDERR, STDOUT, Frame
from gpuinfra.runner.container_log import new_frames
from gpuinfra.runner.job import Position


@st.composite
def logs(draw: st.DrawFn) -> list[Frame]:
    """Return frames as an engine keeps them, with times that can go back a little."""
    parts = st.tuples(st.sampled_from([STDOUT, STDERR]), st.integers(0, 9), st.binary(max_size=5))
    return [Frame(stream, 100 + time, data) for stream, time, data in draw(st.lists(parts, max_size=30))]


def printed(frames: list[Frame], stream: int) -> bytes:
    return b"".join(frame.data for frame in frames if frame.stream == stream)


@given(logs(), st.data())
def test_cut_and_resumed_output_is_the_whole_output(log: list[Frame], data: st.DataObject) -> None:
    # The recorded part ends anywhere in each stream, and its frames are not those of the engine.
    got, place = [], Position()
    for stream in (STDOUT, STDERR):
        whole = printed(log, stream)
        frame = Frame(stream, 103, whole[: data.draw(st.integers(0, len(whole)))])
        got.append(frame)
        place = place.after(frame)
    for _ in range(data.draw(st.integers(0, 3))):
        # The engine has a part of it by then, and the connection may be lost after any frame.
        there = log[: data.draw(st.integers(0, len(log)))]
        wanted = data.draw(st.integers(0, len(log)))
        for frame, _ in zip(new_frames(there, place), range(wanted), strict=False):
            got.append(frame)
            place = place.after(frame)
    got += new_frames(log, place)
    for stream in (STDOUT, STDERR):
        assert printed(got, stream) == printed(log, stream)
    assert [frame.time for frame in got] == sorted(frame.time for frame in got)
