"""What a project's files may not decide: folders of the machine that a job sees, and what the built-in targets are."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.azure import Azure
from tests.e2e.user import Run, User

NOWHERE = {"DOCKER_HOST": "tcp://127.0.0.1:1"}
"""No engine answers there: an error has to come before anything is asked of one."""
HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"


def write_compute(folder: Path, name: str, **values: Any) -> None:
    (folder / "aml_config").mkdir(exist_ok=True)
    text = "".join(f"{key}: {json.dumps(value)}\n" for key, value in values.items())
    (folder / "aml_config" / f"{name}.compute").write_text(text)
    (folder / "train.py").write_text("import os\nprint(os.environ['AZUREML_NATIVE_SHARE_DIRECTORY'])\n")


def problem_of(done: "subprocess.CompletedProcess[str]", code: str) -> dict[str, Any]:
    assert done.returncode == 2, done.stdout + done.stderr
    (problem,) = json.loads(done.stdout)["diagnostics"]
    assert (problem["code"], bool(problem.get("help"))) == (code, True), problem
    return dict(problem)


OUTSIDE = [
    "/",
    "~",
    "~/.azureml",
    "~/.azureml/share/..",
    "~/.azureml/shared",
    "/etc",
    "relative",
    "~/.azureml/share/../..",
]


@pytest.mark.parametrize("path", OUTSIDE)
def test_shared_folder_of_a_file_is_below_the_usual_one(run: Run, tmp_path: Path, path: str) -> None:
    write_compute(tmp_path, "gpu", type="localdocker", baseDockerImage="busybox", nativeSharedDirectory=path)
    problem = problem_of(run("submit", "-c", "gpu", "--json", "train.py", **NOWHERE), "bad-path")
    assert (problem["file"], problem["line"]) == ("aml_config/gpu.compute", 3)
    assert "--shared-directory" in problem["help"]


def test_run_refuses_a_shared_folder_before_anything_is_created(user: User, azure: Azure) -> None:
    login = {"address": "192.0.2.1", "username": "azureuser"}
    write_compute(user.workspace, "my_dsvm", type="remotedocker", **login, nativeSharedDirectory="/")
    before = azure.last_request()
    problem_of(user("run", "--json", "gpu.yaml", "train.py"), "bad-path")
    assert azure.writes(before) == []


@pytest.mark.parametrize("path", ["~/.azureml/share/", "~/.azureml/share/team"])
def test_folder_below_the_usual_one_is_shared(run: Run, tmp_path: Path, path: str) -> None:
    write_compute(tmp_path, "here", type="local", nativeSharedDirectory=path)
    done = run("submit", "-c", "here", "train.py", HOME=str(tmp_path / "home"))
    assert done.stdout.strip().rstrip("/") == path.rstrip("/").replace("~", str(tmp_path / "home")), done.stderr


def test_shared_folder_of_the_command_line_counts(run: Run, tmp_path: Path) -> None:
    write_compute(tmp_path, "here", type="local", nativeSharedDirectory="/")
    words = ("--shared-directory", str(tmp_path / "data"))
    done = run("submit", "-c", "here", *words, "train.py", HOME=str(tmp_path / "home"))
    assert done.stdout.strip().rstrip("/") == str(tmp_path / "data"), done.stderr


def test_link_below_the_shared_folder_does_not_lead_out(run: Run, tmp_path: Path) -> None:
    share = tmp_path / "home/.azureml/share"
    share.mkdir(parents=True)
    (share / "team").symlink_to("/etc")
    write_compute(tmp_path, "here", type="local", nativeSharedDirectory="~/.azureml/share/team")
    done = run("submit", "-c", "here", "train.py", HOME=str(tmp_path / "home"))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "leads out" in done.stderr


@pytest.mark.parametrize("name", ["docker", "local"])
@pytest.mark.parametrize("command", ["submit", "ssh"])
def test_file_does_not_redefine_a_built_in_target(run: Run, tmp_path: Path, name: str, command: str) -> None:
    write_compute(tmp_path, name, type="remotedocker", address="192.0.2.1", username="me", hostKey=HOST_KEY)
    words = {"submit": ("submit", "-c", name, "--json", "train.py"), "ssh": ("ssh", name, "--json")}[command]
    done = run(*words, **NOWHERE)
    assert done.returncode in {1, 2}
    (problem,) = json.loads(done.stdout)["diagnostics"]
    assert problem["code"] == "bad-name", problem


@pytest.mark.parametrize("name", ["docker", "local"])
def test_run_configuration_of_a_built_in_name_does_not_lead_elsewhere(run: Run, tmp_path: Path, name: str) -> None:
    write_compute(tmp_path, "other", type="remotedocker", address="192.0.2.1", username="me", hostKey=HOST_KEY)
    (tmp_path / f"aml_config/{name}.runconfig").write_text("Framework: Python\nTarget: other\n")
    problem = problem_of(run("submit", "-c", name, "--json", "train.py", **NOWHERE), "bad-name")
    assert (problem["file"], problem["line"]) == (f"aml_config/{name}.runconfig", 2)


def test_image_for_gpus_without_a_gpu_is_not_silent(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('hello')\n")
    done = run("submit", "-c", "docker", "train.py", **NOWHERE)
    assert "runs on the CPU" in done.stderr
    assert "--gpus all" in done.stderr
