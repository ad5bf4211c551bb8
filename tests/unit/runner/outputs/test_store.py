"""Outputs as they are written here: never out of their folder, never twice."""

import os
from pathlib import Path

import pytest

from gpuinfra.remote.folder import leads_inside, own_name, wire_name
from gpuinfra.runner.errors import JobError
from gpuinfra.runner.outputs.store import OutputsFolder, OutputsIndex, Stamp


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
        # `a` may be a link itself, and then this leads elsewhere than it looks.
        ("l", "a/../b", False),
        ("d/e/l", "../x/../../y", False),
        ("d/e/l", "../../y", True),
        ("l", "..a", True),
    ],
)
def test_links_that_lead_out_are_known(link: str, target: str, expected: bool) -> None:
    assert leads_inside(link, target) is expected


@pytest.mark.parametrize("name", [b"plain", "naïve 文".encode(), b"\xff\xfe", b"a\nb", b"-rf"])
def test_names_of_any_bytes_travel(name: bytes) -> None:
    assert os.fsencode(own_name(wire_name(os.fsdecode(name)))) == name


@pytest.fixture
def part(tmp_path: Path) -> Path:
    file = tmp_path / "part"
    file.write_bytes(b"new")
    return file


def test_a_file_is_placed_in_folders_that_are_made(tmp_path: Path, part: Path) -> None:
    with OutputsFolder(tmp_path / "outputs") as folder:
        folder.place(part, "a/b/c")
    assert (tmp_path / "outputs/a/b/c").read_bytes() == b"new"


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", "a//b", ".", "a/.", "a\0b", "a/"])
def test_no_path_leads_out(tmp_path: Path, part: Path, path: str) -> None:
    with OutputsFolder(tmp_path / "outputs") as folder:
        with pytest.raises(JobError):
            folder.place(part, path)
        with pytest.raises(JobError):
            folder.make(path, 0o755)
        with pytest.raises(JobError):
            folder.link(path, "a")
    assert sorted(each.name for each in (tmp_path).iterdir()) == ["outputs", "part"]
    assert list((tmp_path / "outputs").iterdir()) == []


def test_no_link_is_written_through(tmp_path: Path, part: Path) -> None:
    """A machine that lies sends a link, or one is here, and then a file behind it."""
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
def test_no_link_that_leads_out_is_made(tmp_path: Path, target: str) -> None:
    with OutputsFolder(tmp_path / "outputs") as folder, pytest.raises(JobError):
        folder.link("l", target)
    assert list((tmp_path / "outputs").iterdir()) == []


def test_what_is_something_else_now_is_set_aside(tmp_path: Path, part: Path) -> None:
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


def test_modes_leave_folders_writable_and_carry_no_setuid(tmp_path: Path) -> None:
    with OutputsFolder(tmp_path / "outputs") as folder:
        folder.make("d", 0o4555)
    assert (tmp_path / "outputs/d").stat().st_mode & 0o7700 == 0o700


STAMP, OTHER = Stamp(10, 20, 30), Stamp(11, 21, 31)


def indexed(path: Path) -> OutputsIndex:
    index = OutputsIndex(path)
    index.close()
    return index


def test_the_index_is_remembered(tmp_path: Path) -> None:
    path = tmp_path / "index"
    index = OutputsIndex(path)
    index.add_file("a\udcff", STAMP, "digest")
    index.add_part("big", STAMP)
    index.add_part("whole", STAMP)
    index.add_file("whole", STAMP, "other")
    index.close()
    found = indexed(path)
    assert found.files == {"a\udcff": (STAMP, "digest"), "whole": (STAMP, "other")}
    assert found.parts == {"big": STAMP}


def test_a_torn_or_foreign_line_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "index"
    index = OutputsIndex(path)
    index.add_file("a", STAMP, "digest")
    index.close()
    with path.open("ab") as file:
        file.write(b'\xff\xfe\n[1]\n{}\n["file", "x", null, 1, 1, "d"]\n["file", "b", 1, 2')
    index = OutputsIndex(path)
    index.add_file("c", OTHER, "digest")
    index.close()
    assert indexed(path).files == {"a": (STAMP, "digest"), "c": (OTHER, "digest")}


def test_the_index_does_not_grow_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "index"
    for number in range(200):
        index = OutputsIndex(path)
        index.add_file("a", Stamp(number, 0, 0), "digest")
        index.close()
    assert len(path.read_text().splitlines()) < 100
    assert indexed(path).files["a"][0].size == 199
