"""A project travels to a machine behind a real OpenSSH server."""

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
from gpuinfra.runner.upload import Uploaded, read_tree, upload
from tests.integration.runner.conftest import SshServer, eventually
from tests.real import missing, program
from tests.upload_help import Told

MEGABYTE = 1 << 20


class Machine:
    """A target with a home of its own, and the project on this side."""

    def __init__(self, folder: Path, server: SshServer, home: Path) -> None:
        self.server, self.home = server, home
        self.project, self.state = folder / "project", folder / "state"
        self.project.mkdir()
        self.told = Told()

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
        tree = read_tree(self.project, self.state, self.told)
        return upload(remote, tree, project="key", run=run, progress=self.told, **{"outputs": "link", **options})

    def write(self, path: str, content: bytes = b"x", mode: int = 0o644) -> Path:
        file = self.project / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        file.chmod(mode)
        return file


def content_of(folder: Path) -> dict[str, tuple[str, Any]]:
    """Everything in a tree but its outputs: kind and mode, and what is in it."""
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


def test_a_project_arrives_as_it_is(machine: Machine) -> None:
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
    assert done.outputs == str(machine.home / ".gpuinfra/runs/run-1/outputs")
    assert done.sent_files == 7
    assert done.sent_bytes == 3 * MEGABYTE + 7 + sum(map(len, ("print(1)\n", "dash", "odd", "twice", "x", "bytes")))
    assert machine.told.amounts[-1] == ("upload", done.sent_bytes, done.sent_bytes)
    assert not list((machine.home / ".gpuinfra/projects/key/staging").iterdir())


