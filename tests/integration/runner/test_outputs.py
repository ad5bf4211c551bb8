"""Fetch outputs from a real target."""

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
from gpuinfra.runner.fetch import Fetched, fetch
from tests.integration.runner.conftest import SshServer, eventually
from tests.real import missing

OPEN_SECONDS = 20.0
RUN = "run-1"
LONG_AGO = 1_600_000_000_123_456_789


class RecordedProgress:
    """Records the reported progress."""

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
def remote_outputs(home: Path) -> Path:
    """The outputs folder on the target."""
    folder = home / ".gpuinfra" / "runs" / RUN / "outputs"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    return tmp_path / "workspace" / "runs" / RUN / "outputs"


def write(path: Path, content: bytes, mtime: int = LONG_AGO) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, ns=(mtime, mtime))
    return path


def fetch_final(remote: RemoteClient, outputs: Path) -> Fetched:
    return fetch(remote, RUN, outputs, final=True)


def test_outputs_arrive_unchanged(remote: RemoteClient, remote_outputs: Path, outputs: Path) -> None:
    odd = [b"plain", b"\xff\xfe", "naïve 文".encode(), b"a\nb", b"-rf", b" ", b"d/e/f"]
    for name in odd:
        write(remote_outputs / os.fsdecode(name), name * 100)
    write(remote_outputs / "empty-file", b"")
    write(remote_outputs / "setuid", b"s").chmod(0o4750)
    (remote_outputs / "empty" / "folder").mkdir(parents=True)
    (remote_outputs / "closed").mkdir()
    write(remote_outputs / "closed" / "in", b"c")
    (remote_outputs / "closed").chmod(0o500)
    (remote_outputs / "link").symlink_to("d/e/f")
    (remote_outputs / "d" / "up").symlink_to("../plain")
    (remote_outputs / "absolute").symlink_to(remote_outputs / "plain")
    (remote_outputs / "contained").symlink_to("/project/outputs/d/e")
    (remote_outputs / "dangling").symlink_to("nothing")
    progress = RecordedProgress()
    found = fetch(remote, RUN, outputs, final=True, progress=progress)
    (remote_outputs / "closed").chmod(0o700)
    for name in odd:
        assert (outputs / os.fsdecode(name)).read_bytes() == name * 100
    assert (found.files, found.received_files, found.complete, found.unreadable) == (10, 10, True, ())
    assert found.size == found.received_bytes == sum(len(name) * 100 for name in odd) + 2
    assert (outputs / "setuid").stat().st_mode & 0o7777 == 0o750
    assert (outputs / "plain").stat().st_mtime_ns == LONG_AGO
    assert (outputs / "empty" / "folder").is_dir()
    links = {name: str((outputs / name).readlink()) for name in ("link", "d/up", "absolute", "contained", "dangling")}
    assert links == {
        "link": "d/e/f",
        "d/up": "../plain",
        "absolute": "plain",
        "contained": "d/e",
        "dangling": "nothing",
    }
    assert progress.steps == ["begin outputs", "end outputs"]
    assert progress.amounts[-1] == (found.size, found.size)
    assert sorted(each.name for each in outputs.parent.iterdir()) == ["outputs", "outputs-index", "outputs-lock"]


def test_unchanged_files_are_not_fetched_again(remote: RemoteClient, remote_outputs: Path, outputs: Path) -> None:
    write(remote_outputs / "old", b"old")
    write(remote_outputs / "touched", b"same")
    assert fetch(remote, RUN, outputs, final=False).received_files == 2
    assert fetch(remote, RUN, outputs, final=False).received_files == 0
    write(remote_outputs / "new", b"new")
    write(remote_outputs / "old", b"changed", LONG_AGO + 1)
    write(remote_outputs / "touched", b"same", LONG_AGO + 1)
    found = fetch(remote, RUN, outputs, final=False)
    assert (found.files, found.received_files, found.received_bytes) == (3, 2, 10)
    assert (outputs / "old").read_bytes() == b"changed"
    found = fetch_final(remote, outputs)
    assert (found.received_files, found.complete) == (0, True)


