"""The layout of progress, on a terminal and elsewhere."""

import errno
import io
from threading import Thread
from typing import Any

import pytest
from rich.console import Console

from gpuinfra.views.progress import ProgressView, TransferProgress
from gpuinfra.views.terminal import duration
from tests.screen import screen


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class Latin(Terminal):
    encoding = "iso-8859-1"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def console_on(stream: io.StringIO, height: int = 24) -> Console:
    return Console(
        file=stream,
        width=60,
        height=height,
        color_system=None,
        force_terminal=stream.isatty(),
        legacy_windows=False,
        markup=False,
        _environ={"TERM": "xterm"},
    )


def test_output_without_a_terminal_is_plain_lines() -> None:
    stream, clock = io.StringIO(), Clock()
    with ProgressView(console=console_on(stream), clock=clock) as view:
        view.begin("machine my-dsvm", "creating")
        assert stream.getvalue() == "machine my-dsvm: creating\n"  # at once
        clock.now += 12.34
        view.wait("Azure is throttling", 16.2)
        view.note("eastus has no room; trying westus2")
        view.end("machine my-dsvm", "created")
        view.begin("address a", "creating")
        view.fail("address a", "QuotaExceeded: 0 left " + "and so on " * 20)
        view.end("disk d", "deleted")
    lines = stream.getvalue().splitlines()
    assert lines[1:4] == [
        "waiting 17 s: Azure is throttling",
        "eastus has no room; trying westus2",
        "machine my-dsvm: created (12.3 s)",
    ]
    assert lines[5].startswith("address a: failed: QuotaExceeded: 0 left and so on")
    assert lines[6:] == ["disk d: deleted (0.0 s)"]


def test_finished_steps_stay_on_a_terminal() -> None:
    stream, clock = Terminal(), Clock()
    with ProgressView(console=console_on(stream), clock=clock) as view:
        view.begin("network n", "creating")
        view.begin("address a", "creating")
        clock.now += 2
        view.end("address a", "created")
        assert [line[0] + line[-22:] for line in screen(stream.getvalue())] == [
            "⠋" + "          2 s  creating"[-22:],
            "✓" + "        2.0 s  created"[-22:],
        ]
        view.end("network n", "created")
    written = stream.getvalue()
    assert screen(written) == [
        "✓ network n                           2.0 s  created",
        "✓ address a                           2.0 s  created",
    ]
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")


def test_short_steps_leave_no_line_if_the_view_is_brief() -> None:
    stream, clock = Terminal(), Clock()
    with ProgressView(console=console_on(stream), clock=clock) as view:
        view.is_brief = True
        for step, seconds in (("project", 0.1), ("environment", 60.0), ("upload", 4.0)):
            view.begin(step, "doing it")
            clock.now += seconds
            view.end(step, "done")
        view.begin("gpu", "checking it")
        view.fail("gpu", "no GPU")
    shown = screen(stream.getvalue())
    assert [line.split()[1] for line in shown] == ["environment", "gpu"], shown


def test_wait_counts_down() -> None:
    stream, clock = Terminal(), Clock()
    with ProgressView(console=console_on(stream), clock=clock) as view:
        view.wait("Azure is throttling", 17)
        view.wait("Azure is throttling", 16)
        assert screen(stream.getvalue()) == ["  waiting 17 s: Azure is throttling"]
        clock.now += 5
        view.begin("machine m", "creating")
        assert screen(stream.getvalue())[1] == "  waiting 12 s: Azure is throttling"
        clock.now += 12
        view.begin("machine m", "starting")
        assert len(screen(stream.getvalue())) == 1


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()])
def test_interrupt_shows_unfinished_steps(stream: io.StringIO) -> None:
    def work() -> None:
        with ProgressView(console=console_on(stream), clock=Clock()) as view:
            view.begin("machine m", "creating")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    last = screen(stream.getvalue())[-1]
    assert last in {
        "• machine m                             0 s  creating, not finished",
        "machine m: creating, not finished (0.0 s)",
    }
    assert stream.getvalue().count("\x1b[?25l") == stream.getvalue().count("\x1b[?25h")


def test_long_live_lines_are_cut_and_final_lines_are_whole() -> None:
    stream = Terminal()
    with ProgressView(console=console_on(stream), clock=Clock()) as view:
        view.begin("machine m", "waiting " * 20)
        assert len(screen(stream.getvalue())[0]) <= 60
        view.fail("machine m", "reason " * 20)
    assert screen(stream.getvalue())[0].count("reason") == 20


