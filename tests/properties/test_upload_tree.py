"""The project as it is sent: which paths it has, and how unchanged files are recognized."""

import errno
import json
import os
import socket
import time
from pathlib import Path

import pytest

from gpuinfra.remote.staging import digest_of
from gpuinfra.runner import content
from gpuinfra.runner.errors import UploadError
from gpuinfra.runner.project_tree import INDEX_FILE, RACY_NS, Tree, read_tree
from tests.upload_help import RecordedProgress


def read(project: Path, state: Path | None = None) -> Tree:
    return read_tree(project, state, RecordedProgress())


def paths(tree: Tree) -> list[str]:
    return [entry.path for entry in tree.entries]


def write(file: Path, text: str = "x") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def age(file: Path) -> None:
    """Set an old modification time. The inode's change time cannot be set."""
    os.utime(file, (1_700_000_000, 1_700_000_000))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


def test_files_folders_and_modes_are_read(project: Path) -> None:
    write(project / "train.py", "print(1)").chmod(0o755)
    write(project / "deep" / "down" / "a.txt").chmod(0o640)
    (project / "empty").mkdir(mode=0o750)
    tree = read(project)
    assert {(entry.path, entry.kind, entry.mode) for entry in tree.entries} == {
        ("deep", "d", 0o777 & (project / "deep").stat().st_mode),
        ("deep/down", "d", 0o777 & (project / "deep/down").stat().st_mode),
        ("deep/down/a.txt", "f", 0o640),
        ("empty", "d", 0o750 & (project / "empty").stat().st_mode),
        ("train.py", "f", 0o755),
    }
    assert (tree.files, tree.size, tree.skipped) == (2, 9, ())


def test_folders_come_before_their_content(project: Path) -> None:
    for path in ("b/c/d", "a/x", "b-/y", "b/a"):
        write(project / path)
    found = paths(read(project))
    assert all(path.rpartition("/")[0] in ["", *found[: found.index(path)]] for path in found)


@pytest.mark.parametrize("name", ["-rf", "new\nline", "naïve", "日本", "a b", "'\"$(id)", "back\\slash", "x" * 255])
def test_unusual_names_are_kept(project: Path, name: str) -> None:
    write(project / name)
    assert paths(read(project)) == [name]


def test_names_that_are_not_utf8_are_kept(project: Path) -> None:
    name = b"caf\xe9\xff"
    Path(os.fsdecode(os.fsencode(project) + b"/" + name)).write_text("x")
    tree = read(project)
    assert paths(tree) == [name.decode("utf-8", "surrogateescape")]
    assert json.loads(tree.batches[0])[0][0] == paths(tree)[0]


def test_reserved_folders_are_never_sent(project: Path) -> None:
    for path in (".git/HEAD", ".gpuinfra/x", "outputs/model", "sub/.git", "sub/outputs/kept", "sub/.gpuinfra/kept"):
        write(project / path)
    assert paths(read(project)) == ["sub", "sub/.gpuinfra", "sub/outputs", "sub/.gpuinfra/kept", "sub/outputs/kept"]


@pytest.mark.parametrize(
    ("present", "left_out"),
    [
        ((".gpuinfraignore", ".amlignore", ".gitignore"), ".gpuinfraignore"),
        ((".amlignore", ".gitignore"), ".amlignore"),
        ((".gitignore",), ".gitignore"),
        ((), None),
    ],
)
def test_one_kind_of_ignore_file_is_used(project: Path, present: tuple[str, ...], left_out: str | None) -> None:
    for name in (".gpuinfraignore", ".amlignore", ".gitignore"):
        write(project / f"by{name}")
        # Folders further down use the same kind as the top folder.
        write(project / "sub" / name, f"/by{name}")
        write(project / "sub" / f"by{name}")
    for name in present:
        write(project / name, f"/by{name}\n")
    found = set(paths(read(project)))
    for name in (".gpuinfraignore", ".amlignore", ".gitignore"):
        is_sent = name != left_out and not (left_out is None and name == ".gpuinfraignore")
        assert (f"sub/by{name}" in found) is is_sent
        assert (f"by{name}" in found) is (name != left_out)


