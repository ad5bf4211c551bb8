"""Read the dependencies of a `pyproject.toml`, as locked in the `uv.lock` beside it if there is one."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from gpuinfra.diagnostics import Code, Diagnostic, Problem, problem
from gpuinfra.parse.source import Source
from gpuinfra.parse.tree import Scalar
from gpuinfra.runner.sources.requirements_file import LINUX, packages_of, read_source
from gpuinfra.runner.sources.uv_lock import locked_lines
from gpuinfra.workbench.conda import Conda, Installer, Package, normal
from gpuinfra.workbench.project import file_within

if TYPE_CHECKING:
    from packaging.requirements import Requirement

FILE, LOCK = "pyproject.toml", "uv.lock"


def read_pyproject(project: Path, path: str) -> Conda:
    """Return the packages that a project needs. Raise Problem if the file does not say, or cannot be read."""
    source = read_source(project, path)
    table = _table(source)
    found = table.get("project")
    if not isinstance(found, dict) or "dependencies" in (found.get("dynamic") or ()):
        raise _unsupported(source, table)
    lines = [*_texts(found.get("dependencies"))]
    python = _python(source, str(found.get("requires-python") or ""))
    uv = _tables(table, "tool", "uv")
    options = ["--no-index"] if uv.get("no-index") is True else []
    if lock := lock_of(project, path):
        own = read_source(project, lock)
        requirements = [each for each in map(_requirement, lines) if each]
        locked = locked_lines(own, _table(own), requirements)
        return packages_of(path, own, [*_options(options), *locked], *python)
    links = [f"--find-links {each}" for each in _texts(uv.get("find-links"))]
    indexes = [_scalar(source, url, line) for url, line in _index_options(uv)]
    sources = {normal(name): each for name, each in _tables(uv, "sources").items()}
    dependencies = [_scalar(source, line, _with_source(source, line, sources)) for line in lines]
    return packages_of(path, source, [*_options([*options, *links]), *indexes, *dependencies], *python)


def has_dependencies(project: Path, path: str) -> bool:
    """Return whether a `pyproject.toml` describes a project, and not only the settings of tools."""
    if file_within(project, path) is None:
        return False
    found = _table(read_source(project, path)).get("project")
    return isinstance(found, dict) and bool(found.get("dependencies"))


def _table(source: Source) -> dict[str, Any]:
    try:
        return tomllib.loads(source.text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise problem(Code.FILE_UNREADABLE, "file cannot be read", f"`{source.name}`: {error}") from None


def _unsupported(source: Source, table: dict[str, Any]) -> Problem:
    label = "it has no `dependencies` in a `[project]` table"
    help_line = "add them, or use `requirements`"
    if "poetry" in _tables(table, "tool"):
        help_line = "`poetry export -o requirements.txt`, and use `requirements`"
    return Problem(Diagnostic(Code.BAD_REQUIREMENT, "no dependencies", source.span(0, 0), label, help=help_line))


def _tables(table: dict[str, Any], *names: str) -> dict[str, Any]:
    for name in names:
        found = table.get(name)
        table = found if isinstance(found, dict) else {}
    return table


def _options(lines: list[str]) -> list[Scalar]:
    return [Scalar(0, 0, each, each) for each in lines]


def _texts(found: object) -> list[str]:
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []


def _scalar(source: Source, written: str, line: str) -> Scalar:
    """Return a line with the place where the file has it."""
    start = max(source.text.find(written), 0)
    return Scalar(start, start + len(written) if source.text.startswith(written, start) else start, line, line)


def _requirement(line: str) -> Requirement | None:
    from packaging.requirements import InvalidRequirement, Requirement  # slow to import, and few projects need it

    try:
        return Requirement(line)
    except InvalidRequirement:
        return None


def _index_options(uv: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the URL of each index for Linux, and its option for pip."""
    found = uv.get("index")
    for index in found if isinstance(found, list) else ():
        url = index.get("url") if isinstance(index, dict) else None
        if not isinstance(url, str) or not _is_used(index, _tables(uv, "sources")):
            continue
        if index.get("format") == "flat":
            yield url, f"--find-links {url}"
        else:
            yield url, f"{'--index-url' if index.get('default') is True else '--extra-index-url'} {url}"