def test_more_lines_than_the_screen_are_cut() -> None:
    stream = Terminal()
    with ProgressView(console=console_on(stream, height=6), clock=Clock()) as view:
        for number in range(8):
            view.begin(f"disk {number}", "deleting")
        for number in reversed(range(8)):
            view.end(f"disk {number}", "deleted")
    shown = screen(stream.getvalue())
    assert sorted(line.split()[2] for line in shown) == list("01234567")


def test_plain_output_on_request_or_on_a_dumb_terminal() -> None:
    stream = Terminal()
    with ProgressView(plain=True, console=console_on(stream)) as view:
        view.begin("machine m", "creating")
    assert stream.getvalue().startswith("machine m: creating\n")
    assert "\x1b" not in stream.getvalue()
    dumb = Terminal()
    console = Console(file=dumb, force_terminal=True, color_system=None, _environ={"TERM": "dumb"})
    with ProgressView(console=console) as view:
        view.begin("machine m", "creating")
    assert dumb.getvalue().startswith("machine m: creating\n")


def test_marks_missing_in_the_encoding_are_replaced() -> None:
    stream = Latin()
    with ProgressView(console=console_on(stream), clock=Clock()) as view:
        view.begin("machine m", "creating")
        view.end("machine m", "created " + "and more " * 10)
        view.begin("machine m", "starting " * 10)
    assert stream.getvalue().isascii()
    assert screen(stream.getvalue())[0].startswith("+ machine m")


