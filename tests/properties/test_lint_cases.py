"""Every project case, good and bad: its findings, and the lines that `--fix` changes."""

import difflib
import json
import shutil
from pathlib import Path

import pytest

from gpuinfra.app.lint import load_with_specs, projects_in
from gpuinfra.diagnostics import Code, Severity
from gpuinfra.lint.finding import Finding
from gpuinfra.lint.fix import check_projects, fix_projects
from gpuinfra.lint.rules import check
from gpuinfra.views import lint as view
from gpuinfra.views.diagnostics import as_json, render
from tests.cases import LINT_CASES, compare, lint_cases
from tests.program import ROOT

GOOD, BAD = lint_cases("good"), lint_cases("bad")
SECRET = "hunter2"


def name_of(case: Path) -> str:
    return case.name


@pytest.fixture
def project(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a case's project, with the same path on every machine."""
    shutil.copytree(request.param / "project", tmp_path / "project")
    monkeypatch.chdir(tmp_path)
    return Path("project")


def contents(folder: Path) -> dict[str, bytes]:
    return {file.as_posix(): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def differences(before: dict[str, bytes], after: dict[str, bytes]) -> str:
    """Return the changed lines, without context."""
    assert before.keys() == after.keys()
    lines: list[str] = []
    for name in before:
        old, new = (each[name].decode().splitlines() for each in (before, after))
        lines += difflib.unified_diff(old, new, name, name, n=0, lineterm="")
    return "\n".join(lines)


@pytest.mark.parametrize("project", GOOD, ids=name_of, indirect=True)
def test_good_project_has_no_findings(project: Path) -> None:
    assert projects_in([project]) == [project]
    assert [render(finding.diagnostic).plain for finding in check(load_with_specs(project))] == []


@pytest.mark.parametrize(
    ("project", "case"), [(case, case) for case in BAD], ids=map(name_of, BAD), indirect=["project"]
)
def test_bad_project_has_its_findings_and_fixes(project: Path, case: Path, update_cases: bool) -> None:
    before = contents(project)
    outcome = check_projects([project], load_with_specs)
    assert contents(project) == before
    parts = [render(finding.diagnostic).plain for finding in outcome.findings]
    repaired = fix_projects([project], load=load_with_specs)
    parts += [view.summary(outcome)]
    parts += [f"fixed {fixed.file}:{fixed.line} {fixed.what}" for fixed in repaired.fixed]
    parts += [differences(before, contents(project))] if repaired.fixed else []
    compare("\n\n".join(parts) + "\n", case / "expected.txt", update=update_cases)
    assert_fixed(project, repaired.findings)


def assert_fixed(project: Path, findings: list[Finding]) -> None:
    """Check that nothing fixable is left, and that a second fix changes nothing."""
    assert [finding for finding in findings if finding.fix] == []
    before = contents(project)
    again = fix_projects([project], load=load_with_specs)
    assert again.fixed == []
    assert again.findings == findings
    assert contents(project) == before


@pytest.mark.parametrize("project", BAD, ids=name_of, indirect=True)
def test_finding_has_place_and_reason_and_no_secret(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = check_projects([project], load_with_specs)
    for finding in outcome.findings:
        diagnostic = finding.diagnostic
        assert diagnostic.span, "it has a place"
        assert diagnostic.label or diagnostic.note, "it has a reason"
        assert SECRET not in repr(diagnostic)
        assert json.loads(json.dumps(as_json(diagnostic)))["code"] == diagnostic.code
    for shown, as_data in ((outcome, False), (outcome, True), (fix_projects([project], load=load_with_specs), False)):
        view.show([project], shown, json=as_data)
    assert SECRET not in "".join(capsys.readouterr())


def test_examples_have_no_findings() -> None:
    found = projects_in([ROOT / "examples"])
    assert len(found) == 7, "each project, and the folder with specs of machines alone"
    assert [render(finding.diagnostic).plain for finding in check_projects(found, load_with_specs).findings] == []


def test_every_code_has_a_case() -> None:
    of_files = {code for code in Code if code.value in documented()}
    found = {finding.diagnostic.code for case in BAD for finding in check(load_with_specs(case / "project"))}
    assert of_files - found == {Code.NO_PROJECT_FOUND, Code.FILE_CHANGED, Code.OTHER_TARGET}


def documented() -> set[str]:
    """Return the codes in the documentation's section on projects."""
    page = (Path(__file__).parents[2] / "docs" / "errors.md").read_text("utf-8")
    section = page.partition("## The files of a project")[2].partition("\n## ")[0]
    return {line.split("`")[1] for line in section.splitlines() if line.startswith("| `")}


def test_leaked_secret_is_an_error_without_a_fix() -> None:
    found = check(load_with_specs(LINT_CASES / "bad" / "secrets" / "project"))
    leaks = [finding for finding in found if finding.diagnostic.code is Code.PLAIN_SECRET]
    assert len(leaks) == 10
    assert {(finding.diagnostic.severity, finding.fix) for finding in leaks} == {(Severity.ERROR, None)}


def test_every_expected_file_has_a_case() -> None:
    expected = {case / "expected.txt" for case in BAD} | {LINT_CASES / "shared-projects.txt"}
    assert {file for file in LINT_CASES.rglob("*.txt") if "project" not in file.parts} == expected
