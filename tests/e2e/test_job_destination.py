"""A job goes to the machine that the user named: a project file that redirects it is refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.azure import Azure
from tests.e2e.foreign import OTHER_HOST_KEY
from tests.e2e.user import User
from tests.variants import variants

LOCAL = {"type": "local", "nvidiaDocker": False}
OTHER = {
    "type": "remote",
    "address": "127.0.0.1:9",
    "username": "me",
    "hostKey": OTHER_HOST_KEY,
    "nvidiaDocker": False,
    "simulated": True,
}
REDIRECTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "this-computer": {"my_dsvm.runconfig": {"Target": "local", "Framework": "Python"}},
    "later-generation": {"my_dsvm.runconfig": {"target": "local", "framework": "Python"}},
    "local-type": {"my_dsvm.compute": LOCAL},
    "other-machine": {"my_dsvm.runconfig": {"Target": "other", "Framework": "Python"}, "other.compute": OTHER},
}


@pytest.fixture(autouse=True)
def project(user: User) -> Path:
    user.spec(target={"type": "remote"})
    (user.workspace / "train.py").write_text("import os\nopen(os.environ['RAN'], 'w').close()\n")
    (user.workspace / "aml_config").mkdir()
    return user.workspace


def redirect(user: User, files: dict[str, dict[str, Any]]) -> None:
    for name, content in files.items():
        (user.workspace / "aml_config" / name).write_text(json.dumps(content))


def refused(user: User, *words: str, code: str = "other-target", exit_code: int = 2) -> dict[str, Any]:
    ran = user.home / "ran"
    done = user(*words[:1], "--json", *words[1:], RAN=str(ran), TOKEN="secret")
    assert not ran.exists(), "the job ran"
    assert done.returncode == exit_code, done.stdout + done.stderr
    (problem,) = json.loads(done.stdout)["diagnostics"]
    assert problem["code"] == code, problem
    assert problem["help"]
    return dict(problem)


@pytest.mark.parametrize("command", ["run", "up"])
@pytest.mark.parametrize("files", REDIRECTIONS.values(), ids=REDIRECTIONS)
def test_machine_whose_jobs_would_go_elsewhere_is_not_created(
    user: User, azure: Azure, files: dict[str, dict[str, Any]], command: str
) -> None:
    redirect(user, files)
    before = azure.last_request()
    words = ["--secret", "RAN", "--secret", "TOKEN", "gpu.yaml", "train.py"] if command == "run" else ["gpu.yaml"]
    problem = refused(user, command, *words)
    assert Path(problem["file"]).name == next(iter(files))
    assert problem["line"] == 1
    assert azure.writes(before) == []


@pytest.mark.parametrize("has_spec", [True, False], ids=["spec", "recorded-key"])
@pytest.mark.parametrize("files", variants(*REDIRECTIONS.values()), ids=REDIRECTIONS)
def test_submit_refuses_a_configuration_of_a_machine_that_leads_elsewhere(
    user: User, azure: Azure, files: dict[str, dict[str, Any]], has_spec: bool, tmp_path: Path
) -> None:
    user.up()
    if not has_spec:
        cloned = shutil.copytree(user.workspace, tmp_path / "cloned")
        user.workspace = cloned
        (cloned / "gpu.yaml").unlink()
    redirect(user, files)
    problem = refused(user, "submit", "--secret", "RAN", "--secret", "TOKEN", "-c", "my_dsvm", "train.py")
    assert Path(problem["file"]).name == next(iter(files))


def test_attach_refuses_a_run_configuration_that_leads_elsewhere(user: User, azure: Azure, tmp_path: Path) -> None:
    target = user.up()["target"]
    user.workspace = tmp_path / "cloned"
    (user.workspace / "aml_config").mkdir(parents=True)
    redirect(user, {"lab.runconfig": {"Target": "local", "Framework": "Python"}})
    where = ["--address", target["address"], "--port", str(target["port"]), "--username", target["username"]]
    words = ["attach", "lab", *where, "--type", "remote", "--host-key", target["hostKey"]]
    problem = user.fails(*words, code="other-target", exit_code=2)
    assert Path(problem["file"]).name == "lab.runconfig"
    assert not (user.workspace / "aml_config" / "lab.compute").exists()


def test_configuration_of_another_name_may_name_the_machine(user: User, azure: Azure) -> None:
    user.up()
    redirect(user, {"nightly.runconfig": {"Target": "my_dsvm", "Framework": "Python"}})
    done = user("submit", "--secret", "RAN", "-c", "nightly", "train.py", RAN=str(user.home / "ran"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert (user.home / "ran").exists()
