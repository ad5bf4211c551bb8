"""Outputs brought here from a real target: whole, checked, and nothing that was not the job's own."""

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuinfra.diagnostics import Code
from gpuinfra.remote.outputs import QUIET_SECONDS
from gpuinfra.runner.connection.local import LocalConnection
from gpuinfra.runner.connection.remote_client import RemoteClient
from gpuinfra.runner.connection.ssh import SshConnection
from gpuinfra.runner.errors import ConnectError, JobError
from gpuinfra.runner.outputs.fetch import Fetched, fetch
from tests.integration.runner.conftest import SshServer
from tests.real import missing

OPEN_SECONDS = 20.0
RUN = "run-1"
LONG_AGO = 1_600_000_000_123_456_789


class Recorder:
    """Hears of progress."""

    def __init__(self) -> None:
        self.amounts: list[tuple[int, int | None]] = []
        self.steps: list[str] = []
        self.on_amount: Callable[[int], None] = lambda done: None

    def begin(self, step: str, doing: str) -> None:
        self.steps.append(f"begin {step}")

    def amount(self, step: str, done: int, total: int | None) -> None:
        self.amounts.append((done, total))
        self.on_amount(done)

    def end(self, step: str, outcome: str) -> None:
        self.steps.append(f"end {step}")

    def fail(self, step: str, reason: str) -> None:
        self.steps.append(f"fail {step}")

    def note(self, text: str) -> None:
        self.steps.append(text)


@pytest.fixture
def theirs(home: Path) -> Path:
    """The folder on the target."""
    folder = home / ".gpuinfra" / "runs" / RUN / "outputs"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    return tmp_path / "workspace" / "runs" / RUN / "outputs"


def write(path: Path, content: bytes, mtime: int = LONG_AGO) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, ns=(mtime, mtime))
    return path


def last(remote: RemoteClient, ours: Path) -> Fetched:
    return fetch(remote, RUN, ours, final=True)


def test_all_of_it_comes_as_it_is(remote: RemoteClient, theirs: Path, ours: Path) -> None:
    odd = [b"plain", b"\xff\xfe", "naïve 文".encode(), b"a\nb", b"-rf", b" ", b"d/e/f"]
    for name in odd:
        write(theirs / os.fsdecode(name), name * 100)
    write(theirs / "empty-file", b"")
    write(theirs / "setuid", b"s").chmod(0o4750)
    (theirs / "empty" / "folder").mkdir(parents=True)
    (theirs / "closed").mkdir()
    write(theirs / "closed" / "in", b"c")
    (theirs / "closed").chmod(0o500)
    (theirs / "link").symlink_to("d/e/f")
    (theirs / "d" / "up").symlink_to("../plain")
    (theirs / "absolute").symlink_to(theirs / "plain")
    (theirs / "contained").symlink_to("/project/outputs/d/e")
    (theirs / "dangling").symlink_to("nothing")
    progress = Recorder()
    found = fetch(remote, RUN, ours, final=True, progress=progress)
    (theirs / "closed").chmod(0o700)
    for name in odd:
        assert (ours / os.fsdecode(name)).read_bytes() == name * 100
    assert (found.files, found.received_files, found.complete, found.unreadable) == (10, 10, True, ())
    assert found.size == found.received_bytes == sum(len(name) * 100 for name in odd) + 2
    assert (ours / "setuid").stat().st_mode & 0o7777 == 0o750
    assert (ours / "plain").stat().st_mtime_ns == LONG_AGO
    assert (ours / "empty" / "folder").is_dir()
    links = {name: str((ours / name).readlink()) for name in ("link", "d/up", "absolute", "contained", "dangling")}
    assert links == {
        "link": "d/e/f",
        "d/up": "../plain",
        "absolute": "plain",
        "contained": "d/e",
        "dangling": "nothing",
    }
    assert progress.steps == ["begin outputs", "end outputs"]
    assert progress.amounts[-1] == (found.size, found.size)
    assert sorted(each.name for each in ours.parent.iterdir()) == ["outputs", "outputs-index", "outputs-lock"]


