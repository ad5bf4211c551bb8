"""Secrets that only a project's spec names go to machines that the user created or attached, or with consent."""

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from gpuinfra.app.frontend import Frontend
from gpuinfra.app.job_request import JobRequest, confirm_secrets, resolve_job
from gpuinfra.app.settings import Settings
from gpuinfra.app.workspace import open_workspace
from gpuinfra.diagnostics import Code, Exit, Problem
from gpuinfra.runner.connection.known_hosts import KNOWN_HOSTS
from tests.unit.test_local_consent import SETTINGS, Answers

_BLOB = b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + bytes(range(32))
HOST_KEY = f"ssh-ed25519 {base64.b64encode(_BLOB).decode()}"
SPEC = {
    "apiVersion": "gpuinfra/v1",
    "name": "box",
    "region": "eastus",
    "gpu": "T4",
    "target": {"type": "remote"},
    "job": {"command": "env", "secrets": ["CLOUD_KEY"]},
}
COMPUTE = {"type": "remote", "address": "203.0.113.9", "username": "me", "hostKey": HOST_KEY, "nvidiaDocker": False}


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A checked-out project whose files name a machine and a variable of the user."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CLOUD_KEY", "geheim")
    project = tmp_path / "project"
    (project / "aml_config").mkdir(parents=True)
    (project / "gpu.yaml").write_text(json.dumps(SPEC))
    (project / "aml_config" / "box.compute").write_text(json.dumps(COMPUTE))
    return replace(SETTINGS, workspace=project)


def confirm(settings: Settings, answer: bool | None, *secrets: str) -> list[str]:
    request = JobRequest(None, secrets=secrets)
    job, spec = resolve_job(open_workspace(settings), "box", request)
    assert job.secrets == {"CLOUD_KEY": "geheim"}
    person = Answers(answer)
    confirm_secrets(job, spec, request, settings, cast("Frontend", person))
    return person.asked


@pytest.mark.parametrize("answer", [False, None])
def test_machine_of_a_file_does_not_get_secrets_without_consent(settings: Settings, answer: bool | None) -> None:
    with pytest.raises(Problem) as caught:
        confirm(settings, answer)
    (found,) = caught.value.diagnostics
    assert (found.code, caught.value.exit_code) == (Code.NEEDS_CONSENT, Exit.USAGE)
    assert "`CLOUD_KEY`" in str(found.note)
    assert "`--secret CLOUD_KEY`" in str(found.help)


def test_consent_is_an_answer_an_option_or_the_name_on_the_command_line(settings: Settings) -> None:
    assert confirm(settings, answer=True) == ["Send the secrets to this machine?"]
    assert confirm(replace(settings, yes=True), answer=None) == []
    assert confirm(settings, None, "CLOUD_KEY") == []


def test_own_machine_gets_the_secrets_of_its_spec(settings: Settings) -> None:
    file = Path(KNOWN_HOSTS).expanduser()
    file.parent.mkdir(parents=True)
    file.write_text(f"gpuinfra-box {HOST_KEY} attach:box\n")
    assert confirm(settings, answer=None) == []
