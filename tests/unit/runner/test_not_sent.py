"""What ignore files leave out of an upload, and which of it a failed job missed."""

from pathlib import Path

import pytest

from gpuinfra.runner import not_sent
from gpuinfra.runner.ignore import Ignore, Ignored
from gpuinfra.runner.not_sent import describe, missing_paths, wanted_input
from gpuinfra.runner.project_tree import find_ignored, read_tree
from tests.progress import SilentProgress


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / ".gitignore").write_text("# caches\n*.pyc\n\ndata/\n")
    (tmp_path / "data/deep").mkdir(parents=True)
    (tmp_path / "data/deep/a.bin").write_bytes(b"x" * 3_000_000)
    (tmp_path / "data/b.bin").write_bytes(b"x" * 200_000)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/.gitignore").write_text("*.ckpt\n!kept.ckpt\n")
    for name in ("c.pyc", "sub/1.ckpt", "sub/kept.ckpt", "train.py"):
        (tmp_path / name).write_bytes(b"x" * 500)
    return tmp_path


def test_line_says_how_much_was_not_sent_and_which_line_says_so(project: Path) -> None:
    ignored = read_tree(project, None, SilentProgress()).ignored
    assert {(each.shown, each.line) for each in ignored} == {
        ("data/", ".gitignore:4"),
        ("c.pyc", ".gitignore:2"),
        ("sub/1.ckpt", "sub/.gitignore:1"),
    }
    assert describe(project, ignored) == "not sent: data/, 3.2 MB, 2 files: .gitignore:4; 2 more, 1.0 kB"
    assert describe(project, [Ignored("c.pyc", False, ".gitignore:2")]) == "not sent: c.pyc, 500 B: .gitignore:2"


def test_nothing_is_said_about_nothing(project: Path) -> None:
    (project / "empty").mkdir()
    assert not describe(project, [])
    assert not describe(project, [Ignored("empty", True, ".gitignore:1"), Ignored("gone", True, ".gitignore:2")])


def test_counting_has_a_limit(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(not_sent, "MAX_FILES", 0)
    text = describe(project, [Ignored("data", True, ".gitignore:4")])
    assert text == "not sent: data/, at least 200.0 kB, 1 file: .gitignore:4", "folders come before those in them"


def test_ignore_file_in_use_is_named(project: Path) -> None:
    (project / ".amlignore").write_text("data\n")
    (ignored,) = read_tree(project, None, SilentProgress()).ignored
    assert (ignored.shown, ignored.line) == ("data/", ".amlignore:1")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("data/deep/a.bin", ("data/", ".gitignore:4")),
        ("data", ("data/", ".gitignore:4")),
        ("sub/1.ckpt", ("sub/1.ckpt", "sub/.gitignore:1")),
        ("sub/kept.ckpt", None),
        ("train.py", None),
        ("nothing/at/all", None),
    ],
)
def test_line_that_leaves_out_a_path_is_found(project: Path, path: str, expected: tuple[str, str] | None) -> None:
    found = find_ignored(project, path, SilentProgress())
    assert (found and (found.shown, found.line)) == expected


@pytest.mark.parametrize(
    ("output", "paths"),
    [
        (b"FileNotFoundError: [Errno 2] No such file or directory: 'data/train.csv'\n", ["data/train.csv"]),
        (b'No such file or directory: "./a b/it\'s"\n', ["a b/it's"]),
        (b"cat: data/x: No such file or directory\n", ["data/x"]),
        (b"/bin/sh: 1: cannot open data/y: No such file or directory", ["data/y"]),
        (b"tensorflow.NotFoundError: data/z; No such file or directory", ["data/z"]),
        (b"No such file or directory: '/project/data/x'", ["data/x"]),
        (b"No such file or directory: '/home/u/.gpuinfra/projects/k-1/slot-2/tree/data/x'", ["data/x"]),
        (b"No such file or directory: '/etc/x'\nNo such file or directory: '../x'", []),
        (b"No such file or directory: 'a'\nNo such file or directory: 'a'", ["a"]),
        (b"done\n", []),
    ],
)
def test_missing_paths_are_read_from_the_output(output: bytes, paths: list[str]) -> None:
    assert missing_paths(output) == paths


def test_job_that_read_standard_input_is_recognised() -> None:
    assert wanted_input(b"Traceback ...\nEOFError: EOF when reading a line\n")
    assert not wanted_input(b"print('EOFError: EOF when reading a line')")


def test_later_line_of_an_ignore_file_decides() -> None:
    ignore = Ignore().below("", b"*.bin\n!a.bin\na.bin\n")
    assert ignore.line_for("a.bin", is_folder=False) == ".gitignore:3"
    assert ignore.line_for("b.bin", is_folder=False) == ".gitignore:1"
    assert Ignore().below("", b"*.bin\n!a.bin\n").line_for("a.bin", is_folder=False) is None
