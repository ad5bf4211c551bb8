"""The history of runs: what is remembered, how it is found again, and what is said where it cannot be."""

import json
import sqlite3
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread

import pytest

from gpuinfra.diagnostics import Code, Problem
from gpuinfra.models.run import JobRef, Outputs, Run, RunState, run_from_json
from gpuinfra.runner.record import new_run_id
from gpuinfra.store import History, run_folder
from tests.runs import CREATED, DETAILS, make_run

NOW = CREATED

FULL = make_run(
    "20261116-121530-3f9c",
    **DETAILS,
    type="remotedocker",
    configuration="my_dsvm-gpu",
    command=("python", "train.py", "--name", "a b", "\udcff"),
    state=RunState.FAILED,
    machine="my-dsvm",
    resource_id="/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/my-dsvm",
    vm_id="6f1c2d9e-0000-4000-8000-000000000001",
    script="train.py",
    started=NOW + timedelta(seconds=20),
    ended=NOW + timedelta(seconds=80),
    gpu={"count": 1, "models": ["Tesla K80"], "driver": "470.1", "memoryMiB": [11439], "simulated": False},
    timings={"upload": 1.5, "image": 3.25, "job": 60.0},
    outputs=Outputs(3, 1 << 40, complete=True),
    simulated=True,
    warnings=("the GPU was never used",),
    ports={"tensorboard": 6006},
    request={"script": "train.py", "gpus": "1"},
    environment_digest="0123abcd",
)


def run(number: int = 0, **changes: object) -> Run:
    made = Run(
        id=f"20261116-1215{number:02}-{number:04x}",
        target="my_dsvm",
        type="remotedocker",
        configuration="my_dsvm",
        command=("python", "train.py"),
        state=RunState.RUNNING,
        created=NOW + timedelta(seconds=number),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path / ".gpuinfra")


def diagnostic_of(problem: pytest.ExceptionInfo[Problem]) -> tuple[Code, str, str]:
    (diagnostic,) = problem.value.diagnostics
    return diagnostic.code, diagnostic.note or "", diagnostic.help or ""


def test_every_field_survives(history: History) -> None:
    unlike = [each.name for each in fields(Run) if getattr(FULL, each.name) == getattr(run(99), each.name)]
    assert unlike == ["target", "type"]  # whatever else a field is by itself, FULL has something else there
    history.save(FULL)
    assert history.find(FULL.id) == FULL
    assert run_from_json(json.loads(json.dumps(FULL.as_json()))) == FULL


def test_what_is_not_known_stays_unknown(history: History) -> None:
    history.save(run())
    assert history.find("last") == run()


def test_keys_of_a_newer_program_are_passed_over() -> None:
    assert run_from_json({**FULL.as_json(), "colour": "blue"}) == FULL


def test_the_last_word_counts(history: History) -> None:
    history.save(run())
    history.save(run(state=RunState.COMPLETED, exit_code=0))
    assert [(each.state, each.exit_code) for each in history.list()] == [(RunState.COMPLETED, 0)]


def test_the_newest_comes_first(history: History) -> None:
    for number in (1, 3, 2):
        history.save(run(number))
    # Within a second the order is still the true one, whatever the random digits say, and later words change nothing.
    second = run(9, created=NOW + timedelta(seconds=3, microseconds=500), id="20261116-121503-0000")
    history.save(second)
    history.update(second.id, state=RunState.COMPLETED)
    assert [each.id for each in history.list()] == [second.id, run(3).id, run(2).id, run(1).id]
    assert history.find("last").id == second.id
    assert [each.id for each in history.list(limit=2)] == [second.id, run(3).id]
    assert history.list(limit=0) == []


