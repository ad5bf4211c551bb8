"""How progress looks, on a terminal and elsewhere."""

import io
import re
from threading import Thread

import pytest
from rich.console import Console

from gpuinfra.views.cells import length
from gpuinfra.views.progress import ProgressView


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


def screen(written: str) -> list[str]:
    """What a terminal shows in the end, for the few controls that rich's live display uses."""
    lines, row = [""], 0
    for part in re.findall(r"\x1b\[\??[0-9;]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", written):
        if part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif part == "\x1b[2K":
            lines[row] = ""
        elif up := re.fullmatch(r"\x1b\[([0-9]+)A", part):
            row -= int(up[1])
        elif part not in {"\r", "\x1b[?25l", "\x1b[?25h"}:
            lines[row] = part
    return lines[: row + 1] if lines[row] else lines[:row]


def test_without_a_terminal_there_are_plain_lines() -> None:
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


def test_on_a_terminal_finished_steps_stay() -> None:
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


def test_a_wait_counts_down() -> None:
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
def test_interrupted_it_says_what_was_going_on(stream: io.StringIO) -> None:
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


def test_long_lines_are_cut_while_they_live_and_whole_when_they_stay() -> None:
    stream = Terminal()
    with ProgressView(console=console_on(stream), clock=Clock()) as view:
        view.begin("machine m", "waiting " * 20)
        assert len(screen(stream.getvalue())[0]) <= 60
        view.fail("machine m", "reason " * 20)
    assert screen(stream.getvalue())[0].count("reason") == 20


def test_more_lines_than_the_screen_has() -> None:
    stream = Terminal()
    with ProgressView(console=console_on(stream, height=6), clock=Clock()) as view:
        for number in range(8):
            view.begin(f"disk {number}", "deleting")
        for number in reversed(range(8)):
            view.end(f"disk {number}", "deleted")
    shown = screen(stream.getvalue())
    assert sorted(line.split()[2] for line in shown) == list("01234567")


def test_plain_where_asked_or_where_the_terminal_can_no_more() -> None:
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


def test_marks_that_the_encoding_has_not_are_replaced() -> None:
    stream = Latin()
    with ProgressView(console=console_on(stream), clock=Clock()) as view:
        view.begin("machine m", "creating")
        view.end("machine m", "created " + "and more " * 10)
        view.begin("machine m", "starting " * 10)
    assert stream.getvalue().isascii()
    assert screen(stream.getvalue())[0].startswith("+ machine m")


def test_many_threads_at_once() -> None:
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


def test_no_text_can_drive_the_terminal() -> None:
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
def test_lengths_of_time(seconds: float, exact: bool, words: str) -> None:
    assert length(seconds, exact=exact) == words
