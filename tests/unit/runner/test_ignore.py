"""Paths that ignore files leave out, by git's rules. An integration test compares them with git itself."""

import random
import re

import pytest
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

from gpuinfra.runner.ignore import Ignore, without_backtracking

CASES = [
    # lines, path, is a folder, left out
    ("*.log", "a.log", False, True),
    ("*.log", "deep/down/a.log", False, True),
    ("/a.log", "deep/a.log", False, False),
    ("build/", "build", True, True),
    ("build/", "build", False, False),
    ("build", "deep/build", True, True),
    ("*.log\n!keep.log", "keep.log", False, False),
    ("!keep.log\n*.log", "keep.log", False, True),
    ("data/**", "data", True, False),
    ("data/**", "data/x", False, True),
    ("data/**\n!data/**/\n!data/**/*.md", "data/deep", True, False),
    ("data/**\n!data/**/\n!data/**/*.md", "data/deep/x.md", False, False),
    ("data/**\n!data/**/\n!data/**/*.md", "data/deep/x.csv", False, True),
    ("*\n!*/\n!*.py", "deep", True, False),
    ("*\n!*/\n!*.py", "deep/a.py", False, False),
    ("*\n!*/\n!*.py", "deep/a.txt", False, True),
    ("/*\n!/src", "src/a.py", False, False),
    ("a/**/b", "a/b", False, True),
    ("a/**/b", "a/x/y/b", False, True),
    ("# comment\n\n   \nreal", "real", False, True),
    ("\\#real", "#real", False, True),
    ("\\!real", "!real", False, True),
    ("ends with a space\\ ", "ends with a space ", False, True),
    ("dropped  ", "dropped", False, True),
    ("[ab].txt", "a.txt", False, True),
    ("[!ab].txt", "a.txt", False, False),
    ("windows.txt\r\nother", "windows.txt", False, True),
    ("!", "!", False, False),
    ("[", "x", False, False),
    ("caf\u00e9", "caf\u00e9", False, True),
]


@pytest.mark.parametrize(("lines", "path", "is_folder", "is_left_out"), CASES)
def test_ignore_file_leaves_out_paths(lines: str, path: str, is_folder: bool, is_left_out: bool) -> None:
    ignore = Ignore().below("", lines.encode())
    assert ignore.leaves_out(path, is_folder) is is_left_out


def test_ignore_file_further_down_takes_precedence() -> None:
    above = Ignore().below("", b"*.log\nbuild\n*.o")
    below = above.below("deep", b"!keep.log\n!build/\n/only.txt")
    assert not below.leaves_out("deep/keep.log", False)
    assert below.leaves_out("deep/other.log", False)
    assert below.leaves_out("deep/only.txt", False)
    assert not below.leaves_out("deep/down/only.txt", False)
    assert not below.leaves_out("deep/build", True)
    # An included folder can contain files that another line leaves out.
    assert below.leaves_out("deep/build/x.o", False)
    assert not below.leaves_out("deep/build/x.c", False)


def test_byte_order_mark_is_ignored() -> None:
    assert Ignore().below("", b"\xef\xbb\xbfsecret").leaves_out("secret", False)


def test_lines_that_are_not_utf8_match_such_names() -> None:
    assert Ignore().below("", b"caf\xe9").leaves_out("caf\udce9", False)


SLOW = [
    ("*a" * 20 + "*b", "a" * 250),
    ("*[ab]" * 20 + "*c", "a" * 250),
    ("*[a(]?" * 20 + "*c", "a" * 250),
    ("a" + "*" * 40 + "b", "a" * 250),
    ("**/a/" * 20 + "b", "a/" * 200 + "a"),
    ("a/" + "**/*a*a/" * 20 + "b", "aaa/" * 200 + "a"),
]


@pytest.mark.parametrize(("line", "path"), SLOW)
def test_line_with_many_wildcards_is_matched_quickly(line: str, path: str) -> None:
    # Backtracking would take exponential time.
    assert not Ignore().below("", line.encode()).leaves_out(path, False)


@pytest.mark.parametrize("seed", range(20))
def test_faster_expression_matches_the_same_paths(seed: int) -> None:
    chance = random.Random(seed)
    words = ["*", "**", "?", "a", "b", "ab", "[ab]", "[a(]", "\\*", ".", "*", "/", "/**/", "/"]
    for _ in range(100):
        line = "".join(chance.choices(words, k=chance.randint(1, 7)))
        try:
            expression = GitIgnoreSpecPattern(line).regex
        except ValueError:
            continue
        if expression is None:
            continue
        faster = re.compile(without_backtracking(expression.pattern))
        for _ in range(30):
            path = "/".join(
                "".join(chance.choices("ab(*", k=chance.randint(1, 4))) for _ in range(chance.randint(1, 5))
            )
            for each in (path, f"{path}/"):
                was, now = expression.search(each), faster.search(each)
                assert _place(was) == _place(now), (line, each, faster.pattern)


def _place(found: "re.Match[str] | None") -> tuple[int, dict[str, str | None]] | None:
    return (found.end(), found.groupdict()) if found else None