def _is_used(index: dict[str, Any], sources: dict[str, Any]) -> bool:
    """Return whether a job can get packages from an index: from an explicit one only those that name it for Linux."""
    if index.get("explicit") is not True:
        return True
    named = [each for found in sources.values() for each in (found if isinstance(found, list) else [found])]
    return any(
        isinstance(each, dict) and each.get("index") == index.get("name") and _is_for_job(each) for each in named
    )


def _is_for_job(named: dict[str, Any]) -> bool:
    """Return whether a source counts on Linux, and without extras and groups, which are not installed."""
    from packaging.markers import InvalidMarker, Marker, UndefinedComparison, UndefinedEnvironmentName

    marker = str(named.get("marker") or "")
    if named.get("extra") or named.get("group"):
        return False
    if not marker or "python" in marker:
        return True  # the target's Python is not known here
    try:
        return Marker(marker).evaluate(LINUX)
    except (InvalidMarker, UndefinedComparison, UndefinedEnvironmentName):
        return True


def _with_source(source: Source, line: str, sources: dict[str, Any]) -> str:
    """Return a dependency for pip, with the URL that `[tool.uv.sources]` has for it."""
    requirement = _requirement(line)
    found = sources.get(normal(requirement.name)) if requirement else None
    if requirement is None or not isinstance(found, dict) or "index" in found:
        return line
    marker = f" ; {requirement.marker}" if requirement.marker else ""
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    if isinstance(url := found.get("url"), str):
        return f"{requirement.name}{extras} @ {url}{marker}"
    if isinstance(git := found.get("git"), str):
        revision = next((f"@{found[key]}" for key in ("rev", "tag", "branch") if key in found), "")
        return f"{requirement.name}{extras} @ git+{git.removeprefix('git+')}{revision}{marker}"
    if isinstance(path := found.get("path"), str):
        return f"{requirement.name}{extras} @ ./{path.removeprefix('./')}{marker}"
    span = _scalar(source, line, line)
    label = "its source in `[tool.uv.sources]` is none that can be sent to the target"
    help_line = "build a wheel, and name it there as `path`"
    place = source.span(span.start, span.end)
    raise Problem(Diagnostic(Code.BAD_REQUIREMENT, "invalid requirement", place, label, help=help_line))


def _python(source: Source, required: str) -> list[Package]:
    """Return `requires-python` as the package of a conda file; nothing without it."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        specifiers = list(SpecifierSet(required))
    except InvalidSpecifier:
        return []
    bounds = []
    for each in specifiers:
        number = each.version.removesuffix(".*")
        if each.operator == "==" and each.version.endswith(".*"):
            major, _, minor = number.partition(".")
            bounds += [f">={number}", f"<{major}.{int(minor) + 1}" if minor.isdigit() else f"<{int(major) + 1}"]
        elif each.operator == "~=":
            bounds += [f">={number}", f"<{int(number.partition('.')[0]) + 1}" if number.count(".") == 1 else ""]
        elif each.operator in {">=", "<=", ">", "<", "=="}:
            bounds.append(f"{each.operator}{number}")
    text = ",".join(sorted(filter(None, bounds), reverse=True))
    if not text:
        return []
    place = source.text.find(required)
    node = Scalar(max(place, 0), max(place, 0) + len(required), f"python{text}", f"python{text}")
    return [Package(f"python{text}", node, Installer.CONDA, "python", text)]


def lock_of(project: Path, path: str) -> str | None:
    """Return the path of the lock file beside a `pyproject.toml`, or None."""
    lock = str(PurePosixPath(path).with_name(LOCK))
    return lock if file_within(project, lock) else None