def test_final_fetch_compares_content(local: RemoteClient, remote_outputs: Path, outputs: Path) -> None:
    write(remote_outputs / "a", b"one")
    fetch(local, RUN, outputs, final=False)
    write(remote_outputs / "a", b"two")
    assert fetch_final(local, outputs).received_files == 1
    assert (outputs / "a").read_bytes() == b"two"


def test_files_changed_here_are_fetched_again(local: RemoteClient, remote_outputs: Path, outputs: Path) -> None:
    write(remote_outputs / "a", b"a")
    write(remote_outputs / "d" / "b", b"b")
    fetch_final(local, outputs)
    (outputs / "a").write_bytes(b"x")
    shutil.rmtree(outputs / "d")
    found = fetch_final(local, outputs)
    assert (found.received_files, found.complete) == (2, True)
    assert ((outputs / "a").read_bytes(), (outputs / "d" / "b").read_bytes()) == (b"a", b"b")


def test_file_being_written_is_fetched_later(local: RemoteClient, remote_outputs: Path, outputs: Path) -> None:
    write(remote_outputs / "busy", b"b", time.time_ns())
    found = fetch(local, RUN, outputs, final=False)
    assert (found.files, found.changed, found.complete) == (0, 1, False)
    assert not (outputs / "busy").exists()
    found = fetch_final(local, outputs)
    assert (found.files, found.changed, found.complete) == (1, 0, True)
    assert QUIET_SECONDS > 1


def test_file_that_keeps_changing_is_reported(local: RemoteClient, remote_outputs: Path, outputs: Path) -> None:
    file, over = write(remote_outputs / "log", b"x" * 3_000_000), threading.Event()
    write(remote_outputs / "still", b"s")

    def grow() -> None:
        with file.open("ab", buffering=0) as growing:
            while not over.wait(0.001):
                growing.write(b"x")

    thread = threading.Thread(target=grow)
    thread.start()
    try:
        # On a busy machine the writer may not run while the file is read, and then no change is seen.
        for attempt in range(50):
            into = outputs.with_name(f"outputs-{attempt}")
            found = fetch_final(local, into)
            if found.changed:
                break
    finally:
        over.set()
        thread.join()
    assert (found.changed, found.complete, found.files) == (1, False, 1)
    assert not (into / "log").exists()
    assert fetch_final(local, into).complete


def fetch_now(remote: RemoteClient, outputs: Path) -> Fetched:
    return fetch(remote, RUN, outputs, final=False, now=True)


def test_files_that_a_job_writes_are_fetched_on_demand(
    remote: RemoteClient, remote_outputs: Path, outputs: Path
) -> None:
    write(remote_outputs / "closed", b"c" * 3_000_000, time.time_ns())
    over = threading.Event()

    def write_log() -> None:
        with (remote_outputs / "log").open("ab", buffering=0) as log:
            while not over.wait(0.01):
                log.write(b"line\n")

    thread = threading.Thread(target=write_log)
    thread.start()
    try:
        found = fetch_now(remote, outputs)
        assert (found.files, found.changed, found.skipped, found.growing) == (2, 0, (), ("log",))
        first = (outputs / "log").read_bytes()
        assert eventually(lambda: (remote_outputs / "log").stat().st_size > len(first))
        found = fetch_now(remote, outputs)
        assert (found.received_files, found.changed, found.growing) == (1, 0, ()), "a log that is known to grow"
    finally:
        over.set()
        thread.join()
    second = (outputs / "log").read_bytes()
    assert second.startswith(first)
    assert len(second) > len(first)
    assert set(second.splitlines()) == {b"line"}
    assert (outputs / "closed").read_bytes() == b"c" * 3_000_000
    assert sorted(each.name for each in remote_outputs.parent.iterdir()) == ["outputs"], "no copy is left"


