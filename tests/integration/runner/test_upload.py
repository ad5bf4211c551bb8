"""Upload a project to a machine with a real OpenSSH server."""

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuinfra.models.target import Target
from gpuinfra.runner.connection.remote_client import RemoteClient
from gpuinfra.runner.connection.ssh import SshConnection, SshProcess
from gpuinfra.runner.errors import ConnectError, RemoteError
from gpuinfra.runner.project_tree import read_tree
from gpuinfra.runner.upload import Uploaded, upload
from tests.integration.runner.conftest import SshServer, eventually
from tests.real import missing, program
from tests.upload_help import RecordedProgress
from tests.variants import variant

MEGABYTE = 1 << 20


class Machine:
    """A target with its own home folder, and a local project."""

    def __init__(self, folder: Path, server: SshServer, home: Path) -> None:
        self.server, self.home = server, home
        self.project, self.state = folder / "project", folder / "state"
        self.project.mkdir()
        self.progress = RecordedProgress()

    @contextlib.contextmanager
    def remote(self) -> Iterator[RemoteClient]:
        connection = SshConnection.open(self.server.target, 20)
        remote = RemoteClient(connection)
        try:
            yield remote
        finally:
            remote.close()
            connection.close()

    def send(self, run: str = "run-1", remote: RemoteClient | None = None, **options: Any) -> Uploaded:
        if remote is None:
            with self.remote() as own:
                return self.send(run, own, **options)
        tree = read_tree(self.project, self.state, self.progress)
        return upload(remote, tree, project="key", run=run, progress=self.progress, **options)

    def write(self, path: str, content: bytes = b"x", mode: int = 0o644) -> Path:
        file = self.project / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        file.chmod(mode)
        return file


def content_of(folder: Path) -> dict[str, tuple[str, Any]]:
    """Return the kind, mode and content of every path in a tree except its outputs."""
    found: dict[str, tuple[str, Any]] = {}
    for above, folders, files in os.walk(os.fsencode(folder)):
        for name in folders + files:
            full = os.path.join(above, name)
            path = os.path.relpath(full, os.fsencode(folder)).decode("utf-8", "backslashreplace")
            mode = os.lstat(full).st_mode
            if path == "outputs" or path.startswith("outputs/"):
                continue
            if stat.S_ISLNK(mode):
                found[path] = ("link", os.readlink(full))
            elif stat.S_ISDIR(mode):
                found[path] = (f"folder {stat.S_IMODE(mode):o}", None)
            else:
                found[path] = (f"file {stat.S_IMODE(mode):o}", Path(os.fsdecode(full)).read_bytes())
    return found


@pytest.fixture
def machine(tmp_path: Path, server: SshServer) -> Machine:
    there = tmp_path / "there"
    there.mkdir()
    server.settings["SetEnv"] = f"HOME={there}"
    server.start()
    return Machine(tmp_path, server, there)


def test_project_arrives_unchanged(machine: Machine) -> None:
    machine.write("train.py", b"print(1)\n", 0o755)
    machine.write("deep/down/-rf", b"dash")
    machine.write("naïve 日本\n'\"$(id)", b"odd")
    machine.write("empty", b"")
    machine.write("same/one", b"twice")
    machine.write("same/two", b"twice", 0o600)
    machine.write("large", os.urandom(3 * MEGABYTE + 7))
    (machine.project / "nothing").mkdir()
    (machine.project / "sealed").mkdir()
    machine.write("sealed/x").parent.chmod(0o555)
    (machine.project / "link").symlink_to("deep/down")
    Path(os.fsdecode(os.fsencode(machine.project) + b"/caf\xe9")).write_bytes(b"bytes")
    done = machine.send()
    assert content_of(Path(done.tree)) == content_of(machine.project)
    assert done.slot == "slot-1"
    assert done.tree == str(machine.home / ".gpuinfra/projects/key/slot-1/tree")
    assert done.sent_files == 7
    assert done.sent_bytes == 3 * MEGABYTE + 7 + sum(map(len, ("print(1)\n", "dash", "odd", "twice", "x", "bytes")))
    assert machine.progress.amounts[-1] == ("upload", done.sent_bytes, done.sent_bytes)
    assert not list((machine.home / ".gpuinfra/projects/key/staging").iterdir())