def test_ignored_folder_is_not_read(project: Path) -> None:
    write(project / "locked" / "x")
    write(project / ".gpuinfraignore", "locked/\n!locked/x\n")
    (project / "locked").chmod(0)
    try:
        assert paths(read(project)) == [".gpuinfraignore"]
    finally:
        (project / "locked").chmod(0o700)


def test_links_stay_in_the_project(project: Path, tmp_path: Path) -> None:
    write(project / "data" / "a.csv")
    write(tmp_path / "secret")
    (tmp_path / "way-in").symlink_to(project)
    links = {
        "same": "data/a.csv",
        "folder": "data",
        "data/up": "../data/a.csv",
        "whole": str(project / "data" / "a.csv"),
        "data/whole": str(project / "data"),
        "round": str(tmp_path / "way-in" / "data"),
        "out-and-in": "../project/data",
        "dangling": "not-there",
        "loop": "loop",
        "out": "../secret",
        "whole-out": "/etc/passwd",
        "by-another": "outward/passwd",
        "outward": "/etc",
    }
    for name, target in links.items():
        (project / name).symlink_to(target)
    tree = read(project)
    assert {entry.path: entry.content for entry in tree.entries if entry.kind == "l"} == {
        "same": "data/a.csv",
        "folder": "data",
        "data/up": "../data/a.csv",
        "whole": "data/a.csv",
        "data/whole": ".",
        "round": "data",
        "out-and-in": "data",
        "dangling": "not-there",
        "loop": "loop",
    }
    assert {each.path for each in tree.skipped} == {"out", "whole-out", "by-another", "outward"}
    assert {each.reason for each in tree.skipped} == {"a link that leads out of the project"}


