"""Which slot on a target a run gets."""

import fcntl
import json
import os
import time
from pathlib import Path

import pytest

from gpuinfra.remote import home, jobs, slots, states
from gpuinfra.remote.wire import RefusedError


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / ".gpuinfra"


def take_slot(run: str) -> str:
    """Take a slot and create the run's folder, as an upload does."""
    slot = slots.take("project", run)
    Path(home.run_folder(run)).mkdir(parents=True, exist_ok=True)
    slot.close()
    return slot.name


def set_age(root: Path, slot: str, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(root / "projects" / "project" / slot / "holder", (then, then))


def write_state(root: Path, run: str, **state: object) -> None:
    (root / "runs" / run).mkdir(parents=True, exist_ok=True)
    (root / "runs" / run / "state.json").write_text(json.dumps(state))


def test_each_run_gets_its_own_slot_again() -> None:
    assert [take_slot(run) for run in ("a", "b", "a", "b")] == ["slot-1", "slot-2", "slot-1", "slot-2"]


def test_run_that_never_started_loses_its_slot_after_a_time(root: Path) -> None:
    take_slot("a")
    set_age(root, "slot-1", slots.HOLD_SECONDS - 60)
    assert take_slot("b") == "slot-2"
    set_age(root, "slot-1", slots.HOLD_SECONDS + 60)
    assert take_slot("c") == "slot-3"  # its client has just renewed the run's folder
    then = time.time() - slots.HOLD_SECONDS - 60
    os.utime(root / "runs" / "a", (then, then))
    assert take_slot("d") == "slot-1"
    assert take_slot("a") == "slot-4"


def test_ended_run_frees_its_slot(root: Path) -> None:
    take_slot("a")
    write_state(root, "a", kind="process", started=1, ended=2)
    assert take_slot("b") == "slot-1"


@pytest.mark.parametrize(("is_over", "expected"), [(False, "slot-2"), (True, "slot-1")])
def test_started_run_frees_its_slot_when_its_job_is_over(
    root: Path, monkeypatch: pytest.MonkeyPatch, is_over: bool, expected: str
) -> None:
    take_slot("a")
    write_state(root, "a", started=1)
    set_age(root, "slot-1", slots.HOLD_SECONDS * 10)
    asked = []

    def answer(run: str) -> bool:
        asked.append(run)
        return is_over

    monkeypatch.setattr(states, "is_over", answer)
    assert take_slot("b") == expected
    assert asked == ["a"]


def test_removed_run_frees_its_slot(root: Path) -> None:
    take_slot("a")
    (root / "runs" / "a").rmdir()
    assert take_slot("b") == "slot-1"


def test_locked_slot_is_not_free(root: Path) -> None:
    busy = slots.take("project", "a")
    set_age(root, "slot-1", slots.HOLD_SECONDS + 60)
    assert take_slot("b") == "slot-2"
    busy.close()


def test_invalid_holder_does_not_hold_a_slot(root: Path) -> None:
    take_slot("a")
    (root / "projects/project/slot-1/holder").write_text("../../etc")
    (root / "projects/project/slot-other").mkdir()
    assert take_slot("b") == "slot-1"


@pytest.mark.parametrize("name", ["", "..", "a/b", ".", "nul\0"])
def test_invalid_names_are_refused(name: str) -> None:
    with pytest.raises(RefusedError):
        slots.take(name, "run")
    with pytest.raises(RefusedError):
        slots.take("project", name)


def test_slot_of_an_abandoned_run_is_reused(root: Path) -> None:
    take_slot("a")
    take_slot("b")
    slot = slots.take("project", "c", abandoned=["b"])
    slot.close()
    assert slot.name == "slot-2"


def fill(root: Path, slot: str, days: float) -> Path:
    """Create a copy in this slot that was last used this many days ago."""
    tree = root / "projects" / "project" / slot / "tree"
    tree.mkdir()
    (tree / "train.py").write_text("x")
    set_age(root, slot, days * 24 * 3600)
    return tree


def test_copies_unused_for_a_day_are_removed(root: Path) -> None:
    for run in ("old", "new", "waiting", "running", "wrote"):
        take_slot(run)
    trees = {run: fill(root, f"slot-{number}", 2) for number, run in enumerate(("old", "new", "waiting"), 1)}
    trees |= {run: fill(root, f"slot-{number}", 2) for number, run in enumerate(("running", "wrote"), 4)}
    set_age(root, "slot-2", 60)
    for run in ("old", "new", "wrote"):
        write_state(root, run, kind="process", started=1, ended=2)
    write_state(root, "running", kind="container", container="c", docker=["false"], started=1)
    (trees["wrote"] / "outputs").mkdir()
    (trees["wrote"] / "outputs" / "model").write_text("x")
    slots.remove_unused("project")
    # The process that removes the copy holds the slot's lock until it ends.
    with (root / "projects" / "project" / "slot-1" / "lock").open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
    assert [run for run, tree in trees.items() if tree.exists()] == ["new", "waiting", "running", "wrote"]
    # The slot can be used again.
    assert take_slot("next") == "slot-1"


def test_aborted_run_stays_known_if_it_turns_the_machine_off(root: Path) -> None:
    take_slot("a")
    (root / "runs/a/attended.json").write_text('{"afterRun": "deallocate"}')
    jobs.remove("a")
    assert states.is_over("a")
    assert (root / "runs/a/attended.json").exists()
    take_slot("b")
    jobs.remove("b")
    assert not (root / "runs/b").exists()