def test_only_changed_files_are_sent(machine: Machine) -> None:
    for number in range(50):
        machine.write(f"package/module{number}.py", b"%d" % number)
    machine.write("moved", os.urandom(2 * MEGABYTE))
    with machine.remote() as remote:
        assert machine.send(remote=remote).sent_files == 51
        assert machine.send(remote=remote).sent_files == 0
        machine.write("package/module7.py", b"seven")
        machine.write("package/module8.py", b"8", 0o755)
        (machine.project / "moved").rename(machine.project / "package" / "moved")
        (machine.project / "package/module9.py").unlink()
        (machine.project / "package/module10.py").unlink()
        machine.write("package/module10.py/now_a_folder", b"10")
        done = machine.send(remote=remote)
    assert (done.sent_files, done.sent_bytes) == (1, 5)
    assert content_of(Path(done.tree)) == content_of(machine.project)


def record_sent_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that receives the size of every later write."""
    sent: list[int] = []
    write = SshProcess.write

    def counting(self: SshProcess, data: bytes | memoryview) -> None:
        sent.append(len(data))
        write(self, data)

    monkeypatch.setattr(SshProcess, "write", counting)
    return sent


def test_unchanged_tree_needs_few_bytes(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(300):
        machine.write(f"{number}", b"%d" % number)
    with machine.remote() as remote:
        machine.send(remote=remote)
        sent = record_sent_sizes(monkeypatch)
        machine.send(remote=remote)
    assert 0 < sum(sent) < 300


def test_changes_of_a_job_in_the_tree_are_undone(machine: Machine) -> None:
    for name in ("changed", "same-size", "removed", "became-link", "became-folder", "mode", "pack/inner"):
        machine.write(name, b"before")
    (machine.project / "link").symlink_to("changed")
    done = machine.send()
    tree = Path(done.tree)
    (tree / "changed").write_bytes(b"after a job")
    before = (tree / "same-size").stat()
    (tree / "same-size").write_bytes(b"AFTER!")
    os.utime(tree / "same-size", ns=(before.st_atime_ns, before.st_mtime_ns))
    (tree / "removed").unlink()
    (tree / "became-link").unlink()
    (tree / "became-link").symlink_to("/etc/passwd")
    (tree / "became-folder").unlink()
    (tree / "became-folder").mkdir()
    (tree / "became-folder" / "x").write_text("x")
    (tree / "mode").chmod(0o777)
    shutil.rmtree(tree / "pack")
    (tree / "pack").symlink_to("/")
    (tree / "link").unlink()
    (tree / "link").symlink_to("elsewhere")
    (tree / "__pycache__").mkdir()
    (tree / "__pycache__" / "x.pyc").write_text("x")
    os.mkfifo(tree / "pipe")
    again = machine.send()
    assert content_of(tree) == content_of(machine.project)
    # One of the files with the same content still had it.
    assert again.sent_files == 0


@pytest.mark.parametrize("folders", [("saved",), ()])
def test_folders_for_outputs_are_empty_and_those_of_the_run_before_are_kept(
    machine: Machine, folders: tuple[str, ...]
) -> None:
    machine.write("a")
    done = machine.send("one", more_outputs=("saved",))
    tree, own = Path(done.tree), machine.home / ".gpuinfra/runs/one"
    (tree / "outputs/model").write_text("kept")
    shutil.rmtree(tree / "saved")
    (tree / "saved").mkdir()
    (tree / "saved/step").write_text("kept too")
    (own / "state.json").write_text('{"ended": 1}')
    again = machine.send("two", more_outputs=folders)
    assert again.slot == done.slot
    assert (own / "outputs/model").read_text() == "kept"
    assert (own / "outputs/saved/step").read_text() == "kept too"
    assert not list((tree / "outputs").iterdir())
    assert (tree / "saved").exists() == bool(folders)
    assert machine.send("two").sent_files == 0, "the folders are not part of the project's copy"


def test_second_run_gets_a_copy_without_upload(machine: Machine) -> None:
    machine.write("large", os.urandom(2 * MEGABYTE))
    machine.write("small")
    first, second = machine.send("one"), machine.send("two")
    assert (first.slot, second.slot) == ("slot-1", "slot-2")
    assert second.sent_files == 0
    assert content_of(Path(second.tree)) == content_of(machine.project)


def test_parallel_uploads_get_separate_slots(machine: Machine) -> None:
    machine.write("large", os.urandom(20 * MEGABYTE))
    for number in range(200):
        machine.write(f"{number}", b"%d" % number)
    done: list[Uploaded] = []
    clients = [
        threading.Thread(target=lambda run=run: done.append(machine.send(run))) for run in ("one", "two", "three")
    ]
    for client in clients:
        client.start()
    for client in clients:
        client.join(60)
    assert sorted(each.slot for each in done) == ["slot-1", "slot-2", "slot-3"]
    for each in done:
        assert content_of(Path(each.tree)) == content_of(machine.project)


class CutAt(RecordedProgress):
    """Cuts the connection after a number of bytes."""

    def __init__(self, server: SshServer, at: int) -> None:
        super().__init__()
        self._server, self._at = server, at

    def amount(self, step: str, done: int, total: int | None) -> None:
        if step == "upload" and self._at and done >= self._at:
            self._at = 0
            self._server.cut()


def test_interrupted_upload_of_a_large_file_resumes(machine: Machine) -> None:
    size = 64 * MEGABYTE
    machine.write("large", os.urandom(size))
    machine.progress = CutAt(machine.server, size // 2)
    with pytest.raises(ConnectError):
        machine.send()
    machine.progress = RecordedProgress()
    done = machine.send()
    assert done.slot == "slot-1"
    # Only what was in buffers when the connection was cut is sent again.
    assert size // 4 < done.sent_bytes < size * 3 // 4
    assert content_of(Path(done.tree)) == content_of(machine.project)


@variant
def test_interrupted_upload_of_many_files_resumes(machine: Machine) -> None:
    count, size = 600, 30_000
    for number in range(count):
        machine.write(f"{number % 10}/{number}", os.urandom(size))
    machine.progress = CutAt(machine.server, count * size // 2)
    with pytest.raises(ConnectError):
        machine.send()
    machine.progress = RecordedProgress()
    # A new run uses what the interrupted upload has sent.
    done = machine.send("run-2")
    assert done.slot == "slot-2"
    assert done.sent_files < count * 5 // 6
    assert content_of(Path(done.tree)) == content_of(machine.project)


def test_damaged_partial_file_is_sent_again(machine: Machine) -> None:
    size = 32 * MEGABYTE
    machine.write("large", os.urandom(size))
    machine.progress = CutAt(machine.server, size // 2)
    with pytest.raises(ConnectError):
        machine.send()
    (begun,) = (machine.home / ".gpuinfra/projects/key/staging").iterdir()
    assert eventually(lambda: not machine.server.serving())
    with begun.open("r+b") as file:
        file.write(b"something else")
    machine.progress = RecordedProgress()
    done = machine.send()
    assert done.sent_bytes > size
    assert content_of(Path(done.tree)) == content_of(machine.project)


def test_new_upload_of_a_run_replaces_a_hanging_one(machine: Machine) -> None:
    machine.write("large", os.urandom(4 * MEGABYTE))
    with machine.remote() as hanging:
        tree = read_tree(machine.project, None, RecordedProgress())
        with (
            contextlib.suppress(ConnectError, RemoteError),
            hanging.call("tree-put", {"project": "key", "run": "run-1", "digest": tree.digest}) as call,
        ):
            call.receive_json()
            done = machine.send("run-1")  # while the other call hangs
    assert done.slot == "slot-1"
    assert content_of(Path(done.tree)) == content_of(machine.project)


def test_file_that_changes_before_it_is_sent_is_read_again(machine: Machine) -> None:
    machine.write("stays", b"here")
    machine.write("changes", b"1" * MEGABYTE)
    machine.write("shrinks", b"2" * MEGABYTE)
    machine.write("goes", b"3" * MEGABYTE)
    tree = read_tree(machine.project, None, RecordedProgress())
    machine.write("changes", b"4" * MEGABYTE)
    machine.write("shrinks", b"short")
    (machine.project / "goes").unlink()
    with machine.remote() as remote:
        done = upload(remote, tree, project="key", run="run", progress=RecordedProgress())
    assert content_of(Path(done.tree)) == content_of(machine.project)


def test_text_is_compressed_on_a_slow_link(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuinfra.runner.content.NEAR_SECONDS", 0.0)  # every machine counts as distant
    machine.write("text", b"".join(b"%d: a line of text\n" % number for number in range(100_000)))
    machine.write("noise", os.urandom(MEGABYTE))
    sent = record_sent_sizes(monkeypatch)
    done = machine.send()
    assert sum(sent) < done.sent_bytes * 0.6
    assert content_of(Path(done.tree)) == content_of(machine.project)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        missing("a separate disk needs root")
    folder = tmp_path / "small"
    folder.mkdir()
    mount = [program("mount", "mount"), "-t", "tmpfs", "-o", "size=16m", "none", str(folder)]
    if subprocess.run(mount, check=False, timeout=20).returncode:
        missing("no file system can be mounted here")
    yield folder
    subprocess.run([program("umount", "mount"), "-l", str(folder)], check=True, timeout=20)


def test_too_small_disk_is_reported_before_the_upload(tmp_path: Path, server: SshServer, small_disk: Path) -> None:
    server.settings["SetEnv"] = f"HOME={small_disk}"
    server.start()
    machine = Machine(tmp_path, server, small_disk)
    machine.write("large", os.urandom(20 * MEGABYTE))
    with pytest.raises(RemoteError, match=r"needs 20971520 more bytes, but only \d+ are free") as caught:
        machine.send()
    assert caught.value.code == "disk-full"
    assert not machine.progress.amounts or machine.progress.amounts[-1][0] != "upload"


def test_upload_resumes_after_a_full_disk(tmp_path: Path, server: SshServer, small_disk: Path) -> None:
    server.settings["SetEnv"] = f"HOME={small_disk}"
    server.start()
    machine = Machine(tmp_path, server, small_disk)
    machine.write("large", os.urandom(12 * MEGABYTE))
    other = small_disk / "other"

    class FillDisk(RecordedProgress):
        def amount(self, step: str, done: int, total: int | None) -> None:
            if step == "upload" and not other.exists():
                other.write_bytes(bytes(6 * MEGABYTE))

    machine.progress = FillDisk()
    with pytest.raises(RemoteError) as caught:
        machine.send()
    assert caught.value.code == "disk-full"
    other.unlink()
    machine.progress = RecordedProgress()
    done = machine.send()
    assert done.sent_bytes < 6 * MEGABYTE
    assert content_of(Path(done.tree)) == content_of(machine.project)


def test_old_content_is_removed_before_new_content_arrives(tmp_path: Path, server: SshServer, small_disk: Path) -> None:
    server.settings["SetEnv"] = f"HOME={small_disk}"
    server.start()
    machine = Machine(tmp_path, server, small_disk)
    machine.write("large", os.urandom(10 * MEGABYTE))
    machine.send()
    machine.write("large", os.urandom(10 * MEGABYTE))
    done = machine.send()
    assert content_of(Path(done.tree)) == content_of(machine.project)


class UnprivilegedServer(SshServer):
    """An SSH server whose user is not root."""

    USER, NUMBER = "unprivileged", 65531
    MOUNT = 'mount --bind "$0/passwd" /etc/passwd && mount --bind "$0/shadow" /etc/shadow && exec "$@"'

    def __init__(self, folder: Path, home: Path) -> None:
        super().__init__(folder)
        if os.geteuid() != 0:
            missing("a server with its own users needs root")
        etc = folder / "etc"
        etc.mkdir()
        user = f"{self.USER}:x:{self.NUMBER}:65534::{home}:/bin/sh\n"
        (etc / "passwd").write_text(Path("/etc/passwd").read_text() + user)
        (etc / "shadow").write_text(f"root:*:::::::\n{self.USER}:*:19000:0:99999:7:::\n")
        program("unshare", "util-linux")
        # In its own mount namespace, which ends with the process: this machine does not change.
        self.prefix = ["unshare", "--mount", "--propagation", "private", "sh", "-c", self.MOUNT, str(etc)]

    @property
    def target(self) -> Target:
        return replace(super().target, username=self.USER)


@pytest.fixture
def unprivileged() -> Iterator[Machine]:
    """A machine whose user is not root. That user can access its folders."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        home = folder / "home"
        home.mkdir()
        server = UnprivilegedServer(folder / "sshd", home)
        os.chown(home, server.NUMBER, 65534)
        server.start()
        yield Machine(folder, server, home)
        server.stop()


