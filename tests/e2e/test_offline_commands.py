"""Commands that need only this computer: their output and the files that they leave."""

import json
from pathlib import Path

import pytest

from gpuinfra.sandbox import running
from tests.e2e.user import Run, User

SPEC = "apiVersion: gpuinfra/v1\nname: my-dsvm\nregion: southcentralus\nsize: Standard_NC4as_T4_v3\n"


# A rejected file is not reported as valid


@pytest.mark.parametrize(
    "text",
    [
        SPEC + "power: no\n",
        SPEC + "name: my-dsvm\n",
        SPEC + "---\n" + SPEC.replace("my-dsvm", "other").replace("southcentralus", "nowhere"),
        SPEC + "---\n" + SPEC,
    ],
    ids=["ambiguous value", "duplicate key", "bad second document", "one name twice"],
)
def test_validate_does_not_report_a_rejected_file_as_valid(run: Run, tmp_path: Path, text: str) -> None:
    (tmp_path / "gpu.yaml").write_text(text)
    (tmp_path / "good.yaml").write_text(SPEC.replace("my-dsvm", "good"))
    done = run("validate", "gpu.yaml", "good.yaml")
    assert done.returncode == 2
    assert done.stdout == "valid  good  good.yaml:2\n"


# Options of a script belong to the script


@pytest.mark.parametrize(
    "words",
    [
        ("submit", "-c", "nosuch", "train.py", "--json"),
        ("run", "nosuch.yaml", "train.py", "--epochs", "3", "--json"),
        ("submit", "-c", "nosuch", "--", "train.py", "--json"),
        ("submit", "--nosuch-option", "train.py", "--json"),
    ],
)
def test_json_option_of_the_script_does_not_change_errors(run: Run, tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "train.py").write_text("")
    done = run(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")


@pytest.mark.parametrize(
    "words",
    [
        ("submit", "--json", "-c", "nosuch", "train.py"),
        ("submit", "-c", "nosuch", "--json", "train.py", "--lr", "1"),
        ("--workspace", ".", "--json", "submit", "-c", "nosuch", "train.py"),
        ("run", "--json", "nosuch.yaml", "train.py"),
        ("submit", "--nosuch-option", "--json"),
        ("validate", "nosuch.yaml", "--json"),
        ("runs", "show", "nosuch", "--json"),
        ("nosuch", "--json"),
    ],
)
def test_json_option_of_gpuinfra_makes_errors_json(run: Run, tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "train.py").write_text("")
    done = run(*words)
    assert done.returncode in {1, 2}
    assert json.loads(done.stdout)["diagnostics"]


# No leftovers


@pytest.mark.parametrize(
    "words",
    [
        ("logs", "last"),
        ("outputs", "last"),
        ("cancel", "last"),
        ("submit", "-c", "nosuch", "train.py"),
        ("prepare", "nosuch"),
        ("run", "gpu.yaml", "nosuch.py"),
        ("down", "gpu.yaml"),
        ("up", "gpu.yaml"),
    ],
    ids=lambda words: words[0],
)
def test_failing_command_leaves_no_folder_behind(user: User, words: tuple[str, ...]) -> None:
    folder = user.workspace / "src"
    folder.mkdir()
    (folder / "train.py").write_text("")
    user.azure.fault("AuthorizationFailed", count=0)
    done = user("--workspace", str(folder), *words)
    assert done.returncode != 0, done.stdout
    assert [path.name for path in folder.iterdir()] == ["train.py"]


# Commands that need no cloud do not start the sandbox


@pytest.mark.parametrize("words", [("init",), ("schema",), ("validate", "good.yaml")], ids=lambda words: words[0])
def test_command_without_a_cloud_does_not_start_the_sandbox(run: Run, tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "good.yaml").write_text(SPEC)
    home = tmp_path / "home"
    done = run("--sandbox", *words, GPUINFRA_SANDBOX_HOME=str(home))
    try:
        assert done.returncode == 0, done.stderr
        assert "sandbox" not in done.stderr
        assert not home.exists()
    finally:
        running.stop(home)
