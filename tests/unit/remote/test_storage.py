"""What can be removed from a machine, and what stays with which reason."""

import fcntl
import io
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuinfra.remote import environments, heartbeat, home, output_folders, slots, storage
from gpuinfra.remote.wire import HEADER, Wire
from tests.unit.remote.test_slots import write_state

DAY = 24 * 3600.0
UNFETCHED = "its outputs were not fetched"


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for _, variable, _, _ in storage.CACHES:
        monkeypatch.delenv(variable, raising=False)
    return tmp_path / ".gpuinfra"


def messages(verb: Callable[[Wire, dict[str, Any]], None], **request: Any) -> Iterator[dict[str, Any]]:
    """Yield what a verb sends."""
    sent = io.BytesIO()
    verb(Wire(io.BytesIO(), sent), {"seconds": DAY, "fetched": [], "unfetched": [], **request})
    sent.seek(0)
    while header := sent.read(HEADER.size):
        yield json.loads(sent.read(HEADER.unpack(header)[1]))


def reasons(**request: Any) -> dict[tuple[str, str], str]:
    """Return why each item stays."""
    *items, _ = messages(storage.list_items, **request)
    return {(each["kind"], each["name"]): each["kept"] for each in items}


def remove(*items: tuple[str, str], **request: Any) -> dict[tuple[str, str], str]:
    *found, _ = messages(storage.remove_items, items=items, **request)
    return {(each["kind"], each["name"]): each["kept"] for each in found}


def make_old(*paths: Path) -> None:
    for path in paths:
        os.utime(path, (0, time.time() - 10 * DAY))


def make_run(root: Path, run: str, **state: Any) -> Path:
    """Create a run that ended long ago."""
    write_state(root, run, **{"kind": "process", "started": 1, "ended": time.time() - 10 * DAY, **state})
    return root / "runs" / run


def make_copy(root: Path, run: str) -> Path:
    """Create a copy of a project with which a run ended long ago."""
    slot = slots.take("project", run)
    Path(slot.tree).mkdir()
    output_folders.give(slot, run, ["outputs"])
    slot.close()
    (Path(slot.tree) / "train.py").write_text("x" * 10_000)
    make_run(root, run)
    make_old(Path(slot.folder) / "holder")
    return Path(slot.tree)


def make_environment(root: Path, digest: str) -> Path:
    """Create an environment that was used long ago."""
    folder = root / "environments" / digest
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/python").write_text("x")
    (folder / environments.MARKER).write_text("")
    (root / "environments" / f"{digest}.lock").write_text("")
    make_old(folder / environments.MARKER)
    return folder


def test_run_stays_until_everything_was_fetched(root: Path) -> None:
    make_run(root, "empty")
    (make_run(root, "printed") / "log").write_text("accuracy 0.9\n")
    for name in ("wrote", "mine", "waits", "kept"):
        outputs = make_run(root, name) / "outputs"
        outputs.mkdir()
        (outputs / "model").write_text("m")
    (root / "runs/kept" / "attended.json").write_text(json.dumps({heartbeat.KEPT: True}))
    reason = {"empty": "", "wrote": UNFETCHED, "mine": "", "waits": UNFETCHED, "kept": ""}
    expected = {("run", name): why for name, why in {**reason, "printed": "its log was not fetched"}.items()}
    known = {"fetched": ["mine"], "unfetched": ["waits"]}
    assert reasons(**known) == expected
    assert remove(*expected, **known) == expected
    assert sorted(each.name for each in (root / "runs").iterdir()) == ["printed", "waits", "wrote"]


@pytest.mark.parametrize("lock", ["log.lock", "outputs-lock"])
def test_record_of_a_workspace_in_the_home_folder_stays(root: Path, lock: str) -> None:
    record = root / "runs/mine"
    (record / "outputs").mkdir(parents=True)
    (record / lock).write_text("")
    make_old(record)
    found = {("run", "mine"): "the workspace in the home folder keeps it"}
    assert reasons(fetched=["mine"]) == found
    assert remove(*found, fetched=["mine"]) == found
    assert (record / "outputs").exists()