def test_only_what_changed_is_sent(machine: Machine) -> None:
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


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of everything that is sent from now on."""
    sent: list[int] = []
    write = SshProcess.write

    def counting(self: SshProcess, data: bytes | memoryview) -> None:
        sent.append(len(data))
        write(self, data)

    monkeypatch.setattr(SshProcess, "write", counting)
    return sent


def test_an_unchanged_tree_takes_few_bytes(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(300):
        machine.write(f"{number}", b"%d" % number)
    with machine.remote() as remote:
        machine.send(remote=remote)
        sent = counted(monkeypatch)
        machine.send(remote=remote)
    assert 0 < sum(sent) < 300


def test_what_a_job_did_to_the_tree_is_undone(machine: Machine) -> None:
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
    # All that was the same content: one of the places still had it.
    assert again.sent_files == 0


def test_outputs_as_a_link_and_as_a_place_to_mount(machine: Machine) -> None:
    machine.write("a")
    done = machine.send("one", outputs="link")
    place = Path(done.tree) / "outputs"
    assert place.readlink() == Path(done.outputs)
    (place / "model").write_text("kept")
    machine.send("one", outputs="mount")
    assert place.is_dir()
    assert not place.is_symlink()
    assert not list(place.iterdir())
    assert (machine.home / ".gpuinfra/runs/one/outputs/model").read_text() == "kept"


def test_a_job_that_replaced_the_link_loses_no_output(machine: Machine) -> None:
    machine.write("a")
    done = machine.send("one")
    place = Path(done.tree) / "outputs"
    place.unlink()
    place.mkdir()
    (place / "model").write_text("kept")
    (machine.home / ".gpuinfra/runs/one/state.json").write_text('{"ended": 1}')
    again = machine.send("two")
    assert again.slot == done.slot
    assert (machine.home / ".gpuinfra/runs/one/outputs/model").read_text() == "kept"
    assert place.readlink() == Path(again.outputs)


def test_two_runs_get_two_trees_and_the_second_is_copied_there(machine: Machine) -> None:
    machine.write("large", os.urandom(2 * MEGABYTE))
    machine.write("small")
    first, second = machine.send("one"), machine.send("two")
    assert (first.slot, second.slot) == ("slot-1", "slot-2")
    assert second.sent_files == 0
    assert content_of(Path(second.tree)) == content_of(machine.project)


def test_two_clients_at_once(machine: Machine) -> None:
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


class CutAt(Told):
    """Hangs up when so many bytes are sent."""

    def __init__(self, server: SshServer, at: int) -> None:
        super().__init__()
        self._server, self._at = server, at

    def amount(self, step: str, done: int, total: int | None) -> None:
        if step == "upload" and self._at and done >= self._at:
            self._at = 0
            self._server.cut()


def test_a_large_file_goes_on_where_it_was_cut_off(machine: Machine) -> None:
    size = 64 * MEGABYTE
    machine.write("large", os.urandom(size))
    machine.told = CutAt(machine.server, size // 2)
    with pytest.raises(ConnectError):
        machine.send()
    machine.told = Told()
    done = machine.send()
    assert done.slot == "slot-1"
    # What was on its way when it was cut comes again: no more than buffers and windows hold.
    assert size // 4 < done.sent_bytes < size * 3 // 4
    assert content_of(Path(done.tree)) == content_of(machine.project)


def test_many_files_go_on_where_they_were_cut_off(machine: Machine) -> None:
    count, size = 600, 30_000
    for number in range(count):
        machine.write(f"{number % 10}/{number}", os.urandom(size))
    machine.told = CutAt(machine.server, count * size // 2)
    with pytest.raises(ConnectError):
        machine.send()
    machine.told = Told()
    # Another run, for the user has started anew: what had come serves it as well.
    done = machine.send("run-2")
    assert done.slot == "slot-2"
    assert done.sent_files < count * 5 // 6
    assert content_of(Path(done.tree)) == content_of(machine.project)


def test_a_beginning_that_is_wrong_is_sent_anew(machine: Machine) -> None:
    size = 32 * MEGABYTE
    machine.write("large", os.urandom(size))
    machine.told = CutAt(machine.server, size // 2)
    with pytest.raises(ConnectError):
        machine.send()
    (begun,) = (machine.home / ".gpuinfra/projects/key/staging").iterdir()
    assert eventually(lambda: not machine.server.serving())
    with begun.open("r+b") as file:
        file.write(b"something else")
    machine.told = Told()
    done = machine.send()
    assert done.sent_bytes > size
    assert content_of(Path(done.tree)) == content_of(machine.project)


def test_a_client_that_hangs_makes_way_for_the_same_run(machine: Machine) -> None:
    machine.write("large", os.urandom(4 * MEGABYTE))
    with machine.remote() as hanging:
        tree = read_tree(machine.project, None, Told())
        with (
            contextlib.suppress(ConnectError, RemoteError),
            hanging.call(
                "tree-put", {"project": "key", "run": "run-1", "outputs": "link", "digest": tree.digest}
            ) as call,
        ):
            call.receive_json()
            done = machine.send("run-1")  # while the call is on its way
    assert done.slot == "slot-1"
    assert content_of(Path(done.tree)) == content_of(machine.project)


def test_a_file_that_changes_before_it_is_sent(machine: Machine) -> None:
    machine.write("stays", b"here")
    machine.write("changes", b"1" * MEGABYTE)
    machine.write("shrinks", b"2" * MEGABYTE)
    machine.write("goes", b"3" * MEGABYTE)
    tree = read_tree(machine.project, None, Told())
    machine.write("changes", b"4" * MEGABYTE)
    machine.write("shrinks", b"short")
    (machine.project / "goes").unlink()
    with machine.remote() as remote:
        done = upload(remote, tree, project="key", run="run", outputs="link", progress=Told())
    assert content_of(Path(done.tree)) == content_of(machine.project)


def test_text_is_compressed_on_a_slow_link(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuinfra.runner.upload.send.NEAR_SECONDS", 0.0)  # every machine is far away
    machine.write("text", b"".join(b"%d: a line of text\n" % number for number in range(100_000)))
    machine.write("noise", os.urandom(MEGABYTE))
    sent = counted(monkeypatch)
    done = machine.send()
    assert sum(sent) < done.sent_bytes * 0.6
    assert content_of(Path(done.tree)) == content_of(machine.project)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        missing("a disk of the test's own needs root")
    folder = tmp_path / "small"
    folder.mkdir()
    mount = [program("mount", "mount"), "-t", "tmpfs", "-o", "size=16m", "none", str(folder)]
    if subprocess.run(mount, check=False, timeout=20).returncode:
        missing("no file system can be mounted here")
    yield folder
    subprocess.run([program("umount", "mount"), "-l", str(folder)], check=True, timeout=20)


def test_a_disk_that_is_too_small_is_told_before_anything_is_sent(
    tmp_path: Path, server: SshServer, small_disk: Path
) -> None:
    server.settings["SetEnv"] = f"HOME={small_disk}"
    server.start()
    machine = Machine(tmp_path, server, small_disk)
    machine.write("large", os.urandom(20 * MEGABYTE))
    with pytest.raises(RemoteError, match=r"needs 20971520 more bytes, but only \d+ are free") as caught:
        machine.send()
    assert caught.value.code == "disk-full"
    assert not machine.told.amounts or machine.told.amounts[-1][0] != "upload"


def test_a_disk_that_fills_meanwhile_keeps_what_has_come(tmp_path: Path, server: SshServer, small_disk: Path) -> None:
    server.settings["SetEnv"] = f"HOME={small_disk}"
    server.start()
    machine = Machine(tmp_path, server, small_disk)
    machine.write("large", os.urandom(12 * MEGABYTE))
    other = small_disk / "other"

    class Filling(Told):
        def amount(self, step: str, done: int, total: int | None) -> None:
            if step == "upload" and not other.exists():
                other.write_bytes(bytes(6 * MEGABYTE))

    machine.told = Filling()
    with pytest.raises(RemoteError) as caught:
        machine.send()
    assert caught.value.code == "disk-full"
    other.unlink()
    machine.told = Told()
    done = machine.send()
    assert done.sent_bytes < 6 * MEGABYTE
    assert content_of(Path(done.tree)) == content_of(machine.project)


def test_room_is_made_before_anything_comes(tmp_path: Path, server: SshServer, small_disk: Path) -> None:
    server.settings["SetEnv"] = f"HOME={small_disk}"
    server.start()
    machine = Machine(tmp_path, server, small_disk)
    machine.write("large", os.urandom(10 * MEGABYTE))
    machine.send()
    machine.write("large", os.urandom(10 * MEGABYTE))
    done = machine.send()
    assert content_of(Path(done.tree)) == content_of(machine.project)


class Stranger(SshServer):
    """One that logs a user in who is not root, on a machine where this program is."""

    USER, NUMBER = "stranger", 65531
    MOUNT = 'mount --bind "$0/passwd" /etc/passwd && mount --bind "$0/shadow" /etc/shadow && exec "$@"'

    def __init__(self, folder: Path, home: Path) -> None:
        super().__init__(folder)
        if os.geteuid() != 0:
            missing("a server with users of its own needs root")
        etc = folder / "etc"
        etc.mkdir()
        user = f"{self.USER}:x:{self.NUMBER}:65534::{home}:/bin/sh\n"
        (etc / "passwd").write_text(Path("/etc/passwd").read_text() + user)
        (etc / "shadow").write_text(f"root:*:::::::\n{self.USER}:*:19000:0:99999:7:::\n")
        program("unshare", "util-linux")
        # A mount namespace of its own: nothing of this machine changes, and it ends with the process.
        self.prefix = ["unshare", "--mount", "--propagation", "private", "sh", "-c", self.MOUNT, str(etc)]

    @property
    def target(self) -> Target:
        return replace(super().target, username=self.USER)


@pytest.fixture
def stranger() -> Iterator[Machine]:
    """A machine where the user is not root; its folders have to be open to that user."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        home = folder / "home"
        home.mkdir()
        server = Stranger(folder / "sshd", home)
        os.chown(home, server.NUMBER, 65534)
        server.start()
        yield Machine(folder, server, home)
        server.stop()


