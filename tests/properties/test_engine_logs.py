"""A log that is cut anywhere, as often as one likes, and taken up again, is the log."""

from hypothesis import given
from hypothesis import strategies as st

from gpuinfra.models.outputs import STDERR, STDOUT, Frame
from gpuinfra.runner.jobs.container_log import REORDER_MARGIN, new_frames, next_position, resume_time
from gpuinfra.runner.jobs.job import Position

STEP = 3
"""Few times, so that many frames have the same one."""


@st.composite
def logs(draw: st.DrawFn) -> list[Frame]:
    """As an engine keeps it: in the order of its coming, with times that go back by less than the margin."""
    time, frames = REORDER_MARGIN * 2, []
    for number, (step, back, stream) in enumerate(
        draw(
            st.lists(
                st.tuples(
                    st.sampled_from([0, 0, 0, 1, STEP, REORDER_MARGIN * 3]),
                    st.sampled_from([0, 0, 1, 2, STEP, REORDER_MARGIN // 2 - 1]),
                    st.sampled_from([STDOUT, STDERR]),
                ),
                max_size=40,
            )
        )
    ):
        time += step
        frames.append(Frame(stream, time - back, b"%d" % number))
    return frames


@given(logs(), st.data())
def test_a_log_that_is_cut_and_taken_up_is_the_log(log: list[Frame], data: st.DataObject) -> None:
    got: list[Frame] = []
    place = Position()
    for _ in range(data.draw(st.integers(0, 4))):
        # The engine gives what it has by then, from a time on, and the connection may be lost after any of it.
        there = log[: data.draw(st.integers(len(got), len(log)))]
        wanted = data.draw(st.integers(0, len(log)))
        for frame, _ in zip(new_frames(_kept(there, place), place), range(wanted), strict=False):
            got.append(frame)
            place = next_position(place, frame)
    got += new_frames(_kept(log, place), place)
    assert [(frame.stream, frame.data) for frame in got] == [(frame.stream, frame.data) for frame in log]
    assert [frame.time for frame in got] == sorted(frame.time for frame in got)


def _kept(log: list[Frame], place: Position) -> list[Frame]:
    """What `since` leaves: the engine looks at each line's own time."""
    return [frame for frame in log if frame.time >= resume_time(place)]
