"""Lines that pip refuses, often in conda's syntax."""

from __future__ import annotations

import re
from collections.abc import Iterator

from packaging.requirements import InvalidRequirement, Requirement

from gpuinfra.diagnostics import Code, Diagnostic
from gpuinfra.lint.finding import Finding, part_cut_off, replace_part
from gpuinfra.workbench.conda import Conda, Installer, Package
from gpuinfra.workbench.project import Project

_EXAMPLE = "for example `numpy==1.13`"
_NAME = r"[A-Za-z0-9._-]+\s*(?:\[[^\]]*\])?"
_SINGLE = re.compile(rf"(?P<name>{_NAME})\s*=(?!=)\s*(?P<version>[0-9][^\s=#;]*).*")
_SPACE = re.compile(rf"{_NAME}\s+[0-9][0-9A-Za-z.]*")
_GLUED = re.compile(rf"{_NAME}\s*[=<>!~]=?\s*[^\s#]+(?P<comment>#).*")


def bad_requirements(project: Project) -> Iterator[Finding]:
    """Find obvious mistakes. Other syntax depends on the version of pip."""
    for conda in project.condas.values():
        for package in conda.packages:
            if package.by is Installer.PIP and not package.url and not _is_requirement(package.text):
                yield from _bad(conda, package)


def _bad(conda: Conda, package: Package) -> Iterator[Finding]:
    text, fix = package.text, None
    if single := _SINGLE.fullmatch(text):
        label, help_line = "pip needs `==`; a single `=` is conda's syntax", _doubled(single)
        fix = replace_part(conda.document, package.node, "=", "==")
    elif glued := _GLUED.fullmatch(text):
        label, help_line = "without a space, the `#` is part of the version", "put a space before the `#`"
        place = glued.start("comment") + package.node.text.index(text)
        fix = part_cut_off(conda.document, package.node, place)
    elif _SPACE.fullmatch(text):
        label, help_line = "pip needs `==`; a space is conda's syntax", _EXAMPLE
    else:
        return
    span = conda.document.span(package.node)
    diagnostic = Diagnostic(Code.BAD_REQUIREMENT, "invalid requirement", span, label, help=help_line)
    yield Finding(diagnostic, fix if fix and _is_requirement(str(fix.value)) else None)


def _doubled(single: re.Match[str]) -> str:
    """Return what to write instead, without a build or comment, which pip refuses, too."""
    lines = (single[0].replace("=", "==", 1), f"{single['name'].strip()}=={single['version']}")
    return next((f"write `{line}`" for line in lines if _is_requirement(line)), _EXAMPLE)


def _is_requirement(text: str) -> bool:
    try:
        Requirement(text)
    except InvalidRequirement:
        return False
    return True