def test_half_of_a_new_checkpoint_does_not_replace_the_one_before(
    local: RemoteClient, remote_outputs: Path, outputs: Path
) -> None:
    write(remote_outputs / "model", b"old" * 1000, time.time_ns())
    assert fetch_now(local, outputs).files == 1
    with (remote_outputs / "model").open("wb", buffering=0) as file:
        file.write(b"new" * 500)
        found = fetch_now(local, outputs)
        assert (found.changed, found.skipped) == (1, ("model",))
        assert (outputs / "model").read_bytes() == b"old" * 1000
        file.write(b"new" * 500)
    assert fetch_now(local, outputs).skipped == ()
    assert (outputs / "model").read_bytes() == b"new" * 1000


def test_file_that_is_replaced_all_the_time_is_fetched_whole(
    local: RemoteClient, remote_outputs: Path, outputs: Path
) -> None:
    """As with a checkpoint that a job writes under another name and then renames."""
    over = threading.Event()

    def replace() -> None:
        number = 0
        while not over.wait(0.01):
            number += 1
            new = remote_outputs / "new"
            new.write_bytes(b"%d" % (number % 10) * 300_000)
            new.rename(remote_outputs / "model")

    write(remote_outputs / "model", b"0" * 300_000, time.time_ns())
    thread = threading.Thread(target=replace)
    thread.start()
    try:
        found = fetch_now(local, outputs)
    finally:
        over.set()
        thread.join()
    content = (outputs / "model").read_bytes()
    assert (len(content), len(set(content))) == (300_000, 1), found


def test_fetched_files_are_never_removed(local: RemoteClient, remote_outputs: Path, outputs: Path) -> None:
    write(remote_outputs / "a", b"a")
    write(remote_outputs / "b", b"b")
    fetch_final(local, outputs)
    (remote_outputs / "a").unlink()
    (remote_outputs / "b").unlink()
    (remote_outputs / "b").mkdir()
    write(remote_outputs / "b" / "c", b"c")
    found = fetch_final(local, outputs)
    assert (found.gone, found.complete) == (2, True)
    assert (outputs / "a").read_bytes() == b"a"
    assert (outputs / "b.before-1").read_bytes() == b"b"
    assert (outputs / "b" / "c").read_bytes() == b"c"


def test_unsafe_links_and_special_files_are_reported(remote: RemoteClient, remote_outputs: Path, outputs: Path) -> None:
    (remote_outputs / "shadow").symlink_to("/etc/shadow")
    (remote_outputs / "up").symlink_to("../state.json")
    (remote_outputs / "etc").symlink_to("/etc")
    (remote_outputs / "d").mkdir()
    (remote_outputs / "d" / "a").symlink_to("..")
    (remote_outputs / "sly").symlink_to("d/a/../state.json")
    os.mkfifo(remote_outputs / "fifo")
    found = fetch_final(remote, outputs)
    out = "a symbolic link that leads out of `outputs`"
    assert dict(found.unreadable) == {
        "shadow": out,
        "up": out,
        "etc": out,
        "sly": out,
        "fifo": "neither a file nor a folder",
    }
    assert sorted(each.name for each in outputs.iterdir()) == ["d"]


def test_unreadable_files_are_reported(home: Path, remote_outputs: Path, outputs: Path) -> None:
    """A container's root may leave such files. Here, the code on the target runs as another user."""
    if os.geteuid() != 0:
        missing("a file of another user needs root")
    write(remote_outputs / "mine", b"m")
    write(remote_outputs / "secret", b"s").chmod(0o600)
    write(remote_outputs / "closed" / "in", b"i")
    (remote_outputs / "closed").chmod(0o700)
    for folder in (remote_outputs, *remote_outputs.parents):
        if folder.owner() == "root" and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    with_others = RemoteClient(OtherUser())
    try:
        found = fetch_final(with_others, outputs)
    finally:
        with_others.close()
    assert sorted(found.unreadable) == [("closed/", "permission"), ("secret", "permission")]
    assert (found.files, found.complete) == (1, True)


