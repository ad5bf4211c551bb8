"""Commands without a spec, in a subfolder and with `--workspace`: which workspace, spec and script they use."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.azure import Azure
from tests.e2e.run_help import project
from tests.e2e.user import Run, User, inherited
from tests.program import run as run_program
from tests.variants import variants

SPEC = "apiVersion: gpuinfra/v1\nname: {}\nregion: eastus\nsize: Standard_NC4as_T4_v3\n"


def below(user: User, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a subfolder of the workspace."""
    folder = user.workspace / "src" / "deep"
    folder.mkdir(parents=True, exist_ok=True)
    variables = {**inherited(), **user.variables, "GPUINFRA_CLOUD": "sandbox"}
    return run_program(*words, cwd=folder, env=variables, timeout=100)


def answer(done: subprocess.CompletedProcess[str], code: int = 0) -> Any:
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_commands_in_a_subfolder_use_the_spec_of_the_workspace(user: User, azure: Azure) -> None:
    project(user)
    (plan,) = answer(below(user, "plan", "--json"))["plans"]
    assert plan["name"] == "my-dsvm"
    (machine,) = answer(below(user, "up", "--json"))["machines"]
    assert machine["name"] == "my-dsvm"
    assert (user.workspace / "aml_config" / "my_dsvm.compute").is_file()

    (user.workspace / "src" / "here.py").write_text("print('from src')")
    done = below(user, "submit", "-c", "my_dsvm", "../here.py")
    assert (done.returncode, done.stdout) == (0, "from src\n"), done.stderr
    assert [run["script"] for run in user.does("runs")["runs"]] == ["src/here.py"]

    done = below(user, "down")
    assert done.returncode == 0, done.stderr
    assert "`down` without a name switches off my-dsvm (../../gpu.yaml)" in done.stderr
    assert not azure.is_billed()
    done = below(user, "run", "../here.py", "--epochs", "2")
    assert (done.returncode, done.stdout) == (0, "from src\n"), done.stderr
    assert not azure.is_billed()
    assert not (user.workspace / "src" / "deep" / ".gpuinfra").exists()


def test_down_without_a_name_asks_before_it_stops_several_machines(user: User, azure: Azure) -> None:
    user.up()
    user.spec(file="other.yaml", name="other")
    (user.workspace / "gpu.yaml").rename(user.workspace / "first.yaml")
    problem = user.fails("down", code="needs-consent", exit_code=2)
    assert "my-dsvm (first.yaml), other (other.yaml)" in problem["note"]
    assert azure.is_billed()
    assert {each["name"] for each in user.does("down", "--yes")["receipts"]} == {"my-dsvm", "other"}
    assert not azure.is_billed()


def test_down_without_a_name_asks_before_it_deletes(user: User, azure: Azure) -> None:
    user.up()
    user.fails("down", "--delete", code="needs-consent", exit_code=2)
    assert azure.is_billed()
    user.does("down", "--delete", "--yes")
    assert azure.everything() == []


@pytest.mark.parametrize("command", variants("up", "plan", "run"))
def test_several_specs_are_not_guessed(run: Run, tmp_path: Path, command: str) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(SPEC.format(name))
    done = run(command, "--json", GPUINFRA_CLOUD="azure")
    (problem,) = answer(done, 2)["diagnostics"]
    assert (problem["summary"], problem["note"]) == ("more than one spec", "`.` has specs of `one`, `two`")


def test_specs_and_scripts_are_resolved_against_the_given_workspace(run: Run, tmp_path: Path) -> None:
    workspace = tmp_path / "project"
    workspace.mkdir()
    (workspace / "gpu.yaml").write_text(SPEC.format("inside").replace("eastus", "nowhere"))
    (tmp_path / "gpu.yaml").write_text(SPEC.format("outside"))
    for words in (("plan", "gpu.yaml"), ("up", "gpu.yaml"), ("down", "gpu.yaml"), ("up",)):
        done = run("--workspace", "project", *words, "--json", GPUINFRA_CLOUD="azure")
        (problem,) = answer(done, 2)["diagnostics"]
        assert problem["file"] == "project/gpu.yaml", words

    for folder, text in ((workspace, "inside"), (tmp_path, "outside")):
        (folder / "train.py").write_text(f"print('{text}')")
    done = run("--workspace", "project", "submit", "-c", "local", "train.py")
    assert (done.returncode, done.stdout) == (0, "inside\n"), done.stderr


def test_init_writes_into_the_current_folder(run: Run, tmp_path: Path) -> None:
    (tmp_path / "gpu.yaml").write_text(SPEC.format("above"))
    folder = tmp_path / "sub"
    folder.mkdir()
    done = run_program("init", cwd=folder, env={**inherited(), "HOME": str(tmp_path / "home")}, timeout=60)
    assert done.returncode == 0, done.stderr
    assert (folder / "gpu.yaml").is_file()


def test_state_of_others_above_the_current_folder_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / ".gpuinfra").mkdir()
    folder = tmp_path / "sub"
    folder.mkdir()
    done = run_program("runs", "--json", cwd=folder, env={**inherited(), "HOME": str(tmp_path / "home")}, timeout=60)
    assert answer(done, 1)["diagnostics"][0]["code"] == "foreign-state"


def test_only_target_and_last_run_are_the_defaults(run: Run, tmp_path: Path) -> None:
    (tmp_path / "aml_config").mkdir()
    (tmp_path / "aml_config" / "local.compute").write_text("type: local\n")
    (tmp_path / "train.py").write_text("open('outputs/a.txt', 'w').write('a'); print('done')")
    # The project may come from others, so its only target is not consent to run its programs here.
    for words in (("submit", "--json", "train.py"), ("prepare", "--json")):
        refused = answer(run(*words), 2)["diagnostics"][0]
        assert (refused["code"], "`local`" in refused["note"]) == ("needs-consent", True)
    assert not list(tmp_path.rglob("a.txt"))
    done = run("--yes", "submit", "train.py")
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert run("logs").stdout == "done\n"
    assert [each["name"] for each in answer(run("outputs", "--json"))["files"]] == ["a.txt"]
    assert answer(run("cancel", "--json"))["run"]["state"] == "completed"