def test_container_whose_log_only_the_engine_has_stays_for_its_client(root: Path) -> None:
    make_run(root, "one", kind="container", container="c", exitCode=0)
    assert reasons() == {("run", "one"): "its log was not fetched"}
    assert reasons(fetched=["one"]) == {("run", "one"): ""}


def test_removal_leaves_no_old_process_id_in_a_lock(root: Path) -> None:
    tree = make_copy(root, "one")
    lock = tree.parent / "lock"
    lock.write_text("4242")
    assert remove(("copy", "project/slot-1")) == {("copy", "project/slot-1"): ""}
    assert lock.read_text() == "", "an upload that waits for the lock would end process 4242"


def test_active_run_and_its_copy_stay(root: Path) -> None:
    tree = make_copy(root, "one")
    # The engine does not answer, so it is unknown whether the container has ended.
    write_state(root, "one", kind="container", container="c", docker=["false"], started=1)
    everything = {"seconds": 0.0, "fetched": ["one"]}
    found = reasons(**everything)
    assert found == {("run", "one"): "its job is active", ("copy", "project/slot-1"): "its job is active"}
    assert remove(*found, **everything) == found
    assert tree.exists()


def test_old_copy_goes_and_its_slot_can_be_used_again(root: Path) -> None:
    tree = make_copy(root, "one")
    assert reasons() == {("run", "one"): "", ("copy", "project/slot-1"): ""}
    assert remove(("copy", "project/slot-1")) == {("copy", "project/slot-1"): ""}
    assert not tree.exists()
    assert [each.name for each in tree.parent.iterdir() if each.is_dir()] == []
    slot = slots.take("project", "two")
    slot.close()
    assert slot.tree == str(tree)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({}, "outputs in it were not fetched"),
        ({"fetched": ["one"]}, ""),
        ({"unfetched": ["one"]}, "outputs in it were not fetched"),
    ],
)
def test_copy_with_outputs_stays_until_they_were_fetched(root: Path, known: dict[str, Any], expected: str) -> None:
    tree = make_copy(root, "one")
    (tree / "outputs/model").write_text("m")
    assert reasons(**known)["copy", "project/slot-1"] == expected
    assert remove(("copy", "project/slot-1"), **known) == {("copy", "project/slot-1"): expected}
    assert (tree / "outputs/model").exists() == bool(expected)


def test_copy_stays_if_its_client_lacks_outputs_that_another_one_fetched(root: Path) -> None:
    tree = make_copy(root, "one")
    (tree / "outputs/model").write_text("m")
    (root / "runs/one/attended.json").write_text(json.dumps({heartbeat.KEPT: True}))
    assert reasons()["copy", "project/slot-1"] == ""
    assert reasons(unfetched=["one"])["copy", "project/slot-1"] == "outputs in it were not fetched"


