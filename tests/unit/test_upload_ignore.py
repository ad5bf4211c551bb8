"""What ignore files leave out, by the rules of git. That git agrees is tested beside the real one."""

import pytest

from gpuinfra.runner.upload.ignore import Ignore

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
def test_a_file(lines: str, path: str, is_folder: bool, is_left_out: bool) -> None:
    ignore = Ignore().below("", lines.encode())
    assert ignore.leaves_out(path, is_folder) is is_left_out


def test_the_file_further_down_goes_first() -> None:
    above = Ignore().below("", b"*.log\nbuild\n*.o")
    below = above.below("deep", b"!keep.log\n!build/\n/only.txt")
    assert not below.leaves_out("deep/keep.log", False)
    assert below.leaves_out("deep/other.log", False)
    assert below.leaves_out("deep/only.txt", False)
    assert not below.leaves_out("deep/down/only.txt", False)
    assert not below.leaves_out("deep/build", True)
    # That its folder is taken says nothing of a file that another line names.
    assert below.leaves_out("deep/build/x.o", False)
    assert not below.leaves_out("deep/build/x.c", False)


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    assert Ignore().below("", b"\xef\xbb\xbfsecret").leaves_out("secret", False)


def test_lines_that_are_not_utf8_fit_names_that_are_not() -> None:
    assert Ignore().below("", b"caf\xe9").leaves_out("caf\udce9", False)
