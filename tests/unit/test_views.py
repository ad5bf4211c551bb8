"""The layout of a diagnostic."""

import io
import os
import pty

import pytest
from rich.console import Console

from gpuinfra.diagnostics import Code, Diagnostic, Span
from gpuinfra.views.diagnostics import as_json, render, show
from gpuinfra.views.terminal import harmless, survive_closed_terminal

DIAGNOSTIC = Diagnostic(
    Code.UNKNOWN_SIZE,
    "unknown VM size",
    Span("train.yaml", 7, 9, 7, 33, "  size: Standard_NC24ads_A100_v5"),
    "not an NC size that Azure offers",
    "a note",
    "did you mean `Standard_NC24ads_A100_v4`?",
)


def test_diagnostic_has_the_documented_layout() -> None:
    assert render(DIAGNOSTIC).plain == (
        "error: unknown VM size\n"
        "  --> train.yaml:7:9\n"
        "   |\n"
        " 7 |   size: Standard_NC24ads_A100_v5\n"
        "   |         ^^^^^^^^^^^^^^^^^^^^^^^^ not an NC size that Azure offers\n"
        "   = note: a note\n"
        "help: did you mean `Standard_NC24ads_A100_v4`?"
    )


def test_colours_are_only_used_on_a_terminal() -> None:
    def printed(**settings: bool) -> str:
        stream = io.StringIO()
        Console(file=stream, force_terminal=True, color_system="standard", **settings).print(render(DIAGNOSTIC))  # type: ignore[arg-type]
        return stream.getvalue()

    assert "\x1b[1;31merror" in printed()
    assert "31m" not in printed(no_color=True)


def test_json_has_the_place_and_omits_absent_fields() -> None:
    assert as_json(DIAGNOSTIC) == {
        "severity": "error",
        "code": "unknown-size",
        "summary": "unknown VM size",
        "file": "train.yaml",
        "line": 7,
        "column": 9,
        "endLine": 7,
        "endColumn": 33,
        "label": "not an NC size that Azure offers",
        "note": "a note",
        "help": "did you mean `Standard_NC24ads_A100_v4`?",
    }
    assert set(as_json(Diagnostic(Code.USAGE, "wrong usage"))) == {"severity", "code", "summary"}


@pytest.mark.parametrize("evil", ["\x1b[2J", "\r", "\n", "\x9b31m", "\u202e", "\u2028", "\x00", "\x7f"])
def test_control_characters_are_removed(evil: str) -> None:
    assert evil[0] not in harmless(f"a{evil}b")
    shown = render(
        Diagnostic(Code.USAGE, "x", Span(f"f{evil}", 1, 1, 1, 2, f"y{evil}"), f"l{evil}", f"n{evil}", f"h{evil}")
    )
    assert evil not in shown.plain.replace("\n", "") or evil == "\n"
    assert shown.plain.count("\n") == 6


def test_caret_is_under_wide_characters() -> None:
    lines = render(Diagnostic(Code.BAD_TAG, "x", Span("f", 1, 3, 1, 4, "手書き"), "here")).plain.splitlines()
    assert lines[-1] == "   |     ^^ here"


def test_text_for_a_closed_terminal_is_dropped() -> None:
    ours, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as plain:
        stream = survive_closed_terminal(plain)
        print("before", file=stream)
        assert os.read(ours, 100) == b"before\r\n"
        os.close(ours)
        print("after", file=stream)
        stream.buffer.write(b"a job's output\n")
        stream.flush()


def test_other_files_are_written_as_they_are() -> None:
    stream = io.StringIO()
    assert survive_closed_terminal(stream) is stream


def test_only_the_first_diagnostics_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    show(Diagnostic(Code.USAGE, f"problem {number}") for number in range(1234))
    shown = capsys.readouterr().err
    assert "problem 199\n" in shown
    assert "problem 200\n" not in shown
    assert "and 1034 more problems" in shown