def test_copy_stays_during_an_upload(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = make_copy(root, "one")
    staging = root / "projects/project/staging"
    staging.mkdir()
    (staging / "part").write_text("x")
    make_old(staging / "part", staging)
    names = [("copy", "project/slot-1"), ("copy", "project/staging")]
    locks = [slots.Lock(str(path)) for path in (tree.parent / "lock", staging.with_name("staging.lock"))]
    for lock in locks:
        assert lock.try_now()
    listed, removed = reasons(), remove(*names)
    with monkeypatch.context() as patched:  # the upload began after the look
        patched.setattr(storage, "_look", lambda *_: (0.0, ""))
        late = remove(*names)
    for lock in locks:
        lock.close()
    expected = dict.fromkeys(names, "an upload uses it")
    assert removed == late == expected
    assert listed == {**expected, ("run", "one"): ""}
    assert remove(*names) == dict.fromkeys(names, "")
    assert not staging.exists()


def test_environment_stays_while_it_is_made_or_used_or_may_be(root: Path) -> None:
    folder = make_environment(root, "abc")
    name = ("environment", "abc")
    with folder.with_name("abc.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert remove(name) == {name: "it is being made"}
    used = environments.use(str(folder))
    assert used is not None
    assert remove(name) == {name: "a job uses it"}
    os.close(used)
    (root / "runs/new").mkdir(parents=True)
    assert remove(name) == {name: "a job is being prepared"}
    make_old(root / "runs/new")
    (folder / environments.MARKER).touch()
    assert remove(name, seconds=0.0) == {name: "used recently"}
    make_old(folder / environments.MARKER)
    assert remove(name) == {name: ""}
    assert not folder.exists()
    assert environments.use(str(folder)) is None


def test_job_does_not_get_an_environment_that_is_removed_at_that_moment(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_environment(root, "abc")
    lock = home.try_lock

    def remove_first(file: int, *, shared: bool = False) -> bool:
        if shared:  # the job has opened the marker
            monkeypatch.setattr(home, "try_lock", lock)
            assert remove(("environment", "abc")) == {("environment", "abc"): ""}
        return lock(file, shared=shared)

    monkeypatch.setattr(home, "try_lock", remove_first)
    assert environments.use(str(folder)) is None


def test_nothing_behind_a_link_is_removed(root: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    make_environment(elsewhere, "abc")
    make_run(elsewhere, "one")
    root.mkdir()
    (root / "environments").symlink_to(elsewhere / "environments")
    (root / "runs").mkdir()
    (root / "runs/one").symlink_to(elsewhere / "runs/one")
    (root / "runs/.gone-two").symlink_to(elsewhere)
    found = reasons()
    assert set(found.values()) == {"behind a symbolic link, or of another user"}
    assert len(found) == 3
    assert remove(*found) == found
    assert (elsewhere / "runs/one/state.json").exists()
    assert (elsewhere / "environments/abc/bin/python").exists()


def test_recently_used_items_stay_whatever_the_client_asks() -> None:
    assert storage.reason_to_keep("", storage.RECENT_SECONDS - 60, 0.0, linked=False) == "used recently"
    assert storage.reason_to_keep("", storage.RECENT_SECONDS + 60, 0.0, linked=False) == ""
    assert storage.reason_to_keep("", DAY, 2 * DAY, linked=False) == "used recently"


@pytest.mark.parametrize("ago", [60.0, -60.0])
def test_run_after_which_the_machine_goes_off_stays_until_then(
    root: Path, monkeypatch: pytest.MonkeyPatch, ago: float
) -> None:
    ended = time.time() - 10 * DAY
    folder = make_run(root, "one", ended=ended)
    (folder / "attended.json").write_text('{"afterRun": "deallocate"}')
    monkeypatch.setattr(storage, "_booted", lambda: ended - ago)
    assert reasons() == {("run", "one"): "the machine goes off after it" if ago > 0 else ""}


def test_rest_of_interrupted_work_is_removed(root: Path) -> None:
    make_environment(root, "abc")
    folder = root / "environments"
    (folder / "abc.build").mkdir()
    (folder / "def.build").mkdir()
    (folder / f"abc.{os.getpid()}.tar").write_text("password")
    (folder / "abc.99999999.tar").write_text("password")
    (folder / ".gone-old-1").mkdir()
    with (folder / "abc.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = [name for kind, name in reasons() if kind == "leftover"]
    expected = ["environments/.gone-old-1", "environments/abc.99999999.tar", "environments/def.build"]
    assert found == expected
    assert remove(*(("leftover", name) for name in expected)) == {("leftover", name): "" for name in expected}
    assert {each.name for each in folder.iterdir()} == {"abc", "abc.build", "abc.lock", f"abc.{os.getpid()}.tar"}


def test_size_is_what_a_removal_frees(root: Path, tmp_path: Path) -> None:
    folder = make_environment(root, "abc")
    cache = tmp_path / ".cache/uv"
    cache.mkdir(parents=True)
    (cache / "wheel").write_bytes(bytes(1 << 20))
    before = {each["name"]: each["size"] for each in messages(storage.list_items) if "kind" in each}
    (folder / "linked").hardlink_to(cache / "wheel")
    (folder / "own").write_bytes(bytes(1 << 19))
    (folder / "own-too").hardlink_to(folder / "own")
    found = {each["name"]: each for each in messages(storage.list_items) if "kind" in each}
    assert found["uv"]["size"] == before["uv"] >= 1 << 20
    assert 1 << 19 <= found["abc"]["size"] - before["abc"] < 1 << 20
    assert found["uv"]["kept"] == "not only for jobs; `uv cache clean` empties it"
    assert remove(("cache", "uv")) == {("cache", "uv"): found["uv"]["kept"]}
    assert (cache / "wheel").exists()