def test_lists_of_some(history: History) -> None:
    history.save(run(1, target="other"))
    history.save(run(2, state=RunState.LOST))
    history.save(run(3, machine="My-DSVM", state=RunState.PREPARING))
    assert [each.id for each in history.list(target="my_dsvm")] == [run(3).id, run(2).id]
    assert [each.id for each in history.list(state=RunState.LOST)] == [run(2).id]
    assert history.list(target="my_dsvm", state=RunState.RUNNING) == []
    assert [each.id for each in history.unfinished()] == [run(3).id, run(1).id]
    assert [each.id for each in history.unfinished("my-dsvm")] == [run(3).id]


def test_outputs_that_are_still_there(history: History) -> None:
    history.save(run(1, machine="m", started=NOW))
    history.save(run(2, machine="m", job=JobRef("container", "c"), state=RunState.COMPLETED))
    history.save(run(3, machine="m", started=NOW, outputs=Outputs(1, 1, complete=True)))
    history.save(run(4, machine="m", state=RunState.FAILED))  # it never began
    history.save(run(5, machine="n", started=NOW))
    assert [each.id for each in history.unfetched("M")] == [run(2).id, run(1).id]  # Azure's names have no case


def test_a_run_is_found_by_the_beginning_of_its_id(history: History) -> None:
    history.save(run(1, id="20261116-121530-3f9c"))
    history.save(run(2, id="20261116-121530-3f9c0"))
    history.save(run(3, id="20261117-090000-0001"))
    assert history.find("20261117").id == "20261117-090000-0001"
    assert history.find("20261116-121530-3f9c").id == "20261116-121530-3f9c"
    with pytest.raises(Problem) as problem:
        history.find("2026")
    code, note, help_text = diagnostic_of(problem)
    assert code is Code.NO_SUCH_RUN
    assert "3 runs begin with `2026`" in note
    assert "`20261117-090000-0001`" in note
    assert help_text


@pytest.mark.parametrize("word", ["20261116-121530-3f9d", "", "%", "_0261116", "a\udcff", "'; DROP TABLE runs"])
def test_a_run_that_is_not_there(history: History, word: str) -> None:
    history.save(FULL)
    with pytest.raises(Problem) as problem:
        history.find(word)
    code, note, help_text = diagnostic_of(problem)
    assert code is Code.NO_SUCH_RUN
    assert f"`{word}`" in note
    assert FULL.id in help_text


def test_the_nearest_is_named_first(history: History) -> None:
    for number in range(10):
        history.save(run(number))
    with pytest.raises(Problem) as problem:
        history.find("20261116-121503-0033")
    assert diagnostic_of(problem)[2].startswith(f"did you mean `{run(3).id}`")
    assert diagnostic_of(problem)[2].count("`2026") == 5


def test_before_the_first_run_there_is_nothing_and_nothing_is_made(history: History) -> None:
    assert history.list() == []
    assert history.unfinished() == []
    with pytest.raises(Problem) as problem:
        history.find("last")
    assert diagnostic_of(problem)[0] is Code.NO_SUCH_RUN
    assert not history.path.parent.exists()


def test_an_update_changes_what_it_names_and_nothing_else(history: History) -> None:
    history.save(FULL)
    changed = history.update(FULL.id, state=RunState.COMPLETED, exit_code=0)
    assert changed == replace(FULL, state=RunState.COMPLETED, exit_code=0)
    assert history.find(FULL.id) == changed
    assert history.list(state=RunState.FAILED) == []
    with pytest.raises(Problem) as problem:
        history.update("20261116", exit_code=0)  # the beginning of an id is for people
    assert diagnostic_of(problem)[0] is Code.NO_SUCH_RUN