def test_concurrent_steps_are_shown() -> None:
    stream = Terminal()

    def work(view: ProgressView, number: int) -> None:
        view.begin(f"disk {number}", "deleting")
        view.wait("Azure is busy", 1)
        view.note(f"note {number}")
        view.end(f"disk {number}", "deleted")

    with ProgressView(console=console_on(stream)) as view:
        threads = [Thread(target=work, args=(view, number)) for number in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    shown = screen(stream.getvalue())
    assert sorted(shown)[:20] == sorted(f"note {number}" for number in range(20))
    assert len(shown) == 40


def test_control_characters_are_removed() -> None:
    stream = io.StringIO()
    with ProgressView(console=console_on(stream)) as view:
        view.begin("m\x1b[2J", "a\r")
        view.end("m\x1b[2J", "b\x9b")
        view.note("c\u202e")
        view.wait("d\x07", 1)
    assert not set("\x1b\r\x9b\u202e\x07") & set(stream.getvalue())


@pytest.mark.parametrize(
    ("seconds", "exact", "words"),
    [
        (0, False, "0 s"),
        (12.34, True, "12.3 s"),
        (59.96, True, "1 min"),
        (192, False, "3 min 12 s"),
        (5400, False, "1 h 30 min"),
        (3605, False, "1 h"),
        (187200, False, "2 d 4 h"),
    ],
)
def test_durations_are_formatted(seconds: float, exact: bool, words: str) -> None:
    assert duration(seconds, exact=exact) == words


MIB = 1 << 20


def test_amount_is_printed_every_five_seconds_and_at_the_end() -> None:
    stream, clock = io.StringIO(), Clock()
    with ProgressView(console=console_on(stream), clock=clock) as view:
        view.begin("upload", "sending")
        for quarter in range(49):
            view.amount("upload", quarter * 2 * MIB, 96 * MIB)
            view.amount("upload", quarter * 2 * MIB, 96 * MIB)
            clock.now += 0.25
        view.end("upload", "120 files")
        view.amount("upload", 1, 2)  # too late: not shown
    assert stream.getvalue().splitlines() == [
        "upload: sending",
        "upload: 41 %, 40.0/96.0 MiB, 8.0 MiB/s, 7 s left",
        "upload: 83 %, 80.0/96.0 MiB, 8.0 MiB/s, 2 s left",
        "upload: 100 %, 96.0/96.0 MiB",
        "upload: 120 files (12.2 s)",
    ]


def test_growing_total_is_not_printed_each_time() -> None:
    stream, clock = io.StringIO(), Clock()
    with ProgressView(console=console_on(stream), clock=clock) as view:
        view.begin("image", "pulling")
        for layer in range(1, 50):
            view.amount("image", layer * MIB, layer * MIB)
            clock.now += 0.1
        view.amount("unheard of", 1, 2)
    assert len(stream.getvalue().splitlines()) == 3  # pulling, the first 100 %, and the unfinished end


def test_next_step_has_its_own_amount() -> None:
    stream, clock = io.StringIO(), Clock()
    with ProgressView(console=console_on(stream), clock=clock) as view:
        view.begin("upload", "reading")
        view.amount("upload", 5, 5)
        view.begin("upload", "sending")
        view.amount("upload", 7, 7)
        view.end("upload", "done")
    assert stream.getvalue().splitlines()[1::2] == ["upload: 100 %, 5/5 B", "upload: 100 %, 7/7 B"]


def test_amount_without_a_total_is_printed() -> None:
    stream, clock = io.StringIO(), Clock()
    with ProgressView(console=console_on(stream), clock=clock) as view:
        view.begin("outputs", "fetching")
        view.amount("outputs", 0, None)
        clock.now += 5
        view.amount("outputs", 10 * MIB, None)
        view.end("outputs", "fetched")
    assert stream.getvalue().splitlines()[1] == "outputs: 10.0 MiB, 2.0 MiB/s"


@pytest.mark.parametrize(("kind", "bar"), [(Terminal, "━━━━━━──────"), (Latin, "######------")])
def test_bar_is_drawn_on_a_terminal(kind: type[Terminal], bar: str) -> None:
    stream, clock = kind(), Clock()
    with ProgressView(console=console_on(stream), clock=clock) as view:
        view.begin("upload", "sending")
        view.amount("upload", 0, 100 * MIB)
        clock.now += 10
        before = len(stream.getvalue())
        for part in range(1, 51):
            view.amount("upload", part * MIB, 100 * MIB)
        assert len(stream.getvalue()) - before < 1000  # only the ticker draws, and not each time
        view.begin("other", "working")
        # The terminal is narrow: the columns shrink.
        assert screen(stream.getvalue())[0][2:46] == f"upload  {bar}  50 %  50.0/100.0 MiB  "
        view.end("upload", "sent")
        view.end("other", "done")
    assert screen(stream.getvalue())[0].endswith("10.0 s  sent")


def test_wide_terminal_keeps_its_columns() -> None:
    stream, clock = Terminal(), Clock()
    console = console_on(stream)
    console.width = 120
    with ProgressView(console=console, clock=clock) as view:
        view.begin("upload", "sending")
        view.amount("upload", 0, 4000)
        clock.now += 1
        view.amount("upload", 1000, 4000)
        view.begin("other", "working")
        shown = screen(stream.getvalue())
        assert shown[0][2:] == f"{'upload':<28} ━━━─────────  25 %  1.0/3.9 KiB  1000 B/s  3 s left  sending"
        assert shown[1].index("working") - 2 - len("0 s") == shown[0].index("25 %") - 2 - len("0 s")


def test_rate_is_smoothed() -> None:
    amount = TransferProgress(0.0, 10 * MIB, 1000 * MIB)
    amount.look(0.01)
    assert amount.parts() == ["1 %", "10.0/1000.0 MiB"]  # the rate is unknown yet, and the start value does not count
    for second in range(1, 4):
        amount.counts = ((10 + 10 * second) * MIB, 1000 * MIB)
        amount.look(second)
    assert amount.parts()[2:] == ["10.0 MiB/s", "1 min 36 s left"]
    amount.counts = (60 * MIB, 1000 * MIB)
    amount.look(4)
    assert 10 < float(amount.parts()[2].split()[0]) < 20  # twice as fast for a second is smoothed
    for second in range(5, 60):
        amount.look(second)
    assert amount.parts()[2:] == ["0 B/s"]  # no progress
    amount.counts = (0, 1000 * MIB)
    amount.look(61)
    assert amount.parts() == ["0 %", "0.0/1000.0 MiB"]  # it started again


@pytest.mark.parametrize(("done", "total"), [(0, 0), (5, 0), (7, 5), (0, 5), (-1, 5)])
def test_odd_amounts_do_not_crash(done: int, total: int) -> None:
    amount = TransferProgress(0.0, done, total)
    amount.look(1.0)
    assert len(amount.bar("#", "-")) == 12
    assert 0 <= int(amount.parts()[0].split()[0]) <= 100


def test_amounts_from_many_threads_are_safe() -> None:
    stream, clock = io.StringIO(), Clock()

    def work(view: ProgressView) -> None:
        for part in range(1000):
            view.amount("upload", part, 1000)

    with ProgressView(console=console_on(stream), clock=clock) as view:
        view.begin("upload", "sending")
        threads = [Thread(target=work, args=(view,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        view.end("upload", "sent")
    assert stream.getvalue() == "upload: sending\nupload: sent (0.0 s)\n"


def test_job_output_replaces_live_lines() -> None:
    stream, clock = Terminal(), Clock()
    job = Bytes(stream)
    with ProgressView(console=console_on(stream), clock=clock) as view:
        view.begin("network n", "creating")
        view.begin("job", "running")
        view.output(job, b"epoch 1\nepoch 2\n", on_screen=True)
        assert screen(stream.getvalue()) == ["epoch 1", "epoch 2"]
        view.begin("outputs", "fetching")  # nothing is written between the job's lines
        view.output(job, b"epoch 3", on_screen=True)
        view.note("reached it again")
        assert screen(stream.getvalue()) == ["epoch 1", "epoch 2", "epoch 3", "reached it again"]
        view.output(job, b"epoch 4\n", on_screen=True)
        view.end("network n", "created")
        view.end("job", "ended")
        view.end("outputs", "fetched")
    shown = screen(stream.getvalue())
    assert shown[:5] == ["epoch 1", "epoch 2", "epoch 3", "reached it again", "epoch 4"]
    assert [line.split()[1] for line in shown[5:]] == ["network", "job", "outputs"]


def test_text_printed_during_a_pause_stays() -> None:
    stream = Terminal()
    with ProgressView(console=console_on(stream), clock=Clock()) as view:
        view.begin("network n", "creating")
        view.begin("address a", "creating")
        with view.paused():
            stream.write("Password: \nok\n")
        view.begin("disk d", "creating")
        shown = screen(stream.getvalue())
    assert shown[:2] == ["Password: ", "ok"]
    assert len(shown) == 5


def test_question_starts_on_a_new_line() -> None:
    stream = Terminal()
    with ProgressView(console=console_on(stream), clock=Clock()) as view:
        view.output(Bytes(stream), b"epoch 1", on_screen=True)
        with view.paused():
            stream.write("Detach? ")
            assert screen(stream.getvalue()) == ["epoch 1", "Detach? "]


class InterruptedWriter(io.BufferedWriter):
    """Ctrl-C arrives between the write and the flush."""

    def __init__(self) -> None:
        self.screen = io.BytesIO()
        self.is_interrupted = True
        super().__init__(self.screen)

    def flush(self) -> None:
        if self.is_interrupted:
            self.is_interrupted = False
            raise KeyboardInterrupt
        super().flush()


def test_output_interrupted_before_its_flush_is_shown_before_a_question() -> None:
    stream, job = Terminal(), InterruptedWriter()
    with ProgressView(console=console_on(stream)) as view:
        with pytest.raises(KeyboardInterrupt):
            view.output(job, b"begun\n", on_screen=True)
        with view.paused():
            assert job.screen.getvalue() == b"begun\n"


def test_job_output_elsewhere_does_not_touch_live_lines() -> None:
    stream, elsewhere = Terminal(), io.BytesIO()
    with ProgressView(console=console_on(stream), clock=Clock()) as view:
        view.begin("job", "running")
        before = stream.getvalue()
        view.output(elsewhere, b"\xff", on_screen=False)
        assert stream.getvalue() == before
    assert elsewhere.getvalue() == b"\xff"


class Bytes(io.BytesIO):
    """The bytes of a text stream."""

    def __init__(self, stream: io.StringIO) -> None:
        super().__init__()
        self._stream = stream

    def write(self, data: Any) -> int:
        return self._stream.write(bytes(data).decode())


class Full(io.StringIO):
    """A file on a full disk."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")


def test_failing_stream_does_not_stop_the_work() -> None:
    with ProgressView(console=console_on(Full())) as view:
        view.begin("disk", "deleting")
        view.amount("disk", 1, 1)
        view.wait("throttled", 5)
        view.note("it is switched off first")
        view.end("disk", "gone")
        view.begin("machine", "deallocating")


@pytest.mark.parametrize("is_live", [True, False])
def test_steps_of_other_threads_continue_during_a_question(is_live: bool) -> None:
    stream = Terminal()
    with ProgressView(plain=not is_live, console=console_on(stream), clock=Clock()) as view:
        view.begin("vm a", "deallocating")
        with view.paused():
            stream.write("Go on? ")
            work = Thread(target=_continue, args=[view])
            work.start()
            work.join(5)
            assert not work.is_alive(), "it waits for the answer"
            assert screen(stream.getvalue())[-1] == "Go on? "
            stream.write("y\n")
        view.end("vm b", "created")
    shown = [line for line in screen(stream.getvalue()) if "deallocated" in line or "created" in line]
    assert len(shown) == 2


def _continue(view: ProgressView) -> None:
    view.begin("vm b", "creating")
    view.end("vm a", "deallocated")
