"""Writes what rules found to be mendable: whole files, each checked before it is written."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpuinfra.diagnostics import Code, Diagnostic
from gpuinfra.lint.finding import Finding, Fix
from gpuinfra.lint.rules import check
from gpuinfra.parse.document import Document, Edit, EditError
from gpuinfra.workbench.project import load_project
from gpuinfra.workspace import write_bytes

_OTHERS = "the file is also read under another name or by another project, which is not to have this change"
# One change can make room for another, a package's wheel for one; more than a few rounds would be a mistake of ours.
_ROUNDS = 10


@dataclass(frozen=True)
class Fixed:
    """One finding that is gone."""

    file: str
    line: int
    code: Code
    what: str


@dataclass
class Outcome:
    """What was found in projects, and what was changed before."""

    files: set[str] = field(default_factory=set)
    """Every file that was looked at."""
    findings: list[Finding] = field(default_factory=list)
    fixed: list[Fixed] = field(default_factory=list)


def check_projects(roots: Iterable[Path]) -> Outcome:
    """What is wrong; nothing is written."""
    outcome = Outcome()
    readers: Counter[Path] = Counter()
    for root in roots:
        project = load_project(root)
        kinds = (project.computes, project.runconfigs, project.condas)
        files = [each.document.source.name for kind in kinds for each in kind.values()]
        readers.update(_real(file) for file in files)
        outcome.files.update(files, (str(root / path) for path in (*project.unreadable, *project.sparks)))
        outcome.findings += check(project)
    outcome.findings = _agreed(outcome.findings, readers)
    return outcome


def _agreed(findings: list[Finding], readers: Counter[Path]) -> list[Finding]:
    """The same, without the changes of a file that not everyone who reads it asks for.

    A project sees its own targets alone: what one of them lacks may be right for those of another.
    """
    asked = Counter(_change(finding.fix) for finding in findings if finding.fix)
    return [
        finding if not finding.fix or asked[_change(finding.fix)] >= readers[_file_of(finding.fix)] else _left(finding)
        for finding in findings
    ]


def _left(finding: Finding) -> Finding:
    note = f"{finding.diagnostic.note}; {_OTHERS}" if finding.diagnostic.note else _OTHERS
    return Finding(replace(finding.diagnostic, note=note))


def _change(fix: Fix) -> tuple[Path, tuple[Edit, ...]]:
    return _file_of(fix), fix.edits


def _file_of(fix: Fix) -> Path:
    return _real(fix.document.source.name)


def _real(file: str) -> Path:
    """One file may have several names."""
    return Path(file).resolve()


def fix_projects(roots: Iterable[Path]) -> Outcome:
    """Mend what can be mended, and look again, until there is no more; what is left, and what was done."""
    folders = list(roots)
    fixed: list[Fixed] = []
    problems: dict[Path, Diagnostic] = {}
    for _ in range(_ROUNDS):
        outcome = check_projects(folders)
        done = _fix(outcome.findings, problems)
        fixed += done
        if not done:
            break
    if done or problems:
        # What was left alone may say something else by now.
        outcome = check_projects(folders)
    outcome.fixed = fixed
    outcome.findings = [*(Finding(problem) for problem in problems.values()), *outcome.findings]
    return outcome


def _fix(findings: list[Finding], problems: dict[Path, Diagnostic]) -> list[Fixed]:
    by_file: dict[Path, list[Finding]] = defaultdict(list)
    for finding in findings:
        if finding.fix and _file_of(finding.fix) not in problems:
            by_file[_file_of(finding.fix)].append(finding)
    done = []
    for real, found in by_file.items():
        document, applied = apply(found)
        file = document.source.name
        try:
            _write(Path(file), _document_of(found[0]), document)
        except OSError as error:
            note = f"`{file}`: {error.strerror}; it was left as it is"
            problems[real] = Diagnostic(Code.FILE_UNWRITABLE, "file cannot be written", note=note)
        except _ChangedError:
            note = f"`{file}` was changed by something else meanwhile, and left as it is"
            problems[real] = Diagnostic(Code.FILE_CHANGED, "file has changed", note=note, help="run it again")
        else:
            done += applied
    return done


def apply(findings: list[Finding]) -> tuple[Document, list[Fixed]]:
    """One file with as many of its changes as do not touch each other, and those that were made."""
    document = _document_of(findings[0])
    done: list[Fixed] = []
    limit = len(document.source.text) + 1
    # From the end to the beginning: what is done does not move what is to be done.
    for finding in sorted(findings, key=lambda each: -_fix_of(each).start):
        fix = _fix_of(finding)
        if fix.end >= limit:
            continue
        try:
            document = fix.applied_to(document)
        except EditError:
            continue
        limit = fix.start
        # A key that is added begins on a line of its own.
        line = document.source.position(fix.start + _line_breaks(fix.edits[0].text))[0]
        done.append(Fixed(document.source.name, line, finding.diagnostic.code, fix.what))
    return document, done[::-1]


def _line_breaks(text: str) -> int:
    return len(text) - len(text.lstrip("\r\n"))


class _ChangedError(Exception):
    """The file is not what was read any more."""


def _write(path: Path, old: Document, new: Document) -> None:
    if path.read_bytes() != old.encode():
        raise _ChangedError
    write_bytes(_real(str(path)), new.encode(), replace=True)  # a link in the project, or it was not read


def _fix_of(finding: Finding) -> Fix:
    assert finding.fix, "only findings that can be mended come here"  # noqa: S101
    return finding.fix


def _document_of(finding: Finding) -> Document:
    return _fix_of(finding).document
