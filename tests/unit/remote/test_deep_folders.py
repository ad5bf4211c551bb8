"""Folders nested deeper than the length of a path or Python's recursion limit allows."""

import os
from pathlib import Path

from gpuinfra.remote.folder_content import MAX_PATH_BYTES, FolderContent
from gpuinfra.remote.home import remove_tree
from gpuinfra.runner.outputs import OutputsFolder, kept_files

DEPTH = 1500


def make_nested(top: Path, depth: int, name: str = "d") -> None:
    """Create nested folders to this depth, with a file in the innermost one."""
    number = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=number)
        inner = os.open(name, os.O_RDONLY, dir_fd=number)
        os.close(number)
        number = inner
    os.close(os.open("model", os.O_CREAT | os.O_WRONLY, dir_fd=number))
    os.close(number)


def test_files_in_deep_folders_are_listed_and_opened(tmp_path: Path) -> None:
    make_nested(tmp_path, DEPTH)
    try:
        folder = FolderContent(str(tmp_path))
        folder.scan()
        (path,) = (each[0] for each in folder.files)
        os.close(folder.open(path))
        folder.close()
        assert path == "d/" * DEPTH + "model"
        assert (len(folder.folders), folder.unreadable) == (DEPTH, [])
        assert [file.name for file in kept_files(tmp_path)] == [path]
    finally:
        remove_tree(str(tmp_path / "d"))


def test_deep_folders_are_created(tmp_path: Path) -> None:
    try:
        with OutputsFolder(tmp_path) as outputs:
            for depth in range(1, DEPTH + 1):
                outputs.make("/".join("d" * depth), 0o755)
        assert (tmp_path / "/".join("d" * DEPTH)).is_dir()
    finally:
        remove_tree(str(tmp_path / "d"))


def test_too_long_path_is_reported(tmp_path: Path) -> None:
    make_nested(tmp_path, 40, "d" * 200)
    try:
        folder = FolderContent(str(tmp_path))
        folder.scan()
        folder.close()
        assert (len(folder.folders), folder.files) == (17, [])
        ((path, reason),) = folder.unreadable
        assert path.startswith("ddd")
        assert reason == f"its path has more than {MAX_PATH_BYTES} bytes"
    finally:
        remove_tree(str(tmp_path / ("d" * 200)))


def test_deep_tree_is_removed(tmp_path: Path) -> None:
    make_nested(tmp_path, 40, "d" * 200)
    make_nested(tmp_path, DEPTH)
    (tmp_path / "d" / ".removed-1").mkdir()
    (tmp_path / ".removed-1").write_text("x")
    (tmp_path / "closed" / "inner").mkdir(parents=True)
    (tmp_path / "closed").chmod(0)
    (tmp_path / "link").symlink_to("/etc")
    remove_tree(str(tmp_path))
    assert not tmp_path.exists()
    remove_tree(str(tmp_path))


def test_removal_does_not_follow_links(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "kept").write_text("x")
    (tmp_path / "top").mkdir()
    (tmp_path / "top" / "link").symlink_to(tmp_path / "mine")
    remove_tree(str(tmp_path / "top"))
    assert not (tmp_path / "top").exists()
    assert (tmp_path / "mine" / "kept").exists()
    (tmp_path / "top").symlink_to(tmp_path / "mine")
    remove_tree(str(tmp_path / "top"))
    assert (tmp_path / "mine" / "kept").exists()
