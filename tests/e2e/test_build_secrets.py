"""Variables in requirement lines: only those that `--build-secret` names are read from the caller's environment."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.azure import Azure
from tests.e2e.user import Run, User

SECRET = "value-of-the-client-secret"
INDEX = "--extra-index-url https://index.example/${AZURE_CLIENT_SECRET}/"


def write_project(folder: Path, *lines: str) -> None:
    config = folder / "aml_config"
    config.mkdir(parents=True, exist_ok=True)
    items = "".join(f"      - {line}\n" for line in lines)
    (config / "conda_dependencies.yml").write_text(f"dependencies:\n  - pip:\n{items}      - numpy\n")
    (folder / "train.py").write_text("print('hello')\n")


def refusal(printed: str) -> dict[str, Any]:
    (diagnostic,) = json.loads(printed)["diagnostics"]
    assert diagnostic["code"] == "missing-secret"
    assert SECRET not in printed
    return dict(diagnostic)


@pytest.mark.parametrize(
    "command", [("submit", "-c", "docker", "--json", "train.py"), ("prepare", "-c", "docker", "--json")]
)
def test_variable_in_a_conda_file_is_an_error_unless_allowed(
    run: Run, tmp_path: Path, command: tuple[str, ...]
) -> None:
    write_project(tmp_path, INDEX)
    # No engine answers at this address: the error has to come first.
    done = run(*command, AZURE_CLIENT_SECRET=SECRET, DOCKER_HOST="tcp://127.0.0.1:1")
    assert done.returncode == 2, done.stdout + done.stderr
    diagnostic = refusal(done.stdout)
    assert (diagnostic["file"], diagnostic["line"]) == ("aml_config/conda_dependencies.yml", 3)
    assert "--build-secret AZURE_CLIENT_SECRET" in diagnostic["help"]


def test_variable_in_a_requirements_file_is_reported_with_that_file_and_line(run: Run, tmp_path: Path) -> None:
    write_project(tmp_path, "-r more.txt")
    (tmp_path / "more.txt").write_text(f"scipy\n# ${{IN_A_COMMENT}}\n{INDEX}\n")
    done = run(
        "submit", "-c", "docker", "--json", "train.py", AZURE_CLIENT_SECRET=SECRET, DOCKER_HOST="tcp://127.0.0.1:1"
    )
    assert done.returncode == 2, done.stdout + done.stderr
    diagnostic = refusal(done.stdout)
    assert (diagnostic["file"], diagnostic["line"]) == ("more.txt", 3)


def test_variable_in_a_constraints_file_is_an_error(run: Run, tmp_path: Path) -> None:
    write_project(tmp_path, "-c limits.txt")
    (tmp_path / "limits.txt").write_text(f"scipy<2\n{INDEX}\n")
    words = ("submit", "-c", "docker", "--json", "--build-secret", "AZURE_CLIENT_SECRET", "train.py")
    done = run(*words, AZURE_CLIENT_SECRET=SECRET, DOCKER_HOST="tcp://127.0.0.1:1")
    assert done.returncode == 2, done.stdout + done.stderr
    (diagnostic,) = json.loads(done.stdout)["diagnostics"]
    assert (diagnostic["file"], diagnostic["line"]) == ("limits.txt", 2)


def test_run_refuses_a_variable_before_anything_is_created(user: User, azure: Azure) -> None:
    write_project(user.workspace, INDEX)
    before = azure.last_request()
    done = user("run", "--json", "gpu.yaml", "train.py", AZURE_CLIENT_SECRET=SECRET)
    assert done.returncode == 2, done.stdout + done.stderr
    refusal(done.stdout)
    assert azure.writes(before) == []


def test_build_secret_that_is_not_set_is_an_error(run: Run, tmp_path: Path) -> None:
    write_project(tmp_path, INDEX)
    done = run("submit", "-c", "docker", "--json", "--build-secret", "AZURE_CLIENT_SECRET", "train.py")
    assert done.returncode == 2, done.stdout + done.stderr
    refusal(done.stdout)