def test_many_threads_at_once_lose_nothing(history: History) -> None:
    history.save(run())

    def work(field: str, value: object) -> None:
        history.update(run().id, **{field: value})

    changes = {"exit_code": 3, "reason": "so", "git_commit": "ab", "image": "i", "cost_usd": 1.5, "simulated": True}
    threads = [Thread(target=work, args=change) for change in changes.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert history.find("last") == replace(run(), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "content",
    [b"this is no database, though it is longer than a header is" * 100, b"SQLite format 3\0" + b"\xff" * 4096],
)
def test_a_broken_file_is_a_problem_with_its_path_and_a_fix(history: History, content: bytes) -> None:
    history.path.parent.mkdir()
    history.path.write_bytes(content)
    for use in (history.list, lambda: history.save(FULL), lambda: history.find("last")):
        with pytest.raises(Problem) as problem:
            use()
        code, note, help_text = diagnostic_of(problem)
        assert code is Code.FILE_UNREADABLE
        assert str(history.path) in note
        assert "move the file away" in help_text
    assert history.path.read_bytes() == content


def test_a_broken_page_is_no_traceback(history: History) -> None:
    for number in range(12):
        history.save(replace(run(number), warnings=("x" * 2000,)))
    content = bytearray(history.path.read_bytes())
    content[4096:12288] = b"\x5a" * 8192
    history.path.write_bytes(content)
    with pytest.raises(Problem) as problem:
        history.list()
    assert str(history.path) in diagnostic_of(problem)[1]


@pytest.mark.parametrize("text", ["no JSON", "[]", "{}", '{"id": 1}', '{"state": "flying"}'])
def test_a_run_that_cannot_be_read_is_no_traceback(history: History, text: str) -> None:
    history.save(FULL)
    whole = FULL.as_json()
    with sqlite3.connect(history.path) as database:
        broken = json.dumps({**whole, **json.loads(text)}) if "state" in text else text
        database.execute("UPDATE runs SET run = ?", (broken,))
    database.close()
    with pytest.raises(Problem) as problem:
        history.list()
    assert "move the file away" in diagnostic_of(problem)[2]


def test_a_newer_file_is_refused_and_left_alone(history: History) -> None:
    history.save(FULL)
    with sqlite3.connect(history.path) as database:
        database.execute("PRAGMA user_version = 2")
    database.close()
    content = history.path.read_bytes()
    for use in (history.list, lambda: history.save(run()), lambda: history.update(FULL.id, exit_code=0)):
        with pytest.raises(Problem) as problem:
            use()
        assert "version 2" in diagnostic_of(problem)[1]
    assert history.path.read_bytes() == content


def test_the_database_of_another_program_is_left_alone(history: History) -> None:
    history.path.parent.mkdir()
    with sqlite3.connect(history.path) as database:
        database.execute("CREATE TABLE cakes (name TEXT)")
    database.close()
    with pytest.raises(Problem) as problem:
        history.save(FULL)
    assert "another program" in diagnostic_of(problem)[1]


def test_a_folder_in_its_place_and_an_empty_file(history: History, tmp_path: Path) -> None:
    history.path.mkdir(parents=True)
    for use, expected in ((history.list, Code.FILE_UNREADABLE), (lambda: history.save(FULL), Code.FILE_UNWRITABLE)):
        with pytest.raises(Problem) as problem:
            use()
        assert diagnostic_of(problem)[0] is expected
    (tmp_path / "store.db").touch()
    assert History(tmp_path).list() == []
    History(tmp_path).save(FULL)
    assert History(tmp_path).list() == [FULL]


@pytest.mark.parametrize("name", ["a b", "100%41?mode=memory#x", "ü", "a\udcffb"])
def test_any_name_of_a_folder(tmp_path: Path, name: str) -> None:
    History(tmp_path / name).save(FULL)
    assert (tmp_path / name / "store.db").is_file()
    assert History(tmp_path / name).list() == [FULL]


def test_ids_sort_by_time_and_differ() -> None:
    moments = [NOW, NOW + timedelta(seconds=1), NOW + timedelta(days=1), datetime(2027, 1, 1, tzinfo=UTC)]
    ids = [new_run_id(moment) for moment in moments]
    assert ids == sorted(ids)
    assert ids[0].startswith("20261116-121530-")
    assert len(ids[0]) == len("20261116-121530-3f9c")
    assert len({new_run_id(NOW) for _ in range(20)}) > 15


def test_a_runs_folder() -> None:
    assert run_folder(Path(".gpuinfra"), FULL.id) == Path(".gpuinfra/runs") / FULL.id
