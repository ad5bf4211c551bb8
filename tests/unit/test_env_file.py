"""Which lines of a file of variables mean the same for every program, and what is said about the others."""

import subprocess
from pathlib import Path

import pytest

from gpuinfra.app.env_file import EnvFileError, parse

AGREED = """\ufeff# a comment
PLAIN=a=b#c:/d,e@f%+-.[x]{y}*?!^
  export EXPORTED=1
EMPTY=
SINGLE='two words, $HOME, `x` and "quotes"; # no comment'
DOUBLE="it's two words; # no comment" # a comment
export\tTAB="x"\r

LAST=1
LAST=2
"""


def test_lines_that_all_programs_read_the_same_way(tmp_path: Path) -> None:
    found = {each.name: each.value for each in parse(AGREED)}
    assert found == {
        "PLAIN": "a=b#c:/d,e@f%+-.[x]{y}*?!^",
        "EXPORTED": "1",
        "EMPTY": "",
        "SINGLE": 'two words, $HOME, `x` and "quotes"; # no comment',
        "DOUBLE": "it's two words; # no comment",
        "TAB": "x",
        "LAST": "2",
    }
    file = tmp_path / "file"
    file.write_text(AGREED.removeprefix("\ufeff").replace("\r", ""))
    for name, value in found.items():
        printed = ["/bin/sh", "-c", f'. "$1"; printf %s "${name}"', "sh", str(file)]
        assert subprocess.run(printed, capture_output=True, text=True, check=True, timeout=20).stdout == value


def test_name_alone_is_a_variable_of_the_shell() -> None:
    assert [(each.line, each.name, each.value) for each in parse("A=1\n\nTOKEN\nexport OTHER\n")] == [
        (1, "A", "1"),
        (3, "TOKEN", None),
        (4, "OTHER", None),
    ]


@pytest.mark.parametrize(
    ("line", "reason", "fix"),
    [
        ("A=s3cret # comment", "`#` after a space", "own line"),
        ("A=s3cret value", "has a space", "single quotes"),
        ("A = s3cret", "a space next to its `=`", "remove the space"),
        ("A= s3cret", "a space next to its `=`", "remove the space"),
        ("A=s3cret$HOME", "a `$`", "single quotes"),
        ('A="s3cret$HOME"', "in quotes", "single quotes"),
        ('A="s3cret\\n"', "in quotes", "--secret A"),
        ("A='s3cret\\n'", "in quotes", "--secret A"),
        ("A=s3cret\\n", "meaning for shells", "single quotes"),
        ("A=s3cret;ls", "meaning for shells", "single quotes"),
        ("A=~/s3cret", "meaning for shells", "single quotes"),
        ("A=it's3cret", "meaning for shells", "--secret A"),
        ("A='s3cret'x", "text after its quote", "whole value"),
        ('A="s3cret', "does not end on its line", "--secret A"),
        ("s3cret value", "expected NAME=VALUE", "not shown"),
        ("1A=s3cret", "expected NAME=VALUE", "not shown"),
        ("=s3cret", "expected NAME=VALUE", "not shown"),
    ],
)
def test_line_that_programs_read_differently_is_an_error_with_its_number_and_a_fix(
    line: str, reason: str, fix: str
) -> None:
    with pytest.raises(EnvFileError, match="line 2: ") as caught:
        parse(f"B=1\n{line}\n")
    assert reason in str(caught.value)
    assert fix in caught.value.fix
    assert "s3cret" not in f"{caught.value} {caught.value.fix}"
