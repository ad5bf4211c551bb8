"""Outputs are written only into their folder, and indexed."""

import os
from pathlib import Path

import pytest

from gpuinfra.diagnostics import Code, Exit, Problem
from gpuinfra.models.run import FileDifference, KeptFile, Unlike
from gpuinfra.remote.folder_content import leads_inside, own_name, wire_name
from gpuinfra.runner.errors import JobError
from gpuinfra.runner.outputs import OutputsFolder, OutputsIndex, Stamp, compare, copy_outputs, kept_files


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


def make(folder: Path, **files: str) -> Path:
    for name, content in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def refusal(outputs: Path, destination: Path, *, replace: bool = False) -> str:
    with pytest.raises(Problem) as problem:
        copy_outputs(outputs, destination, replace=replace)
    (diagnostic,) = problem.value.diagnostics
    assert diagnostic.code is Code.FILE_EXISTS
    assert problem.value.exit_code is Exit.USAGE
    assert diagnostic.help
    return diagnostic.note or ""


def test_files_are_sorted_and_links_not_followed(tmp_path: Path) -> None:
    outputs = make(tmp_path / "o", b="22", a__c="1", a__d__e="")
    (outputs / "nowhere").symlink_to("/no/such/file")
    (outputs / "up").symlink_to("..")
    os.mkfifo(outputs / "pipe")
    assert kept_files(outputs) == [
        KeptFile("a/c", 1),
        KeptFile("a/d/e", 0),
        KeptFile("b", 2),
        KeptFile("nowhere", 0, "/no/such/file"),
        KeptFile("up", 0, ".."),
    ]
    assert kept_files(tmp_path / "absent") == []


def test_differences_are_listed(tmp_path: Path) -> None:
    a = make(tmp_path / "a", same="1", size="1", content="12", only="1", x__y="1")
    b = make(tmp_path / "b", same="1", size="12", content="13", other="1", x__y="1")
    for folder, leads in ((a, "here"), (b, "there")):
        (folder / "link").symlink_to(leads)
        (folder / "same-link").symlink_to("both")
    assert compare(a, b) == [
        FileDifference("content", Unlike.CONTENT, 2, 2),
        FileDifference("link", Unlike.CONTENT, 0, 0),
        FileDifference("only", Unlike.ONLY_A, 1, None),
        FileDifference("other", Unlike.ONLY_B, None, 1),
        FileDifference("size", Unlike.SIZE, 1, 2),
    ]
    assert compare(a, a) == []
    assert {each.how for each in compare(tmp_path / "absent", b)} == {Unlike.ONLY_B}


def test_empty_file_and_link_differ(tmp_path: Path) -> None:
    a, b = make(tmp_path / "a", x=""), make(tmp_path / "b")
    (b / "x").symlink_to("y")
    assert [each.how for each in compare(a, b)] == [Unlike.CONTENT]
    assert [each.how for each in compare(b, a)] == [Unlike.CONTENT]


def test_copy_keeps_modes_times_and_links(tmp_path: Path) -> None:
    outputs = make(tmp_path / "o", run__sh="#!/bin/sh", data="x")
    (outputs / "run/sh").chmod(0o750)
    os.utime(outputs / "data", (1, 1))
    (outputs / "latest").symlink_to("run/sh")
    destination = tmp_path / "deep" / "er"
    assert [file.name for file in copy_outputs(outputs, destination, replace=False)] == ["data", "latest", "run/sh"]
    assert (destination / "run/sh").stat().st_mode & 0o7777 == 0o750
    assert (destination / "data").stat().st_mtime == 1
    assert (destination / "latest").readlink() == Path("run/sh")
    assert kept_files(destination) == kept_files(outputs)
    # A second copy finds the same files and is not an error.
    copy_outputs(outputs, destination, replace=False)


def test_existing_file_is_replaced_only_on_request(tmp_path: Path) -> None:
    outputs = make(tmp_path / "o", a="new", b="new", c="same")
    destination = make(tmp_path / "d", b="old", c="same", mine="mine")
    assert f"`{destination / 'b'}`" in refusal(outputs, destination)
    assert not (destination / "a").exists()  # nothing was copied
    copy_outputs(outputs, destination, replace=True)
    assert [(destination / name).read_text() for name in ("a", "b", "c", "mine")] == ["new", "new", "same", "mine"]


@pytest.mark.parametrize("there", ["link", "file", "folder"])
def test_path_of_another_kind_exists(tmp_path: Path, there: str) -> None:
    outputs, destination, elsewhere = make(tmp_path / "o", a="new"), make(tmp_path / "d"), make(tmp_path / "e", a="new")
    match there:
        case "link":
            (destination / "a").symlink_to(elsewhere / "a")
        case "folder":
            (destination / "a").mkdir()
        case "file":
            (outputs / "a").unlink()
            (outputs / "a").symlink_to("x")
            (destination / "a").write_text("old")
    refusal(outputs, destination)
    if there == "folder":
        with pytest.raises(Problem) as problem:
            copy_outputs(outputs, destination, replace=True)
        assert problem.value.diagnostics[0].code is Code.FILE_UNWRITABLE
        assert list(destination.iterdir()) == [destination / "a"]  # no partial file is left
    else:
        copy_outputs(outputs, destination, replace=True)
        assert kept_files(destination) == kept_files(outputs)
    assert (elsewhere / "a").read_text() == "new"


def test_files_are_not_copied_through_links(tmp_path: Path) -> None:
    home = make(tmp_path / "home", keys="mine")
    destination = make(tmp_path / "d")
    (destination / "sub").symlink_to(home)
    outputs = make(tmp_path / "o", sub__keys="theirs")
    for replace in (False, True):
        refusal(outputs, destination, replace=replace)
    assert (home / "keys").read_text() == "mine"


def test_file_instead_of_a_parent_folder_is_refused(tmp_path: Path) -> None:
    outputs, destination = make(tmp_path / "o", sub__x="1"), make(tmp_path / "d", sub="file")
    refusal(outputs, destination, replace=True)
    assert (destination / "sub").read_text() == "file"


def test_destination_that_is_a_file_is_refused(tmp_path: Path) -> None:
    outputs, destination = make(tmp_path / "o", x="1"), tmp_path / "file"
    destination.write_text("mine")
    with pytest.raises(Problem) as problem:
        copy_outputs(outputs, destination, replace=True)
    assert problem.value.diagnostics[0].code is Code.FILE_UNWRITABLE
    assert destination.read_text() == "mine"


def test_unusual_names_are_copied(tmp_path: Path) -> None:
    outputs = make(tmp_path / "o")
    for name in (b"a\xff", b"new\nline", "ü".encode()):
        Path(os.fsdecode(bytes(outputs) + b"/" + name)).write_text("1")
    copy_outputs(outputs, tmp_path / "d", replace=False)
    assert compare(outputs, tmp_path / "d") == []
