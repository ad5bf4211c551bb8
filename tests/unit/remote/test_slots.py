"""Who gets which work tree on a target."""

import fcntl
import json
import os
import time
from pathlib import Path

import pytest

from gpuinfra.remote import home, jobs, slots
from gpuinfra.remote.wire import RefusedError


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / ".gpuinfra"


def taken(run: str) -> str:
    """As an upload does it: the run's folder is there when it lets go."""
    slot = slots.take("project", run)
    Path(home.run_folder(run)).mkdir(parents=True, exist_ok=True)
    slot.close()
    return slot.name


def grow_old(root: Path, slot: str, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(root / "projects" / "project" / slot / "holder", (then, then))


def remember(root: Path, run: str, **state: object) -> None:
    (root / "runs" / run).mkdir(parents=True, exist_ok=True)
    (root / "runs" / run / "state.json").write_text(json.dumps(state))


def test_two_runs_get_two_slots_and_each_its_own_again() -> None:
    assert [taken(run) for run in ("a", "b", "a", "b")] == ["slot-1", "slot-2", "slot-1", "slot-2"]


def test_a_run_that_never_began_gives_its_slot_up_after_a_while(root: Path) -> None:
    taken("a")
    grow_old(root, "slot-1", slots.MARK_SECONDS - 60)
    assert taken("b") == "slot-2"
    grow_old(root, "slot-1", slots.MARK_SECONDS + 60)
    assert taken("c") == "slot-3"  # somebody has just said that it is still wanted
    then = time.time() - slots.MARK_SECONDS - 60
    os.utime(root / "runs" / "a", (then, then))
    assert taken("d") == "slot-1"
    assert taken("a") == "slot-4"


def test_a_run_that_ended_gives_its_slot_up_at_once(root: Path) -> None:
    taken("a")
    remember(root, "a", kind="process", started=1, ended=2)
    assert taken("b") == "slot-1"


@pytest.mark.parametrize(("is_over", "expected"), [(False, "slot-2"), (True, "slot-1")])
def test_of_a_run_that_began_its_job_knows(
    root: Path, monkeypatch: pytest.MonkeyPatch, is_over: bool, expected: str
) -> None:
    taken("a")
    remember(root, "a", started=1)
    grow_old(root, "slot-1", slots.MARK_SECONDS * 10)
    asked = []

    def answer(run: str) -> bool:
        asked.append(run)
        return is_over

    monkeypatch.setattr(jobs, "is_over", answer)
    assert taken("b") == expected
    assert asked == ["a"]


def test_a_run_that_was_forgotten_holds_nothing(root: Path) -> None:
    taken("a")
    (root / "runs" / "a").rmdir()
    assert taken("b") == "slot-1"


def test_a_slot_that_somebody_is_busy_with_is_not_free(root: Path) -> None:
    busy = slots.take("project", "a")
    grow_old(root, "slot-1", slots.MARK_SECONDS + 60)
    assert taken("b") == "slot-2"
    busy.close()


def test_a_mark_that_is_no_run_holds_nothing(root: Path) -> None:
    taken("a")
    (root / "projects/project/slot-1/holder").write_text("../../etc")
    (root / "projects/project/slot-other").mkdir()
    assert taken("b") == "slot-1"


@pytest.mark.parametrize("name", ["", "..", "a/b", ".", "nul\0"])
def test_names_lead_nowhere_else(name: str) -> None:
    with pytest.raises(RefusedError):
        slots.take(name, "run")
    with pytest.raises(RefusedError):
        slots.take("project", name)


def test_who_had_it_before_is_known(root: Path) -> None:
    taken("a")
    remember(root, "a", ended=1)
    slot = slots.take("project", "b")
    slot.close()
    assert slot.previous == "a"
    assert slots.holder(slot.folder) == "b"


def test_an_abandoned_run_leaves_its_slot_to_the_next_one(root: Path) -> None:
    taken("a")
    taken("b")
    slot = slots.take("project", "c", abandoned=["b"])
    slot.close()
    assert slot.name == "slot-2"


def fill(root: Path, slot: str, days: float) -> Path:
    """A copy in this slot, unused for so long."""
    tree = root / "projects" / "project" / slot / "tree"
    tree.mkdir()
    (tree / "train.py").write_text("x")
    grow_old(root, slot, days * 24 * 3600)
    return tree


def test_copies_that_no_run_used_for_a_day_are_removed(root: Path) -> None:
    for run in ("old", "new", "waiting", "running", "wrote"):
        taken(run)
    trees = {run: fill(root, f"slot-{number}", 2) for number, run in enumerate(("old", "new", "waiting"), 1)}
    trees |= {run: fill(root, f"slot-{number}", 2) for number, run in enumerate(("running", "wrote"), 4)}
    grow_old(root, "slot-2", 60)
    for run in ("old", "new", "wrote"):
        remember(root, run, kind="process", started=1, ended=2)
    remember(root, "running", kind="container", container="c", docker=["false"], started=1)
    (trees["wrote"] / "outputs").mkdir()
    (trees["wrote"] / "outputs" / "model").write_text("x")
    slots.remove_unused("project")
    # The process that removes the copy holds the slot's lock until it ends.
    with (root / "projects" / "project" / "slot-1" / "lock").open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
    assert [run for run, tree in trees.items() if tree.exists()] == ["new", "waiting", "running", "wrote"]
    # Its slot is used again.
    assert taken("next") == "slot-1"


def test_an_aborted_run_that_was_to_end_its_machine_stays_known(root: Path) -> None:
    taken("a")
    (root / "runs/a/attended.json").write_text('{"afterRun": "deallocate"}')
    jobs.remove("a")
    assert jobs.is_over("a")
    assert (root / "runs/a/attended.json").exists()
    taken("b")
    jobs.remove("b")
    assert not (root / "runs/b").exists()