class OtherUser(LocalConnection):
    """Run commands on this computer as an unprivileged user."""

    def start(self, command, *, timeout, idle=None):  # type: ignore[no-untyped-def]
        return super().start(["setpriv", "--reuid=65534", "--clear-groups", *command], timeout=timeout, idle=idle)


def test_interrupted_fetch_of_a_large_file_resumes(remote_home: SshServer, remote_outputs: Path, outputs: Path) -> None:
    size = 48 << 20
    content = os.urandom(size)
    write(remote_outputs / "a-small-one", b"s")
    write(remote_outputs / "large", content)
    progress = RecordedProgress()
    progress.on_amount = lambda done: remote_home.cut() if done > size // 2 else None
    connection = SshConnection.open(remote_home.target, OPEN_SECONDS)
    with pytest.raises(ConnectError):
        fetch(RemoteClient(connection), RUN, outputs, final=True, progress=progress)
    connection.close()
    assert sorted(each.name for each in outputs.iterdir()) == ["a-small-one"]
    connection = SshConnection.open(remote_home.target, OPEN_SECONDS)
    remote = RemoteClient(connection)
    found = fetch_final(remote, outputs)
    remote.close()
    connection.close()
    assert (found.files, found.received_files, found.complete) == (2, 1, True)
    assert found.received_bytes < size * 0.6
    assert (outputs / "large").read_bytes() == content
    assert not (outputs.parent / "outputs-partial").exists()


@pytest.mark.parametrize("harm", ["damaged", "changed there"])
def test_outdated_partial_file_is_fetched_again(
    local: RemoteClient, remote_outputs: Path, outputs: Path, harm: str
) -> None:
    size = 9 << 20
    write(remote_outputs / "large", b"a" * size)
    progress = RecordedProgress()

    def stop(done: int) -> None:
        if done > size // 2:
            raise ConnectError("cut")

    progress.on_amount = stop
    with pytest.raises(ConnectError):
        fetch(local, RUN, outputs, final=True, progress=progress)
    [part] = (outputs.parent / "outputs-partial").iterdir()
    assert part.stat().st_size > size // 2
    if harm == "damaged":
        with part.open("r+b") as file:
            file.write(b"x")
    else:
        write(remote_outputs / "large", b"b" * size, LONG_AGO + 1)
    found = fetch_final(local, outputs)
    assert found.complete
    assert (outputs / "large").read_bytes() == (remote_outputs / "large").read_bytes()


def test_full_disk_leaves_no_partial_file(local: RemoteClient, remote_outputs: Path, outputs: Path) -> None:
    if os.geteuid() != 0:
        missing("a small disk needs root")
    write(remote_outputs / "a", b"a")
    write(remote_outputs / "b-large", os.urandom(2 << 20))
    outputs.parent.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(outputs.parent)], check=True, timeout=20)
    try:
        with pytest.raises(JobError) as caught:
            fetch_final(local, outputs)
        assert caught.value.code == Code.DISK_FULL
        assert [each.name for each in outputs.iterdir()] == ["a"]
        (remote_outputs / "b-large").unlink()
        assert fetch_final(local, outputs).complete
    finally:
        subprocess.run(["umount", "-l", str(outputs.parent)], check=True, timeout=20)


def test_unknown_run_is_reported(remote: RemoteClient, outputs: Path) -> None:
    with pytest.raises(JobError) as caught:
        fetch_final(remote, outputs)
    assert caught.value.code == Code.NO_SUCH_RUN


def test_many_small_files_are_fetched(remote: RemoteClient, remote_outputs: Path, outputs: Path) -> None:
    for number in range(600):
        write(remote_outputs / str(number % 20) / str(number), b"%d\n" % number * 100)
    found = fetch_final(remote, outputs)
    assert (found.files, found.complete) == (600, True)
    assert all((outputs / str(n % 20) / str(n)).read_bytes() == b"%d\n" % n * 100 for n in range(600))
    assert (fetch_final(remote, outputs).received_files, fetch_final(remote, outputs).complete) == (0, True)