def test_files_of_a_containers_root_are_reported(unprivileged: Machine) -> None:
    unprivileged.write("package/a.py")
    done = unprivileged.send()
    cache = Path(done.tree) / "package" / "__pycache__"
    cache.mkdir()  # as root, like a container
    (cache / "a.pyc").write_text("x")
    with pytest.raises(RemoteError) as caught:
        unprivileged.send()
    assert (caught.value.code, str(caught.value)) == ("foreign-files", done.tree)
    shutil.rmtree(cache)
    assert unprivileged.send().sent_files == 0
    assert content_of(Path(done.tree)) == content_of(unprivileged.project)


def test_read_only_folder_is_updated(unprivileged: Machine) -> None:
    unprivileged.write("sealed/one")
    unprivileged.write("sealed/secret", mode=0o200)
    (unprivileged.project / "sealed").chmod(0o555)
    unprivileged.send()
    unprivileged.write("sealed/two", b"two")
    (unprivileged.project / "sealed/one").unlink()
    done = unprivileged.send()
    assert done.sent_files == 1
    assert content_of(Path(done.tree)) == content_of(unprivileged.project)


class KillAt(RecordedProgress):
    """Kills the process on the target after a number of parts."""

    def __init__(self, lock: Path, part: int) -> None:
        super().__init__()
        self._lock, self._left = lock, part

    def amount(self, step: str, done: int, total: int | None) -> None:
        if step == "upload":
            self._left -= 1
            if not self._left:
                os.kill(int(self._lock.read_text()), signal.SIGKILL)


@variant
def test_upload_resumes_after_the_remote_process_is_killed(machine: Machine) -> None:
    for number in range(100):
        machine.write(f"{number % 3}/{number}", os.urandom(10_000))
    machine.write("large", os.urandom(8 * MEGABYTE))
    machine.write("twin", (machine.project / "large").read_bytes())
    lock = machine.home / ".gpuinfra/projects/key/slot-1/lock"
    whole = sum(each.stat().st_size for each in machine.project.rglob("*") if each.is_file() and each.name != "twin")
    for part in (1, 3, 4, 7, 30, 1, 2, 10):
        machine.progress = KillAt(lock, part)
        with contextlib.suppress(ConnectError):
            machine.send()
    machine.progress = RecordedProgress()
    done = machine.send()
    assert done.sent_bytes < whole
    assert content_of(Path(done.tree)) == content_of(machine.project)
