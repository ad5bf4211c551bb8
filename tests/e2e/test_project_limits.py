"""What project files may not decide: shared folders of the machine, and the meaning of built-in targets."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuinfra.app.job_request import check_job_destination
from gpuinfra.diagnostics import Problem
from gpuinfra.runner.job_spec import GpuNeed, JobSpec
from gpuinfra.workbench.targets import find_target
from tests.e2e.azure import Azure
from tests.e2e.user import Run, User

NOWHERE = {"DOCKER_HOST": "tcp://127.0.0.1:1"}
"""No engine answers there: the error must come before any request to it."""
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
def test_shared_folder_outside_the_default_one_is_refused(run: Run, tmp_path: Path, path: str) -> None:
    write_compute(tmp_path, "gpu", type="localdocker", baseDockerImage="busybox", nativeSharedDirectory=path)
    problem = problem_of(run("submit", "-c", "gpu", "--json", "train.py", **NOWHERE), "bad-path")
    assert (problem["file"], problem["line"]) == ("aml_config/gpu.compute", 3)
    assert "--shared-directory" in problem["help"]


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("address", "-oProxyCommand=touch owned", "bad-address"),
        ("address", "gpu.lab:99999", "bad-address"),
        ("username", "me\nHost *", "bad-username"),
        ("privateKeyFile", "/home/me/\u001b[2Jkey", "bad-path"),
    ],
)
def test_jobs_do_not_go_to_a_target_with_an_invalid_value(
    run: Run, tmp_path: Path, key: str, value: str, code: str
) -> None:
    login = {"address": "192.0.2.1", "username": "azureuser", "hostKey": HOST_KEY}
    write_compute(tmp_path, "gpu", type="remote", **{**login, key: value})
    done = run("submit", "-c", "gpu", "--json", "train.py", **NOWHERE)
    assert [each["code"] for each in json.loads(done.stdout)["diagnostics"]] == [code], done.stdout + done.stderr
    assert done.returncode == 2


def test_run_refuses_a_shared_folder_before_anything_is_created(user: User, azure: Azure) -> None:
    login = {"address": "192.0.2.1", "username": "azureuser"}
    write_compute(user.workspace, "my_dsvm", type="remotedocker", **login, nativeSharedDirectory="/")
    before = azure.last_request()
    problem_of(user("run", "--json", "gpu.yaml", "train.py"), "bad-path")
    assert azure.writes(before) == []


@pytest.mark.parametrize("path", ["~/.azureml/share/", "~/.azureml/share/team"])
def test_folder_below_the_default_one_can_be_shared(run: Run, tmp_path: Path, path: str) -> None:
    write_compute(tmp_path, "here", type="local", nativeSharedDirectory=path)
    done = run("submit", "--yes", "-c", "here", "train.py", HOME=str(tmp_path / "home"))
    assert done.stdout.strip().rstrip("/") == path.rstrip("/").replace("~", str(tmp_path / "home")), done.stderr


def test_shared_directory_option_overrides_the_file(run: Run, tmp_path: Path) -> None:
    write_compute(tmp_path, "here", type="local", nativeSharedDirectory="/")
    words = ("--shared-directory", str(tmp_path / "data"))
    done = run("submit", "--yes", "-c", "here", *words, "train.py", HOME=str(tmp_path / "home"))
    assert done.stdout.strip().rstrip("/") == str(tmp_path / "data"), done.stderr


def test_link_below_the_shared_folder_does_not_lead_out(run: Run, tmp_path: Path) -> None:
    share = tmp_path / "home/.azureml/share"
    share.mkdir(parents=True)
    (share / "team").symlink_to("/etc")
    write_compute(tmp_path, "here", type="local", nativeSharedDirectory="~/.azureml/share/team")
    done = run("submit", "--yes", "-c", "here", "train.py", HOME=str(tmp_path / "home"))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "shared folder outside of the default one" in done.stderr


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


def test_gpu_image_without_a_gpu_is_reported(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('hello')\n")
    done = run("submit", "-c", "docker", "train.py", **NOWHERE)
    assert "runs on the CPU" in done.stderr
    assert "--gpus all" in done.stderr


EVIL: dict[str, tuple[dict[str, dict[str, Any]], str, str]] = {
    "type": ({"gpu_box.compute": {"type": "local", "pythonLocation": "./evil.sh"}}, "gpu_box.compute", "-c local"),
    "container": ({"gpu_box.compute": {"type": "localdocker", "address": "192.0.2.1"}}, "gpu_box.compute", "-c docker"),
    "built-in": ({"gpu_box.runconfig": {"Target": "local", "Framework": "Python"}}, "gpu_box.runconfig", "-c local"),
    "other-target": (
        {
            "gpu_box.runconfig": {"Target": "vm2", "Framework": "Python"},
            "vm2.compute": {"type": "local", "pythonLocation": "./evil.sh"},
        },
        "vm2.compute",
        "-c local",
    ),
}


def write_evil(folder: Path, files: dict[str, dict[str, Any]]) -> None:
    (folder / "aml_config").mkdir()
    for name, content in files.items():
        (folder / "aml_config" / name).write_text(json.dumps(content))
    (folder / "evil.sh").write_text("#!/bin/sh\ntouch ran\n")
    (folder / "evil.sh").chmod(0o755)
    (folder / "train.py").write_text("import os\nopen(os.environ['RAN'], 'w').close()\n")


@pytest.mark.parametrize("command", [("submit", "train.py"), ("prepare",)], ids=["submit", "prepare"])
@pytest.mark.parametrize(("files", "file", "instead"), EVIL.values(), ids=EVIL)
def test_job_runs_on_this_computer_only_if_the_user_says_so(
    run: Run, tmp_path: Path, command: tuple[str, ...], files: dict[str, dict[str, Any]], file: str, instead: str
) -> None:
    write_evil(tmp_path, files)
    words = (command[0], "--json", "-c", "gpu_box", *command[1:])
    problem = problem_of(run(*words, RAN=str(tmp_path / "ran"), **NOWHERE), "needs-consent")
    assert problem["summary"] == "this job would run on this computer"
    assert f"`aml_config/{file}`" in problem["note"]
    assert instead in problem["help"]
    assert "--yes" in problem["help"]
    assert not list(tmp_path.rglob("ran"))


@pytest.mark.parametrize("name", ["MY_DSVM", "my.dsvm", "my-dsvm"])
def test_other_spelling_of_a_machine_does_not_lead_elsewhere(run: Run, tmp_path: Path, name: str) -> None:
    write_compute(tmp_path, "other", type="remote", address="127.0.0.1:9", username="me", hostKey=HOST_KEY)
    (tmp_path / f"aml_config/{name}.runconfig").write_text("Framework: Python\nTarget: other\n")
    (tmp_path / "gpu.yaml").write_text("apiVersion: gpuinfra/v1\nname: my-dsvm\nregion: eastus\ngpu: T4\n")
    problem = problem_of(run("submit", "-c", name, "--json", "train.py"), "other-target")
    assert problem["line"] == 2


def test_run_configuration_may_name_the_target_in_another_spelling(tmp_path: Path) -> None:
    write_compute(tmp_path, "my_dsvm", type="remote", address="127.0.0.1:9", username="me", hostKey=HOST_KEY)
    (tmp_path / "aml_config/my-dsvm.runconfig").write_text("Framework: Python\nTarget: my_dsvm\n")
    (tmp_path / "gpu.yaml").write_text("apiVersion: gpuinfra/v1\nname: my-dsvm\nregion: eastus\ngpu: T4\n")
    target = find_target(tmp_path, "my_dsvm")
    assert target is not None
    # Not through the program, which would wait for the machine of a spec to boot.
    check_job_destination(tmp_path, JobSpec(tmp_path, "my-dsvm", target, GpuNeed.NO))
    with pytest.raises(Problem, match="jobs would not go to the machine"):
        check_job_destination(tmp_path, JobSpec(tmp_path, "my-dsvm", replace(target, name="other"), GpuNeed.NO))


def test_job_on_this_computer_is_refused_in_the_home_folder(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("open('outputs/a', 'w').write('a')")
    refused = run("submit", "-c", "local", "train.py", HOME=str(tmp_path))
    assert (refused.returncode, "home folder" in refused.stderr) == (2, True), refused.stderr
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text((tmp_path / "train.py").read_text())
    done = run("--workspace", str(project), "submit", "-c", "local", "train.py", HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert len([*project.glob(".gpuinfra/runs/*/outputs/a")]) == 1
