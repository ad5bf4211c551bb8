"""How a diagnostic looks."""

import io

import pytest
from rich.console import Console

from gpuinfra.diagnostics import Code, Diagnostic, Span
from gpuinfra.views.diagnostics import as_json, render
from gpuinfra.views.terminal import harmless

DIAGNOSTIC = Diagnostic(
    Code.UNKNOWN_SIZE,
    "unknown VM size",
    Span("train.yaml", 7, 9, 7, 33, "  size: Standard_NC24ads_A100_v5"),
    "not an NC size that Azure offers",
    "a note",
    "did you mean `Standard_NC24ads_A100_v4`?",
)


def test_it_reads_as_the_house_style_says() -> None:
    assert render(DIAGNOSTIC).plain == (
        "error: unknown VM size\n"
        "  --> train.yaml:7:9\n"
        "   |\n"
        " 7 |   size: Standard_NC24ads_A100_v5\n"
        "   |         ^^^^^^^^^^^^^^^^^^^^^^^^ not an NC size that Azure offers\n"
        "   = note: a note\n"
        "help: did you mean `Standard_NC24ads_A100_v4`?"
    )


def test_it_has_colour_on_a_terminal_only() -> None:
    def printed(**settings: bool) -> str:
        stream = io.StringIO()
        Console(file=stream, force_terminal=True, color_system="standard", **settings).print(render(DIAGNOSTIC))  # type: ignore[arg-type]
        return stream.getvalue()

    assert "\x1b[1;31merror" in printed()
    assert "31m" not in printed(no_color=True)


def test_as_data_it_has_a_place_and_leaves_out_what_it_has_not() -> None:
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
def test_no_text_can_drive_the_terminal(evil: str) -> None:
    assert evil[0] not in harmless(f"a{evil}b")
    shown = render(
        Diagnostic(Code.USAGE, "x", Span(f"f{evil}", 1, 1, 1, 2, f"y{evil}"), f"l{evil}", f"n{evil}", f"h{evil}")
    )
    assert evil not in shown.plain.replace("\n", "") or evil == "\n"
    assert shown.plain.count("\n") == 6


def test_the_caret_stands_under_wide_characters() -> None:
    lines = render(Diagnostic(Code.BAD_TAG, "x", Span("f", 1, 3, 1, 4, "手書き"), "here")).plain.splitlines()
    assert lines[-1] == "   |     ^^ here"
