"""Shell completion of machines, targets and runs by the installed program."""

import os
from pathlib import Path

import pytest

from tests.e2e.user import Run

SPEC = "apiVersion: gpuinfra/v1\nname: my-dsvm  # a comment\nregion: eastus\nsize: Standard_NC4as_T4_v3\n"


def complete(run: Run, words: str) -> list[str]:
    done = run(_GPUINFRA_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(words.count(" ")))
    assert done.stderr == ""
    return sorted(done.stdout.split())


def test_machines_targets_and_runs_are_completed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "gpu.yaml").write_text(SPEC)
    (tmp_path / "team").mkdir()
    (tmp_path / "team" / "more.yaml").write_text(SPEC.replace("my-dsvm", "my-other"))
    (tmp_path / "other.yml").write_text("name: other\n")
    (tmp_path / "aml_config").mkdir()
    for name in ("lab.compute", "deep.runconfig"):
        (tmp_path / "aml_config" / name).write_text("type: remote\n")
    (tmp_path / "train.py").write_text("print(1)")
    assert run("submit", "-c", "local", "train.py").returncode == 0
    (made,) = (tmp_path / ".gpuinfra" / "runs").iterdir()

    assert complete(run, "gpuinfra ssh ") == ["gpu.yaml", "lab", "my-dsvm", "my-other", "other.yml"]
    assert complete(run, "gpuinfra down my") == ["my-dsvm", "my-other"]
    assert complete(run, "gpuinfra submit -c ") == ["deep", "docker", "lab", "local"]
    assert complete(run, "gpuinfra logs ") == [made.name, "last"]
    assert complete(run, "gpuinfra run --again 2") == [made.name]
    (tmp_path / "elsewhere").mkdir()
    assert complete(run, "gpuinfra --workspace elsewhere submit -c ") == ["docker", "local"]


@pytest.mark.parametrize("words", ["gpuinfra logs ", "gpuinfra ssh ", "gpuinfra --workspace absent logs "])
def test_completion_of_a_broken_or_foreign_workspace_is_quiet(run: Run, tmp_path: Path, words: str) -> None:
    (tmp_path / ".gpuinfra").mkdir()
    (tmp_path / ".gpuinfra" / "store.db").write_bytes(b"no database")
    os.mkfifo(tmp_path / "pipe.yaml")
    assert complete(run, words) in ([], ["last"], ["pipe.yaml"])


def test_names_of_a_foreign_project_are_no_commands(run: Run, tmp_path: Path) -> None:
    # typer puts words and descriptions into text that zsh evaluates, and does not escape a backslash.
    evil = "a\\$(touch pwned)"
    (tmp_path / "aml_config").mkdir()
    for name in (evil, "$(touch pwned)", "-e", "lab"):
        (tmp_path / "aml_config" / f"{name}.compute").write_text("type: remote\n")
    (tmp_path / f"{evil}.yaml").write_text("name: evil\n")
    assert run("submit", "-c", "local", "--", "sh", "-c", f": '{evil}'").returncode == 0
    for words, expected in (("ssh", "lab"), ("logs", "touch pwned"), ("submit -c", "lab")):
        done = run(_GPUINFRA_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS=f"gpuinfra {words} ")
        assert expected in done.stdout
        assert not {"\\", "$", "`"} & set(done.stdout), done.stdout
    assert complete(run, "gpuinfra ssh ") == ["lab"]
