"""`lint --fix` on a copy of every real project: fixes are stable, and all other bytes stay."""

from pathlib import Path

from gpuinfra.lint.fix import check_projects, fix_projects
from gpuinfra.workbench.project import find_projects, load_project
from tests.workbench import FOLDER, copy_writable, needs_projects


def contents(folder: Path) -> dict[str, bytes]:
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@needs_projects
def test_every_real_project_can_be_fixed(tmp_path: Path) -> None:
    folder = tmp_path / "projects"
    copy_writable(FOLDER, folder)
    roots = list(find_projects(folder))
    wanted = check_projects(roots)
    before = contents(folder)
    outcome = fix_projects(roots)
    after = contents(folder)
    assert [finding for finding in outcome.findings if finding.fix] == []
    assert before.keys() == after.keys()
    changed = {name for name in before if before[name] != after[name]}
    assert {str(folder / name) for name in changed} == {fixed.file for fixed in outcome.fixed}
    assert changed == {
        Path(finding.fix.document.source.name).relative_to(folder).as_posix()
        for finding in wanted.findings
        if finding.fix
    }
    for name in changed:
        lines = {fixed.line for fixed in outcome.fixed if fixed.file == str(folder / name)}
        assert_only(lines, before[name], after[name])
    # They were unreadable before: no fix makes a file unreadable.
    assert {path for root in roots for path in load_project(root).unreadable} == {"aml_config/spark_dependencies.yml"}
    assert fix_projects(roots).fixed == []
    assert contents(folder) == after


def assert_only(lines: set[int], before: bytes, after: bytes) -> None:
    """Check that only these lines were changed or added."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    kept = [line for number, line in enumerate(new, 1) if number not in lines]
    if len(new) == len(old):
        assert kept == [line for number, line in enumerate(old, 1) if number not in lines]
    else:
        # A key was added at the end; the line before it may have had no newline.
        assert [line.rstrip(b"\r\n") for line in kept] == [line.rstrip(b"\r\n") for line in old]
