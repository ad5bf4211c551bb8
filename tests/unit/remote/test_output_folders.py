"""Where the outputs of a run are, before and after another run gets its copy of the project."""

import os
from pathlib import Path

import pytest

from gpuinfra.remote import jobs, output_folders, slots
from gpuinfra.remote.output_folders import located
from tests.unit.remote.test_slots import write_state

NAMES = ("outputs", "saved")


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / ".gpuinfra"


def begin(run: str, names: tuple[str, ...] = NAMES) -> Path:
    """Give a run a copy of the project, and return its folder."""
    slot = slots.take("project", run)
    Path(slot.tree).mkdir(exist_ok=True)
    output_folders.give(slot, run, names)
    slot.close()
    return Path(slot.tree)


def end(root: Path, run: str) -> None:
    write_state(root, run, kind="process", started=1, ended=2)


def files(run: str) -> dict[str, str]:
    """Return the outputs of a run, by their path among them."""
    with located(run) as folders:
        return {
            (Path(place) / file.relative_to(path)).as_posix(): file.read_text()
            for place, _, path in folders
            if not Path(path).is_symlink()
            for file in Path(path).rglob("*")
            if file.is_file()
        }


def test_outputs_stay_in_the_project_until_another_run_gets_it(root: Path) -> None:
    tree = begin("one")
    (tree / "outputs/model").write_text("1")
    (tree / "saved/step").write_text("2")
    expected = {"model": "1", "saved/step": "2"}
    assert files("one") == expected
    end(root, "one")
    assert begin("two") == tree
    assert files("one") == expected
    assert (root / "runs/one/outputs/saved/step").read_text() == "2"
    assert files("two") == {}
    assert not list((tree / "outputs").iterdir())


def test_file_of_the_same_name_in_two_folders_is_kept_twice(root: Path) -> None:
    tree = begin("one")
    (tree / "outputs/saved").mkdir()
    (tree / "outputs/saved/step").write_text("a")
    (tree / "saved/step").write_text("b")
    expected = {"saved/step": "a", "saved-2/step": "b"}
    assert files("one") == expected
    end(root, "one")
    begin("two")
    assert files("one") == expected


def test_folder_that_is_no_longer_declared_is_moved_too(root: Path) -> None:
    tree = begin("one")
    (tree / "saved/step").write_text("2")
    end(root, "one")
    begin("two", ("outputs",))
    assert files("one") == {"saved/step": "2"}
    assert not (tree / "saved").exists()


def test_folder_that_was_not_declared_before_is_empty(root: Path) -> None:
    tree = begin("one", ("outputs",))
    (tree / "saved").mkdir()
    (tree / "saved/old").write_text("x")
    os.mkfifo(tree / "later")
    end(root, "one")
    begin("two", (*NAMES, "later"))
    assert not list((tree / "later").iterdir())
    assert files("one") == files("two") == {}


@pytest.mark.parametrize("change", ["removed", "link", "file", "closed"])
def test_outputs_that_a_job_replaced_belong_to_its_run(root: Path, change: str) -> None:
    (root / "secret").parent.mkdir(parents=True)
    (root / "secret").write_text("s")
    place = begin("one") / "outputs"
    place.rmdir()
    match change:
        case "link":
            place.symlink_to(root)
        case "file":
            place.write_text("f")
        case "closed":
            place.mkdir()
            (place / "model").write_text("m")
            place.chmod(0o000)
    end(root, "one")
    assert output_folders.has_outputs("one") == (change != "removed")
    begin("two")
    assert output_folders.has_outputs("one") == (change != "removed")
    if change == "closed":
        (root / "runs/one/outputs").chmod(0o700)
    assert files("one") == {"file": {"outputs": "f"}, "closed": {"model": "m"}}.get(change, {})
    assert place.is_dir()
    assert not place.is_symlink()
    assert (root / "secret").read_text() == "s"


@pytest.mark.parametrize("leads", ["results", "outputs"])
def test_links_in_place_of_folders_stay_with_their_run(root: Path, leads: str) -> None:
    tree = begin("one")
    for name, target in {"outputs": leads, "saved": "/mnt/saved"}.items():
        (tree / name).rmdir()
        (tree / name).symlink_to(target)
    end(root, "one")
    assert output_folders.has_outputs("one")
    begin("two")
    with located("one") as folders:
        links = {place: Path(path).readlink() for place, _, path in folders if Path(path).is_symlink()}
    assert links == {"": tree / leads, "saved": Path("/mnt/saved")}


@pytest.mark.parametrize("change", ["file", "loop"])
def test_other_folders_are_found_if_a_job_replaced_outputs(change: str) -> None:
    tree = begin("one")
    (tree / "outputs").rmdir()
    if change == "file":
        (tree / "outputs").write_text("f")
    else:
        (tree / "outputs").symlink_to("outputs")
    (tree / "saved/step").write_text("2")
    with located("one") as folders:
        assert ("saved", "saved", str(tree / "saved")) in folders


def test_upload_that_died_before_it_moved_outputs_keeps_their_run(root: Path) -> None:
    tree = begin("one")
    (tree / "outputs/model").write_text("1")
    end(root, "one")
    slots.take("project", "died").close()  # it holds the slot, and has not moved the outputs
    assert files("one") == {"model": "1"}
    slots.take("project", "died").close()
    begin("died")
    assert files("one") == {"model": "1"}
    assert files("died") == {}


def test_outputs_are_found_and_removed_with_their_run(root: Path) -> None:
    tree = begin("one")
    (tree / "saved/step").write_text("2")
    assert output_folders.has_outputs("one")
    end(root, "one")
    assert output_folders.release("one") is None
    jobs.remove("one")
    assert not (root / "runs/one").exists()
    assert not (tree / "saved").exists()
    assert not output_folders.has_outputs("one")
    assert output_folders.release("one") is None


def test_empty_folders_are_not_outputs() -> None:
    tree = begin("one")
    (tree / "outputs/empty").mkdir()
    assert not output_folders.has_outputs("one")


def test_slot_that_a_run_names_must_be_in_the_projects_folder(root: Path) -> None:
    (root / "runs/one/outputs").mkdir(parents=True)
    (root / "runs/one/slot").write_text("../..")
    with located("one") as folders:
        assert folders == [("", "outputs", str(root / "runs/one/outputs"))]