def test_what_a_container_left_behind_is_told(stranger: Machine) -> None:
    stranger.write("package/a.py")
    done = stranger.send()
    cache = Path(done.tree) / "package" / "__pycache__"
    cache.mkdir()  # by root, as a container would
    (cache / "a.pyc").write_text("x")
    with pytest.raises(RemoteError) as caught:
        stranger.send()
    assert (caught.value.code, str(caught.value)) == ("foreign-files", done.tree)
    shutil.rmtree(cache)
    assert stranger.send().sent_files == 0
    assert content_of(Path(done.tree)) == content_of(stranger.project)


def test_a_folder_that_nobody_may_write_to_is_updated(stranger: Machine) -> None:
    stranger.write("sealed/one")
    stranger.write("sealed/secret", mode=0o200)
    (stranger.project / "sealed").chmod(0o555)
    stranger.send()
    stranger.write("sealed/two", b"two")
    (stranger.project / "sealed/one").unlink()
    done = stranger.send()
    assert done.sent_files == 1
    assert content_of(Path(done.tree)) == content_of(stranger.project)


class KillAt(Told):
    """Ends the remote side, which has no time to tidy up, when so many parts are sent."""

    def __init__(self, lock: Path, part: int) -> None:
        super().__init__()
        self._lock, self._left = lock, part

    def amount(self, step: str, done: int, total: int | None) -> None:
        if step == "upload":
            self._left -= 1
            if not self._left:
                os.kill(int(self._lock.read_text()), signal.SIGKILL)


def test_a_far_side_that_is_killed_anywhere_goes_on(machine: Machine) -> None:
    for number in range(100):
        machine.write(f"{number % 3}/{number}", os.urandom(10_000))
    machine.write("large", os.urandom(8 * MEGABYTE))
    machine.write("twin", (machine.project / "large").read_bytes())
    lock = machine.home / ".gpuinfra/projects/key/slot-1/lock"
    whole = sum(each.stat().st_size for each in machine.project.rglob("*") if each.is_file() and each.name != "twin")
    for part in (1, 3, 4, 7, 30, 1, 2, 10):
        machine.told = KillAt(lock, part)
        with contextlib.suppress(ConnectError):
            machine.send()
    machine.told = Told()
    done = machine.send()
    assert done.sent_bytes < whole
    assert content_of(Path(done.tree)) == content_of(machine.project)
