"""A job under another name than `local` and `docker` runs on this computer only with consent."""

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from gpuinfra.app.frontend import Frontend
from gpuinfra.app.job_request import confirm_local_job
from gpuinfra.app.settings import Settings
from gpuinfra.diagnostics import Code, Exit, Problem
from gpuinfra.models.consent import Question
from gpuinfra.runner.resolve import read_job

SETTINGS = Settings(json=False, yes=False, verbose=False, cloud="azure", workspace=Path(), correlation_id="")


class Answers:
    """A person who answers every question alike."""

    def __init__(self, answer: bool | None) -> None:
        self._answer, self.can_ask = answer, answer is not None
        self.asked: list[str] = []

    def confirm(self, question: Question) -> bool:
        self.asked.append(question.text)
        return bool(self._answer)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "aml_config").mkdir()
    (tmp_path / "aml_config" / "here.compute").write_text("type: local\n")
    return tmp_path


def confirm(project: Path, name: str, answer: bool | None, *, yes: bool = False, is_named: bool = True) -> list[str]:
    person, settings = Answers(answer), replace(SETTINGS, yes=yes)
    confirm_local_job(read_job(project, name), settings, cast("Frontend", person), is_named=is_named)
    return person.asked


def test_built_in_names_and_yes_are_consent(project: Path) -> None:
    for name in ("local", "docker"):
        assert confirm(project, name, None) == []
    assert confirm(project, "here", answer=None, yes=True) == []


def test_person_at_a_terminal_is_asked_once(project: Path) -> None:
    (question,) = confirm(project, "here", answer=True)
    assert "`aml_config/here.compute`" in question
    assert "this computer" in question


def test_built_in_name_that_the_user_did_not_give_is_not_consent(project: Path) -> None:
    (question,) = confirm(project, "local", answer=True, is_named=False)
    assert "`local`, the only one of the workspace, is this computer" in question
    with pytest.raises(Problem):
        confirm(project, "docker", answer=None, is_named=False)


@pytest.mark.parametrize("answer", [False, None])
def test_job_without_consent_is_refused(project: Path, answer: bool | None) -> None:
    with pytest.raises(Problem) as caught:
        confirm(project, "here", answer)
    (found,) = caught.value.diagnostics
    assert (found.code, caught.value.exit_code) == (Code.NEEDS_CONSENT, Exit.USAGE)
