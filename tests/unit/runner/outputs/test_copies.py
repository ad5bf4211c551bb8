"""Fetched outputs are listed, compared and copied."""

import os
from pathlib import Path

import pytest

from gpuinfra.diagnostics import Code, Exit, Problem
from gpuinfra.models.outputs import FileDifference, KeptFile, Unlike
from gpuinfra.runner.outputs.copies import compare, copy_outputs, kept_files


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
