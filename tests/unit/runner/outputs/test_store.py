"""Outputs are written only into their folder, and indexed."""

import os
from pathlib import Path

import pytest

from gpuinfra.remote.folder import leads_inside, own_name, wire_name
from gpuinfra.runner.errors import JobError
from gpuinfra.runner.outputs.folder import OutputsFolder
from gpuinfra.runner.outputs.index import OutputsIndex, Stamp


@pytest.mark.parametrize(
    ("link", "target", "expected"),
    [
        ("l", "a", True),
        ("l", "a/b", True),
        ("l", "./a//b/", True),
        ("d/l", "../a", True),
        ("d/l", "..", True),
        ("l", "..", False),
        ("d/l", "../../a", False),
        ("l", "/etc/shadow", False),
        # `a` may be a link itself, and then `a/..` is another folder.
        ("l", "a/../b", False),
        ("d/e/l", "../x/../../y", False),
        ("d/e/l", "../../y", True),
        ("l", "..a", True),
    ],
)
def test_links_out_of_the_folder_are_detected(link: str, target: str, expected: bool) -> None:
    assert leads_inside(link, target) is expected


@pytest.mark.parametrize("name", [b"plain", "naïve 文".encode(), b"\xff\xfe", b"a\nb", b"-rf"])
def test_names_with_any_bytes_are_encoded(name: bytes) -> None:
    assert os.fsencode(own_name(wire_name(os.fsdecode(name)))) == name


@pytest.fixture
def part(tmp_path: Path) -> Path:
    file = tmp_path / "part"
    file.write_bytes(b"new")
    return file


def test_parent_folders_are_created(tmp_path: Path, part: Path) -> None:
    with OutputsFolder(tmp_path / "outputs") as folder:
        folder.place(part, "a/b/c")
    assert (tmp_path / "outputs/a/b/c").read_bytes() == b"new"


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", "a//b", ".", "a/.", "a\0b", "a/"])
def test_unsafe_paths_are_refused(tmp_path: Path, part: Path, path: str) -> None:
    with OutputsFolder(tmp_path / "outputs") as folder:
        with pytest.raises(JobError):
            folder.place(part, path)
        with pytest.raises(JobError):
            folder.make(path, 0o755)
        with pytest.raises(JobError):
            folder.link(path, "a")
    assert sorted(each.name for each in (tmp_path).iterdir()) == ["outputs", "part"]
    assert list((tmp_path / "outputs").iterdir()) == []


def test_files_are_not_written_through_links(tmp_path: Path, part: Path) -> None:
    """A hostile machine may send a link and then a file behind it, or the link may already exist."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine").write_bytes(b"old")
    outputs = tmp_path / "outputs"
    with OutputsFolder(outputs) as folder:
        (outputs / "d").symlink_to(elsewhere)
        (outputs / "f").symlink_to(elsewhere / "mine")
        folder.place(part, "d/mine")
        part.write_bytes(b"new")
        folder.place(part, "f")
        assert folder.stamp("d.before-1/mine") is None
    assert (elsewhere / "mine").read_bytes() == b"old"
    assert (outputs / "d/mine").read_bytes() == (outputs / "f").read_bytes() == b"new"
    assert (outputs / "d.before-1").is_symlink()


@pytest.mark.parametrize("target", ["/etc", "..", "a/../..", ""])
def test_unsafe_links_are_refused(tmp_path: Path, target: str) -> None:
    with OutputsFolder(tmp_path / "outputs") as folder, pytest.raises(JobError):
        folder.link("l", target)
    assert list((tmp_path / "outputs").iterdir()) == []


def test_path_of_another_kind_is_renamed(tmp_path: Path, part: Path) -> None:
    outputs = tmp_path / "outputs"
    with OutputsFolder(outputs) as folder:
        folder.make("a/b", 0o755)
        folder.place(part, "a/b/c")
        part.write_bytes(b"2")
        folder.place(part, "a/b")
        folder.link("l", "a")
        folder.link("l", "a/b")
        part.write_bytes(b"3")
        folder.place(part, "a/b/c")
    assert (outputs / "a/b.before-1/c").read_bytes() == b"new"
    assert (outputs / "a/b.before-2").read_bytes() == b"2"
    assert (outputs / "a/b/c").read_bytes() == b"3"
    assert str((outputs / "l").readlink()) == "a/b"


def test_folders_are_writable_and_never_setuid(tmp_path: Path) -> None:
    with OutputsFolder(tmp_path / "outputs") as folder:
        folder.make("d", 0o4555)
    assert (tmp_path / "outputs/d").stat().st_mode & 0o7700 == 0o700


STAMP, OTHER = Stamp(10, 20, 30), Stamp(11, 21, 31)


def read_index(path: Path) -> OutputsIndex:
    index = OutputsIndex(path)
    index.close()
    return index


def test_index_is_stored(tmp_path: Path) -> None:
    path = tmp_path / "index"
    index = OutputsIndex(path)
    index.add_file("a\udcff", STAMP, "digest")
    index.add_part("big", STAMP)
    index.add_part("whole", STAMP)
    index.add_file("whole", STAMP, "other")
    index.close()
    found = read_index(path)
    assert found.files == {"a\udcff": (STAMP, "digest"), "whole": (STAMP, "other")}
    assert found.parts == {"big": STAMP}


def test_invalid_lines_of_the_index_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "index"
    index = OutputsIndex(path)
    index.add_file("a", STAMP, "digest")
    index.close()
    with path.open("ab") as file:
        file.write(b'\xff\xfe\n[1]\n{}\n["file", "x", null, 1, 1, "d"]\n["file", "b", 1, 2')
    index = OutputsIndex(path)
    index.add_file("c", OTHER, "digest")
    index.close()
    assert read_index(path).files == {"a": (STAMP, "digest"), "c": (OTHER, "digest")}


def test_index_is_compacted(tmp_path: Path) -> None:
    path = tmp_path / "index"
    for number in range(200):
        index = OutputsIndex(path)
        index.add_file("a", Stamp(number, 0, 0), "digest")
        index.close()
    assert len(path.read_text().splitlines()) < 100
    assert read_index(path).files["a"][0].size == 199
