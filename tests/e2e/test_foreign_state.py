"""A project of another user: its `.gpuinfra` folder is not read, and links in it are not followed."""

import json
import os
import sqlite3
import subprocess
from pathlib import Path
from shlex import quote

import pytest

from tests.e2e.azure import Azure
from tests.e2e.user import PROGRAM, Run, User

READERS = [
    ("runs",),
    ("logs", "last"),
    ("outputs", "last"),
    ("cancel", "last"),
    ("cost",),
    ("prepare", "-c", "local"),
]


def ship_state(project: Path) -> Path:
    """Add the history of another user to a project."""
    state = project / ".gpuinfra"
    state.mkdir()
    database = sqlite3.connect(state / "store.db")
    database.execute("CREATE TABLE anything (text TEXT)")
    database.commit()
    database.close()
    return state


@pytest.mark.parametrize("words", READERS, ids=" ".join)
def test_state_shipped_with_a_project_is_not_read(run: Run, tmp_path: Path, words: tuple[str, ...]) -> None:
    ship_state(tmp_path)
    done = run(*words, "--json")
    (problem,) = json.loads(done.stdout)["diagnostics"]
    assert (done.returncode, problem["code"]) == (1, "foreign-state")
    assert "GPUINFRA_TRUST_STATE=1" in problem["help"]


@pytest.mark.parametrize("content", ["", "0" * 32, "../../x", "f" * 33])
def test_state_with_an_invented_id_is_not_read(run: Run, tmp_path: Path, content: str) -> None:
    (ship_state(tmp_path) / "id").write_text(content)
    assert json.loads(run("runs", "--json").stdout)["diagnostics"][0]["code"] == "foreign-state"


def test_pipe_in_place_of_the_id_is_not_read(run: Run, tmp_path: Path) -> None:
    os.mkfifo(ship_state(tmp_path) / "id")
    assert json.loads(run("runs", "--json").stdout)["diagnostics"][0]["code"] == "foreign-state"


def test_pipe_in_place_of_a_spec_is_not_read(run: Run, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gpu.yaml")
    (problem,) = json.loads(run("validate", "gpu.yaml", "--json").stdout)["diagnostics"]
    assert problem["code"] == "file-unreadable"


def test_spec_from_the_pipe_of_a_shell_is_read(tmp_path: Path) -> None:
    words = ["bash", "-c", f"{quote(str(PROGRAM))} validate <(cat)"]
    spec = "apiVersion: gpuinfra/v1\nname: a\nregion: eastus\nsize: Standard_NC4as_T4_v3\n"
    done = subprocess.run(words, input=spec, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_state_of_another_user_is_not_read_until_it_is_trusted(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    assert run("submit", "-c", "local", "train.py").returncode == 0
    assert run("runs").returncode == 0
    other = {"HOME": str(tmp_path / "other")}
    assert run("runs", **other).returncode == 1
    assert run("runs", **other, GPUINFRA_TRUST_STATE="1").returncode == 0
    assert run("runs", **other).returncode == 0


def test_own_folder_is_closed_to_other_users(run: Run, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "train.py").write_text("print(1)\n")
    assert run("submit", "-c", "local", "train.py", HOME=str(home)).returncode == 0
    assert (home / ".gpuinfra").stat().st_mode & 0o777 == 0o700


def test_linked_file_that_is_not_a_spec_is_not_shown(run: Run, tmp_path: Path) -> None:
    secret = tmp_path.parent / f"{tmp_path.name}-secret"
    secret.write_text('{"username": "me", "key": "s3cr3t"}\n')
    (tmp_path / "k.yaml").symlink_to(secret)
    for words in (("validate", "k.yaml"), ("plan", "k.yaml")):
        done = run(*words, GPUINFRA_CLOUD="azure")
        assert done.returncode == 2
        assert "link to a file that is not a spec" in done.stderr
        assert "s3cr3t" not in done.stdout + done.stderr


def test_linked_folder_of_targets_is_read_and_never_changed(run: Run, tmp_path: Path) -> None:
    shared = tmp_path.parent / f"{tmp_path.name}-shared"
    shared.mkdir()
    compute = shared / "box.compute"
    compute.write_text("type: remote\naddress: 192.0.2.1\nusername: me\n")
    (tmp_path / "aml_config").symlink_to(shared)
    done = run("detach", "box", "--yes")
    assert done.returncode == 1
    assert "leads out of the project" in done.stderr
    assert compute.exists()


def test_down_works_without_reading_the_state_of_another_user(user: User, azure: Azure) -> None:
    user.up()
    ledger = (user.workspace / ".gpuinfra" / "store.db").read_bytes()
    other = str(user.home.with_name("other"))
    for words in (("status",), ("doctor",), ("lease", "my-dsvm"), ("reap", "--dry-run")):
        done = user(*words, HOME=other)
        assert "ignoring the `.gpuinfra` folder" in done.stderr, words
        assert "foreign-state" not in done.stdout + done.stderr
    assert azure.is_billed()
    done = user("down", "my-dsvm", "--yes", HOME=other)
    assert (done.returncode, azure.is_billed()) == (0, False), done.stderr
    assert (user.workspace / ".gpuinfra" / "store.db").read_bytes() == ledger
    assert not (user.home.with_name("other") / ".gpuinfra" / "workspaces").exists()
