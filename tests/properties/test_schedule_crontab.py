"""A crontab is edited: only our own block changes."""

import shutil
import subprocess
from typing import Any

import pytest

from gpuinfra.diagnostics import Code, Problem
from gpuinfra.scheduling import crontab
from gpuinfra.scheduling.crontab import BEGIN, END, block_in, check_length, with_block, without_block

OTHERS = "MAILTO=me\n\n# backup\n0 3 * * * backup %d\n"
BLOCK = "# ours\n*/15 * * * * x\n"


@pytest.mark.parametrize("others", ["", OTHERS, "\n", "# caf\udce9\n"])
def test_block_is_added_and_removed_without_a_trace(others: str) -> None:
    assert block_in(others) is None
    assert without_block(others) == others
    there = with_block(others, BLOCK)
    assert there == f"{others}{BEGIN}\n{BLOCK}{END}\n"
    assert block_in(there) == BLOCK
    assert with_block(there, BLOCK) == there
    assert without_block(there) == others


def test_last_line_without_a_newline_stays_separate() -> None:
    assert with_block("0 3 * * * x", BLOCK).startswith(f"0 3 * * * x\n{BEGIN}\n")


def test_block_is_replaced_in_place() -> None:
    there = with_block(OTHERS, BLOCK) + "# later\n"
    assert with_block(there, "# new\n") == f"{OTHERS}{BEGIN}\n# new\n{END}\n# later\n"
    assert without_block(there) == OTHERS + "# later\n"


@pytest.mark.parametrize("torn", [f"{BEGIN}\n", f"{END}\n", f"{END}\n{BEGIN}\n", f"{BEGIN}\n{BEGIN}\n{END}\n"])
def test_half_a_block_is_refused(torn: str) -> None:
    for edit in (block_in, without_block, lambda text: with_block(text, BLOCK)):
        with pytest.raises(Problem) as caught:
            edit(torn)
        assert caught.value.diagnostics[0].code is Code.SCHEDULER_FAILED


def test_overlong_cron_line_is_refused() -> None:
    check_length("x" * 990 + "\n")
    with pytest.raises(Problem, match="too long"):
        check_length("# short\n" + "x" * 991 + "\n")


@pytest.mark.parametrize(
    ("said", "code", "text"),
    [
        ("", 0, "0 3 * * * x\n"),
        ("no crontab for me", 1, ""),
        ("crontab: can't open 'me': No such file or directory", 1, ""),
    ],
)
def test_missing_crontab_is_empty(monkeypatch: pytest.MonkeyPatch, said: str, code: int, text: str) -> None:
    answer = subprocess.CompletedProcess(["crontab", "-l"], code, text, said)
    monkeypatch.setattr(crontab, "_crontab", lambda word: answer)
    assert crontab.read() == text


def test_other_lines_are_kept_byte_for_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    others, given = b"0 3 * * * caf\xe9\r\n0 4 * * * printf a\rb\n", list[bytes]()

    def run(words: list[str], **more: Any) -> subprocess.CompletedProcess[Any]:
        given.append(more["input"])
        assert "encoding" not in more  # or line ends would be translated
        return subprocess.CompletedProcess(words, 0, others, b"")

    monkeypatch.setattr(shutil, "which", lambda name, **_: name)
    monkeypatch.setattr(subprocess, "run", run)
    crontab.write(crontab.without_block(with_block(crontab.read(), BLOCK)))
    assert given == [b"", others]


def test_unreadable_crontab_is_not_treated_as_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = subprocess.CompletedProcess(["crontab", "-l"], 1, "", "you are not allowed to use this program")
    monkeypatch.setattr(crontab, "_crontab", lambda word: answer)
    with pytest.raises(Problem) as caught:
        crontab.read()
    assert "not allowed" in str(caught.value.diagnostics[0].note)