def test_what_is_here_does_not_come_again(remote: RemoteClient, theirs: Path, ours: Path) -> None:
    write(theirs / "old", b"old")
    write(theirs / "touched", b"same")
    assert fetch(remote, RUN, ours, final=False).received_files == 2
    assert fetch(remote, RUN, ours, final=False).received_files == 0
    write(theirs / "new", b"new")
    write(theirs / "old", b"changed", LONG_AGO + 1)
    write(theirs / "touched", b"same", LONG_AGO + 1)
    found = fetch(remote, RUN, ours, final=False)
    assert (found.files, found.received_files, found.received_bytes) == (3, 2, 10)
    assert (ours / "old").read_bytes() == b"changed"
    found = last(remote, ours)
    assert (found.received_files, found.complete) == (0, True)


def test_what_changes_without_its_time_is_found_at_the_end(local: RemoteClient, theirs: Path, ours: Path) -> None:
    write(theirs / "a", b"one")
    fetch(local, RUN, ours, final=False)
    write(theirs / "a", b"two")
    assert last(local, ours).received_files == 1
    assert (ours / "a").read_bytes() == b"two"


def test_what_somebody_changed_or_removed_here_comes_again(local: RemoteClient, theirs: Path, ours: Path) -> None:
    write(theirs / "a", b"a")
    write(theirs / "d" / "b", b"b")
    last(local, ours)
    (ours / "a").write_bytes(b"x")
    shutil.rmtree(ours / "d")
    found = last(local, ours)
    assert (found.received_files, found.complete) == (2, True)
    assert ((ours / "a").read_bytes(), (ours / "d" / "b").read_bytes()) == (b"a", b"b")


def test_what_is_being_written_is_left_for_the_next_time(local: RemoteClient, theirs: Path, ours: Path) -> None:
    write(theirs / "busy", b"b", time.time_ns())
    found = fetch(local, RUN, ours, final=False)
    assert (found.files, found.changed, found.complete) == (0, 1, False)
    assert not (ours / "busy").exists()
    found = last(local, ours)
    assert (found.files, found.changed, found.complete) == (1, 0, True)
    assert QUIET_SECONDS > 1


def test_a_file_that_never_holds_still_is_told(local: RemoteClient, theirs: Path, ours: Path) -> None:
    file, over = write(theirs / "log", b"x" * 3_000_000), threading.Event()
    write(theirs / "still", b"s")

    def grow() -> None:
        with file.open("ab", buffering=0) as growing:
            while not over.wait(0.001):
                growing.write(b"x")

    thread = threading.Thread(target=grow)
    thread.start()
    try:
        # On a busy machine the writer may get no turn while the file is read. Then it was not seen to change.
        for attempt in range(50):
            into = ours.with_name(f"outputs-{attempt}")
            found = last(local, into)
            if found.changed:
                break
    finally:
        over.set()
        thread.join()
    assert (found.changed, found.complete, found.files) == (1, False, 1)
    assert not (into / "log").exists()
    assert last(local, into).complete


def test_nothing_here_is_removed(local: RemoteClient, theirs: Path, ours: Path) -> None:
    write(theirs / "a", b"a")
    write(theirs / "b", b"b")
    last(local, ours)
    (theirs / "a").unlink()
    (theirs / "b").unlink()
    (theirs / "b").mkdir()
    write(theirs / "b" / "c", b"c")
    found = last(local, ours)
    assert (found.gone, found.complete) == (2, True)
    assert (ours / "a").read_bytes() == b"a"
    assert (ours / "b.before-1").read_bytes() == b"b"
    assert (ours / "b" / "c").read_bytes() == b"c"


def test_what_leads_out_or_is_no_file_is_named_and_not_followed(remote: RemoteClient, theirs: Path, ours: Path) -> None:
    (theirs / "shadow").symlink_to("/etc/shadow")
    (theirs / "up").symlink_to("../state.json")
    (theirs / "etc").symlink_to("/etc")
    (theirs / "d").mkdir()
    (theirs / "d" / "a").symlink_to("..")
    (theirs / "sly").symlink_to("d/a/../state.json")
    os.mkfifo(theirs / "fifo")
    found = last(remote, ours)
    out = "a symbolic link that leads out of `outputs`"
    assert dict(found.unreadable) == {
        "shadow": out,
        "up": out,
        "etc": out,
        "sly": out,
        "fifo": "neither a file nor a folder",
    }
    assert sorted(each.name for each in ours.iterdir()) == ["d"]


