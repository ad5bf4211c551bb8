"""Check projects, and apply the fixes of findings."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpuinfra.diagnostics import Code, Diagnostic
from gpuinfra.lint.finding import Finding, Fix
from gpuinfra.lint.rules import check
from gpuinfra.parse.document import Document, Edit, EditError
from gpuinfra.workbench.project import Project, load_project
from gpuinfra.workspace import write_bytes

_OTHERS = "not fixed: another project, or another file name, also uses this file and does not need the fix"
# A fix can enable another one. More rounds than this would be a bug.
_ROUNDS = 10


@dataclass(frozen=True)
class AppliedFix:
    """An applied fix."""

    file: str
    line: int
    code: Code
    what: str


@dataclass
class LintResult:
    """The findings in projects, and the applied fixes."""

    files: set[str] = field(default_factory=set)
    """All checked files."""
    findings: list[Finding] = field(default_factory=list)
    fixed: list[AppliedFix] = field(default_factory=list)


def check_projects(roots: Iterable[Path], load: Callable[[Path], Project] = load_project) -> LintResult:
    """Check projects without writing."""
    outcome = LintResult()
    readers: Counter[Path] = Counter()
    for root in roots:
        project = load(root)
        kinds = (project.computes, project.runconfigs, project.condas)
        files = [each.document.source.name for kind in kinds for each in kind.values()]
        readers.update(_real(file) for file in files)
        outcome.files.update(files, (str(root / path) for path in (*project.unreadable, *project.sparks)))
        outcome.findings += check(project)
    outcome.findings = _agreed(outcome.findings, readers)
    return outcome


def _agreed(findings: list[Finding], readers: Counter[Path]) -> list[Finding]:
    """Remove fixes of shared files that not all readers need.

    A project sees only its own targets: a change for one may be wrong for another.
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
    """Return the real path: a file may have several names."""
    return Path(file).resolve()


def fix_projects(
    roots: Iterable[Path], within: Iterable[Path] = (), load: Callable[[Path], Project] = load_project
) -> LintResult:
    """Apply fixes until none is left, and return the remaining findings and the applied fixes.

    Files are written only in the projects and in the folders `within`, also behind links.
    """
    folders = list(roots)
    allowed = [folder.resolve() for folder in (*folders, *within)]
    fixed: list[AppliedFix] = []
    problems: dict[Path, Diagnostic] = {}
    for _ in range(_ROUNDS):
        outcome = check_projects(folders, load)
        done = _write_fixes(outcome.findings, problems, allowed)
        fixed += done
        if not done:
            break
    if done or problems:
        # Findings in unchanged files may have changed.
        outcome = check_projects(folders, load)
    outcome.fixed = fixed
    outcome.findings = [*(Finding(problem) for problem in problems.values()), *outcome.findings]
    return outcome


def _write_fixes(findings: list[Finding], problems: dict[Path, Diagnostic], allowed: list[Path]) -> list[AppliedFix]:
    by_file: dict[Path, list[Finding]] = defaultdict(list)
    for finding in findings:
        if finding.fix and _file_of(finding.fix) not in problems:
            by_file[_file_of(finding.fix)].append(finding)
    done = []
    for real, found in by_file.items():
        document, applied = apply(found)
        file = document.source.name
        if not any(real.is_relative_to(folder) for folder in allowed):
            # The project may come from others.
            note = f"`{file}` leads out of the project, to `{real}`, by a symbolic link; it was left as it is"
            help_line = "run `gpuinfra lint --fix` in the project that has the file"
            problems[real] = Diagnostic(Code.FILE_UNWRITABLE, "link out of the project", note=note, help=help_line)
            continue
        try:
            _write(Path(file), _document_of(found[0]), document)
        except OSError as error:
            note = f"`{file}`: {error.strerror}; the file is unchanged"
            problems[real] = Diagnostic(Code.FILE_UNWRITABLE, "file cannot be written", note=note)
        except _ChangedError:
            note = f"another program changed `{file}` in the meantime; gpuinfra did not write it"
            problems[real] = Diagnostic(Code.FILE_CHANGED, "file has changed", note=note, help="run the command again")
        else:
            done += applied
    return done


def apply(findings: list[Finding]) -> tuple[Document, list[AppliedFix]]:
    """Apply all fixes of one file that do not overlap, and return the document and those fixes."""
    document = _document_of(findings[0])
    done: list[AppliedFix] = []
    limit = len(document.source.text) + 1
    # From the end to the start, so that offsets stay valid.
    for finding in sorted(findings, key=lambda each: -_fix_of(each).start):
        fix = _fix_of(finding)
        if fix.end >= limit:
            continue
        try:
            document = fix.applied_to(document)
        except EditError:
            continue
        limit = fix.start
        # An added key starts on its own line.
        line = document.source.position(fix.start + _line_breaks(fix.edits[0].text))[0]
        done.append(AppliedFix(document.source.name, line, finding.diagnostic.code, fix.what))
    return document, done[::-1]


def _line_breaks(text: str) -> int:
    return len(text) - len(text.lstrip("\r\n"))


class _ChangedError(Exception):
    """The file has changed since it was read."""


def _write(path: Path, old: Document, new: Document) -> None:
    if path.read_bytes() != old.encode():
        raise _ChangedError
    write_bytes(_real(str(path)), new.encode(), replace=True)  # a link in the project, or it was not read


def _fix_of(finding: Finding) -> Fix:
    assert finding.fix, "only fixable findings"  # noqa: S101
    return finding.fix


def _document_of(finding: Finding) -> Document:
    return _fix_of(finding).document
