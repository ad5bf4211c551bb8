"""Live lines and a job's output on one screen, with the real ticker."""

import io
import time
from collections.abc import Callable

from gpuinfra.models.run import GpuSample, LiveStatus
from gpuinfra.views.progress import ProgressView
from tests.screen import screen
from tests.unit.test_views_progress import Bytes, Clock, Terminal, console_on

SECONDS = 5.0


def eventually(is_so: Callable[[], bool]) -> bool:
    ends = time.monotonic() + SECONDS
    while not is_so() and time.monotonic() < ends:
        time.sleep(0.01)
    return is_so()


def test_progress_lines_return_when_the_job_is_silent() -> None:
    stream, clock = Terminal(), Clock()
    job = Bytes(stream)
    with ProgressView(console=console_on(stream), clock=clock) as view:
        view.begin("job", "running")
        view.output(job, b"epoch 1", on_screen=True)
        clock.now += 30
        time.sleep(0.3)  # three frames
        assert screen(stream.getvalue()) == ["epoch 1"]  # the job may continue this line
        view.output(job, b"\n", on_screen=True)
        time.sleep(0.3)
        assert screen(stream.getvalue()) == ["epoch 1"]  # it was not silent for long
        clock.now += 1
        assert eventually(lambda: len(screen(stream.getvalue())) == 2)
        assert screen(stream.getvalue())[1].endswith("31 s  running")
        view.output(job, b"epoch 2\n", on_screen=True)
        assert screen(stream.getvalue()) == ["epoch 1", "epoch 2"]
        view.end("job", "ended")
    assert [line.split()[0] for line in screen(stream.getvalue())] == ["epoch", "epoch", "✓"]


def test_amount_is_drawn_without_further_calls() -> None:
    stream, clock = Terminal(), Clock()
    with ProgressView(console=console_on(stream), clock=clock) as view:
        view.begin("upload", "sending")
        view.amount("upload", 50, 100)
        assert eventually(lambda: "50 %" in stream.getvalue())
        view.end("upload", "sent")


def test_frequent_updates_are_cheap() -> None:
    stream = io.StringIO()
    with ProgressView(console=console_on(stream)) as view:
        view.begin("upload", "sending")
        began = time.process_time()
        for part in range(100_000):
            view.amount("upload", part, 100_000)
        # Some microseconds each, while writing a line takes hundreds.
        assert time.process_time() - began < 2.0
        view.end("upload", "sent")
    assert len(stream.getvalue().splitlines()) <= 3


def test_live_line_of_a_silent_job_gives_way_to_its_output() -> None:
    stream, clock = Terminal(), Clock()
    job = Bytes(stream)
    status = LiveStatus("20261116-081500-ab12", 75, GpuSample(87.4, 12288), 0.421, simulated=True)
    with ProgressView(console=console_on(stream), clock=clock) as view:
        view.set_status(lambda: status)
        line = "20261116-081500-ab12  1 min 15 s  GPU 87 %  12.0 GiB  $0"
        assert screen(stream.getvalue())[0][2:].startswith(line)
        view.output(job, b"epoch 1\n", on_screen=True)
        assert screen(stream.getvalue()) == ["epoch 1"]
        clock.now += 2
        assert eventually(lambda: len(screen(stream.getvalue())) == 2)
        assert len(screen(stream.getvalue())[1]) < 60
        view.set_status(None)
        assert eventually(lambda: screen(stream.getvalue())[1:] in ([], [""]))
    assert screen(stream.getvalue())[0] == "epoch 1"
    assert "20261116" not in "".join(screen(stream.getvalue()))


def test_live_line_needs_a_terminal() -> None:
    stream = io.StringIO()
    with ProgressView(console=console_on(stream)) as view:
        assert not view.shows_status
        view.set_status(lambda: LiveStatus("r1", 1, None, None, simulated=False))
    assert not stream.getvalue()