def test_what_the_user_may_not_read_is_named(home: Path, theirs: Path, ours: Path) -> None:
    """As a container's root leaves it: the remote side runs as somebody else here."""
    if os.geteuid() != 0:
        missing("a file of another user's needs root")
    write(theirs / "mine", b"m")
    write(theirs / "secret", b"s").chmod(0o600)
    write(theirs / "closed" / "in", b"i")
    (theirs / "closed").chmod(0o700)
    for folder in (theirs, *theirs.parents):
        if folder.owner() == "root" and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    with_others = RemoteClient(OtherUser())
    try:
        found = last(with_others, ours)
    finally:
        with_others.close()
    assert sorted(found.unreadable) == [("closed/", "permission"), ("secret", "permission")]
    assert (found.files, found.complete) == (1, True)


class OtherUser(LocalConnection):
    """This computer, as a user who may do nothing."""

    def start(self, command, *, timeout, idle=None):  # type: ignore[no-untyped-def]
        return super().start(["setpriv", "--reuid=65534", "--clear-groups", *command], timeout=timeout, idle=idle)


def test_a_large_file_goes_on_where_the_connection_was_lost(remote_home: SshServer, theirs: Path, ours: Path) -> None:
    size = 48 << 20
    content = os.urandom(size)
    write(theirs / "a-small-one", b"s")
    write(theirs / "large", content)
    progress = Recorder()
    progress.on_amount = lambda done: remote_home.cut() if done > size // 2 else None
    connection = SshConnection.open(remote_home.target, OPEN_SECONDS)
    with pytest.raises(ConnectError):
        fetch(RemoteClient(connection), RUN, ours, final=True, progress=progress)
    connection.close()
    assert sorted(each.name for each in ours.iterdir()) == ["a-small-one"]
    connection = SshConnection.open(remote_home.target, OPEN_SECONDS)
    remote = RemoteClient(connection)
    found = last(remote, ours)
    remote.close()
    connection.close()
    assert (found.files, found.received_files, found.complete) == (2, 1, True)
    assert found.received_bytes < size * 0.6
    assert (ours / "large").read_bytes() == content
    assert not (ours.parent / "outputs-partial").exists()


@pytest.mark.parametrize("harm", ["damaged", "changed there"])
def test_a_part_that_does_not_fit_any_more_does_no_harm(
    local: RemoteClient, theirs: Path, ours: Path, harm: str
) -> None:
    size = 9 << 20
    write(theirs / "large", b"a" * size)
    progress = Recorder()

    def stop(done: int) -> None:
        if done > size // 2:
            raise ConnectError("cut")

    progress.on_amount = stop
    with pytest.raises(ConnectError):
        fetch(local, RUN, ours, final=True, progress=progress)
    [part] = (ours.parent / "outputs-partial").iterdir()
    assert part.stat().st_size > size // 2
    if harm == "damaged":
        with part.open("r+b") as file:
            file.write(b"x")
    else:
        write(theirs / "large", b"b" * size, LONG_AGO + 1)
    found = last(local, ours)
    assert found.complete
    assert (ours / "large").read_bytes() == (theirs / "large").read_bytes()


def test_a_full_disk_here_is_told_and_leaves_nothing_half(local: RemoteClient, theirs: Path, ours: Path) -> None:
    if os.geteuid() != 0:
        missing("a small disk needs root")
    write(theirs / "a", b"a")
    write(theirs / "b-large", os.urandom(2 << 20))
    ours.parent.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(ours.parent)], check=True, timeout=20)
    try:
        with pytest.raises(JobError) as caught:
            last(local, ours)
        assert caught.value.code == Code.DISK_FULL
        assert [each.name for each in ours.iterdir()] == ["a"]
        (theirs / "b-large").unlink()
        assert last(local, ours).complete
    finally:
        subprocess.run(["umount", "-l", str(ours.parent)], check=True, timeout=20)


def test_a_run_that_is_not_there_is_told(remote: RemoteClient, ours: Path) -> None:
    with pytest.raises(JobError) as caught:
        last(remote, ours)
    assert caught.value.code == Code.NO_SUCH_RUN


def test_many_small_files_come_in_one_stream(remote: RemoteClient, theirs: Path, ours: Path) -> None:
    for number in range(600):
        write(theirs / str(number % 20) / str(number), b"%d\n" % number * 100)
    found = last(remote, ours)
    assert (found.files, found.complete) == (600, True)
    assert all((ours / str(n % 20) / str(n)).read_bytes() == b"%d\n" % n * 100 for n in range(600))
    assert (last(remote, ours).received_files, last(remote, ours).complete) == (0, True)