def test_pipes_and_sockets_are_skipped_and_reported(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(project / "pipe")
    monkeypatch.chdir(project)  # the path of a socket must be short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        tree = read(project)
    assert [(each.path, each.reason) for each in tree.skipped] == [("pipe", "a named pipe"), ("socket", "a socket")]
    assert not tree.entries


def test_digest_covers_names_modes_and_content(project: Path) -> None:
    file = write(project / "a", "x")
    digests = [read(project).digest]
    file.chmod(0o700)
    digests.append(read(project).digest)
    file.write_text("y")
    digests.append(read(project).digest)
    file.rename(project / "b")
    digests.append(read(project).digest)
    (project / "empty").mkdir()
    digests.append(read(project).digest)
    (project / "link").symlink_to("b")
    digests.append(read(project).digest)
    assert len(set(digests)) == len(digests)
    os.utime(project / "b", (1, 1))
    assert read(project).digest == digests[-1]


def test_tree_includes_only_sent_paths(project: Path) -> None:
    write(project / "scripts" / "train.py")
    write(project / "secret.py")
    write(project / ".gitignore", "secret.py")
    tree = read(project)
    assert tree.includes("scripts/train.py")
    assert tree.includes("./scripts//train.py")
    assert not tree.includes("secret.py")
    assert not tree.includes("../project/scripts/train.py")
    assert not tree.includes("missing.py")


def test_unreadable_file_is_reported(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project / "sub" / "secret").chmod(0)

    def refuse(path: bytes, flags: int) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    if os.geteuid() == 0:  # root can read every file
        monkeypatch.setattr("gpuinfra.runner.content.os.open", refuse)
    with pytest.raises(UploadError, match=r"sub/secret: Permission denied"):
        read(project)


def test_missing_project_is_reported(tmp_path: Path) -> None:
    progress = RecordedProgress()
    with pytest.raises(UploadError, match="No such file") as caught:
        read_tree(tmp_path / "missing", None, progress)
    assert caught.value.code == "upload-failed"
    assert progress.lines[-1].startswith("project failed: ")


class Reads:
    """Records which files are read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths: list[str] = []
        original = content.read

        def counted(root: bytes, path: str, *rest: object) -> content.Content:
            self.paths.append(path)
            return original(root, path, *rest)  # type: ignore[arg-type]

        monkeypatch.setattr("gpuinfra.runner.project_tree.read", counted)

    def of(self, project: Path, state: Path) -> list[str]:
        self.paths.clear()
        read(project, state)
        return sorted(self.paths)


def later(monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    now = time.time_ns() + seconds * 1_000_000_000
    monkeypatch.setattr("gpuinfra.runner.project_tree.time.time_ns", lambda: now)


def test_only_changed_files_are_read_again(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, state = Reads(monkeypatch), tmp_path / "state"
    for name in "abc":
        write(project / name, name)
    later(monkeypatch, 60)
    assert reads.of(project, state) == ["a", "b", "c"]
    assert reads.of(project, state) == []
    before = (project / "b").stat()
    write(project / "b", "B")
    os.utime(project / "b", ns=(before.st_atime_ns, before.st_mtime_ns))  # only the inode's change time differs
    assert reads.of(project, state) == ["b"]


def test_digest_of_a_recent_file_is_not_stored(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Reads(monkeypatch)
    write(project / "a")
    age(project / "a")
    assert reads.of(project, tmp_path) == ["a"]
    assert reads.of(project, tmp_path) == ["a"]
    later(monkeypatch, 2 * RACY_NS // 1_000_000_000)
    assert reads.of(project, tmp_path) == ["a"]
    assert reads.of(project, tmp_path) == []


BROKEN = [b"", b"\0\xff", b"[]", b"{}", b'{"format":2}', b'{"format":2,"files":{"a":[1]}}', b'{"format":2,"files":[1]}']


@pytest.mark.parametrize(
    "broken", [*BROKEN, b'{"format":99,"files":{}}', b"[" * 100_000, b'{"format":2,"files":{"a":7}}']
)
def test_invalid_index_is_discarded(
    project: Path, tmp_path: Path, broken: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = Reads(monkeypatch)
    write(project / "a")
    (tmp_path / INDEX_FILE).write_bytes(broken)
    later(monkeypatch, 60)
    assert reads.of(project, tmp_path) == ["a"]
    assert reads.of(project, tmp_path) == []


def test_index_that_cannot_be_written_is_not_an_error(project: Path, tmp_path: Path) -> None:
    write(project / "a")
    write(tmp_path / "no-folder")
    assert paths(read(project, tmp_path / "no-folder")) == ["a"]


class ConcurrentWriter:
    """Replaces a file's content in the middle of each read, once for each given content."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, file: Path, contents: list[bytes]) -> None:
        original = os.preadv

        def preadv(handle: int, buffers: list[memoryview], offset: int) -> int:
            if offset and contents:
                file.write_bytes(contents.pop(0))
                os.utime(file, ns=(len(contents), len(contents)))  # the clock's tick may be the same
            return original(handle, buffers, offset)

        monkeypatch.setattr("gpuinfra.runner.content.os.preadv", preadv)


SIZE = content.BLOCK + 10  # needs two reads


def test_file_that_changes_during_a_read_is_consistent(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "a").write_bytes(b"1" * SIZE)
    ConcurrentWriter(monkeypatch, project / "a", [b"2" * SIZE])
    entry = read(project).entries[0]
    assert entry.content == digest_of(b"2" * SIZE)


def test_growing_log_is_sent_up_to_its_first_size(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "log").write_bytes(b"1" * SIZE)
    ConcurrentWriter(monkeypatch, project / "log", [b"1" * (SIZE + grown) for grown in range(1, 50)])
    entry = read(project).entries[0]
    assert (entry.size, entry.content) == (SIZE, digest_of(b"1" * SIZE))


def test_file_that_shrinks_during_a_read_is_consistent(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "a").write_bytes(b"1" * SIZE)
    ConcurrentWriter(monkeypatch, project / "a", [b"short"])
    entry = read(project).entries[0]
    assert (entry.size, entry.content) == (5, digest_of(b"short"))


def test_file_that_keeps_changing_is_reported(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "a").write_bytes(b"0" * SIZE)
    ConcurrentWriter(monkeypatch, project / "a", [bytes([value]) * SIZE for value in range(1, 200)])
    with pytest.raises(UploadError, match="a file keeps changing: a: "):
        read(project)
