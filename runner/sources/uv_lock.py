"""Read `uv.lock`: the packages that a project needs, each with its exact version, as lines for pip."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from gpuinfra.diagnostics import Code, Diagnostic, Problem
from gpuinfra.parse.source import Source
from gpuinfra.parse.tree import Scalar
from gpuinfra.workbench.conda import normal

if TYPE_CHECKING:
    from packaging.requirements import Requirement

PYPI = "https://pypi.org/simple"
# Ways to a package with different conditions; real projects have a few.
MAX_WAYS = 64
_OWN = ("virtual", "editable")
Key = tuple[str, str]
"""Name and version."""


def locked_lines(source: Source, lock: dict[str, Any], wanted: list[Requirement]) -> list[Scalar]:
    """Return a line for each package that the project needs. `wanted` are the dependencies in `pyproject.toml`.

    Raise Problem if the lock is older than these, or has a package that cannot be sent to a target.
    """
    packages = [
        each for each in lock.get("package") or () if isinstance(each, dict) and isinstance(each.get("name"), str)
    ]
    own = [each for each in packages if any(each.get("source", {}).get(kind) == "." for kind in _OWN)]
    if len(own) != 1:
        raise _refusal(source, "", "it does not lock exactly this project", "run `uv lock` in the project")
    _check_is_current(source, own[0], wanted)
    by_name: dict[str, list[dict[str, Any]]] = {}
    for package in packages:
        by_name.setdefault(package["name"], []).append(package)
    needed = _needed(own[0], by_name)
    options = [Scalar(0, 0, option, option) for option in _options(package for package, _ in needed)]
    has_hashes = all(_hashes(package) for package, _ in needed)
    return [*options, *(_scalar(source, package, ways, with_hashes=has_hashes) for package, ways in needed)]


def _check_is_current(source: Source, own: dict[str, Any], wanted: list[Requirement]) -> None:
    locked = (own.get("metadata") or {}).get("requires-dist") or ()
    # Dependencies of extras have their extra as marker.
    found = {
        _shape(each["name"], str(each.get("specifier") or ""), each.get("extras") or ())
        for each in locked
        if "extra ==" not in str(each.get("marker") or "")
    }
    now = {_shape(each.name, str(each.specifier), each.extras) for each in wanted}
    if different := sorted(name for name, *_ in found ^ now):
        label = f"it is older than `pyproject.toml`: {', '.join(dict.fromkeys(different))}"
        raise _refusal(source, "", label, "run `uv lock` in the project")


def _shape(name: str, specifier: str, extras: Iterable[str]) -> tuple[str, str, tuple[str, ...]]:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet  # slow to import

    try:
        specifier = ",".join(sorted(map(str, SpecifierSet(specifier))))
    except InvalidSpecifier:
        specifier = "?"
    return normal(name), specifier, tuple(sorted(map(normal, extras)))


def _needed(
    own: dict[str, Any], by_name: dict[str, list[dict[str, Any]]]
) -> list[tuple[dict[str, Any], tuple[str, ...]]]:
    """Return the packages that the project needs, by name, with the markers under which it does; none is always."""
    ways: dict[Key, set[str]] = {}
    found: dict[Key, dict[str, Any]] = {}
    queue = deque((each, "") for each in own.get("dependencies") or ())
    while queue:
        edge, above = queue.popleft()
        marker = _both(above, str(edge.get("marker") or ""))
        for package in _targets(edge, by_name):
            key = (package["name"], str(package.get("version") or ""))
            # Extras have dependencies of their own.
            seen = ways.setdefault((key[0] + str(sorted(edge.get("extra") or ())), key[1]), set())
            if "" in seen or marker in seen:
                continue
            marker = marker if len(seen) < MAX_WAYS else ""
            seen.add(marker)
            found[key] = package
            ways.setdefault(key, set()).add(marker)
            below = list(package.get("dependencies") or ())
            for extra in edge.get("extra") or ():
                below += (package.get("optional-dependencies") or {}).get(extra) or ()
            queue += ((each, marker) for each in below)
    return [(found[key], () if "" in ways[key] else tuple(sorted(ways[key]))) for key in sorted(found)]


def _targets(edge: dict[str, Any], by_name: dict[str, list[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Yield the package that a dependency means. It has a version only if there are several of its name."""
    for package in by_name.get(edge["name"], ()):
        if all(key not in edge or edge[key] == package.get(key) for key in ("version", "source")):
            yield package


def _both(first: str, second: str) -> str:
    if not first or not second or first == second:
        return first or second
    return f"({first}) and ({second})"


def _options(packages: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield pip's options for the indexes of the packages. The machine's own settings decide what stands for PyPI."""
    registries = {str(each.get("source", {}).get("registry") or "") for each in packages}
    for registry in sorted(registries - {"", PYPI, f"{PYPI}/"}):
        is_index = "://" in registry
        yield f"--extra-index-url {registry}" if is_index else f"--find-links {registry}"


def _hashes(package: dict[str, Any]) -> list[str]:
    files = [*(package.get("wheels") or ()), package.get("sdist") or {}]
    return sorted({str(each["hash"]) for each in files if each.get("hash")}) if "registry" in package["source"] else []


def _scalar(source: Source, package: dict[str, Any], ways: tuple[str, ...], *, with_hashes: bool) -> Scalar:
    name, found = package["name"], package.get("source") or {}
    if "registry" in found:
        line = f"{name}=={package.get('version')}"
    elif "url" in found:
        line = f"{name} @ {found['url']}"
    elif "git" in found:
        address, _, commit = str(found["git"]).partition("#")
        line = f"{name} @ git+{address.partition('?')[0]}@{commit}"
    elif str(found.get("path") or "").endswith((".whl", ".tar.gz", ".zip")):
        line = f"{name} @ ./{found['path']}"
    else:
        label = "it is a folder, which is not sent to the target"
        raise _refusal(source, name, label, "build a wheel, and name it in `[tool.uv.sources]` as `path`")
    if ways:
        line += " ; " + (ways[0] if len(ways) == 1 else " or ".join(f"({each})" for each in ways))
    if with_hashes:
        line += "".join(f" --hash={each}" for each in _hashes(package))
    start, end = _place(source, name)
    return Scalar(start, end, line, line)


def _place(source: Source, name: str) -> tuple[int, int]:
    found = re.search(rf'^name = "{re.escape(name)}"', source.text, re.MULTILINE)
    return found.span() if found else (0, 0)


def _refusal(source: Source, name: str, label: str, help_line: str) -> Problem:
    span = source.span(*(_place(source, name) if name else (0, 0)))
    return Problem(Diagnostic(Code.BAD_REQUIREMENT, "unusable lock file", span, label, help=help_line))
