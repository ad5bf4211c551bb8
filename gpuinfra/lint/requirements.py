"""Lines that pip refuses, and wheels that cannot be installed: for another platform or Python, or missing."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from gpuinfra.diagnostics import Code, Diagnostic
from gpuinfra.lint.facts import CNTK_LINUX, CNTK_WHEEL, CNTK_WINDOWS
from gpuinfra.lint.finding import Finding, Fix, part_cut_off, replace_part
from gpuinfra.lint.uses import is_for_linux, is_meant
from gpuinfra.workbench.conda import Conda, Installer, Package, is_requirement
from gpuinfra.workbench.project import Project, plain_path

_EXAMPLE = "for example `numpy==1.13`"
_NAME = r"[A-Za-z0-9._-]+\s*(?:\[[^\]]*\])?"
_SINGLE = re.compile(rf"(?P<name>{_NAME})\s*=(?!=)\s*(?P<version>[0-9][^\s=#;]*).*")
_SPACE = re.compile(rf"{_NAME}\s+[0-9][0-9A-Za-z.]*")
_GLUED = re.compile(rf"{_NAME}\s*[=<>!~]=?\s*[^\s#]+(?P<comment>#).*")


def bad_requirements(project: Project) -> Iterator[Finding]:
    """Find obvious mistakes. Other syntax depends on the version of pip."""
    for conda in project.condas.values():
        for package in conda.packages:
            if package.by is Installer.PIP and not package.url and not is_requirement(package.text):
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
    yield Finding(diagnostic, fix if fix and is_requirement(str(fix.value)) else None)


def _doubled(single: re.Match[str]) -> str:
    """Return what to write instead, without a build or comment, which pip refuses, too."""
    lines = (single[0].replace("=", "==", 1), f"{single['name'].strip()}=={single['version']}")
    return next((f"write `{line}`" for line in lines if is_requirement(line)), _EXAMPLE)


_LINUX = re.compile(r"any|(?:many|musl)?linux\w*_x86_64")
_INTERPRETER = re.compile(r"(?P<kind>py|cp)(?P<major>[0-9])(?P<minor>[0-9]*)")


def wheels(project: Project) -> Iterator[Finding]:
    """Check every wheel of environments for containers and remote machines."""
    for conda in project.condas.values():
        if not is_for_linux(project, conda):
            continue
        for package in conda.packages:
            if not is_meant(package, conda.python):
                continue
            if package.is_local:
                yield from _local(project, conda, package)
            yield from _unfit(conda, package)


def _unfit(conda: Conda, package: Package) -> Iterator[Finding]:
    try:
        *_, tags = parse_wheel_filename(package.file or "")
    except InvalidWheelFilename:
        return
    span = conda.document.span(package.node)
    if not any(_LINUX.fullmatch(tag.platform) for tag in tags):
        label = f"it is for {_listed(tag.platform for tag in tags)}, but jobs run on linux_x86_64"
        diagnostic = Diagnostic(
            Code.WRONG_PLATFORM, "wheel for another platform", span, label, help="use the wheel for Linux"
        )
        yield Finding(diagnostic, _linux_twin(conda, package))
    python = conda.python
    if python and not any(_fits(tag, python) for tag in tags):
        asked = ".".join(map(str, python))
        label = f"it is for {_listed(tag.interpreter for tag in tags)}, but the file requests Python {asked}"
        help_line = f"use the wheel for cp{python[0]}{python[1]}, or change `python=`"
        yield Finding(Diagnostic(Code.WRONG_PYTHON, "wheel for another Python", span, label, help=help_line))


def _linux_twin(conda: Conda, package: Package) -> Fix | None:
    """Return a fix for Cognitive Toolkit wheels, which exist for both platforms."""
    wheel = CNTK_WHEEL.fullmatch(package.url or "")
    if wheel is None or wheel["platform"] == "linux_x86_64":
        return None
    # Python 2.7 is the exception: its tag for Linux is `cp27mu`.
    return None if "-cp27-" in wheel[0] else replace_part(conda.document, package.node, CNTK_WINDOWS, CNTK_LINUX)


def _fits(tag: Tag, python: tuple[int, int]) -> bool:
    found = _INTERPRETER.fullmatch(tag.interpreter)
    if found is None or int(found["major"]) != python[0]:
        return False
    if not found["minor"]:
        return True
    minor = int(found["minor"])
    return minor <= python[1] if found["kind"] == "py" or tag.abi == "abi3" else minor == python[1]


def _local(project: Project, conda: Conda, package: Package) -> Iterator[Finding]:
    # Brackets after a path are extras.
    path = plain_path(re.sub(r"\[[^\[\]]*\]$", "", (package.url or "").partition("#")[0].strip()))
    label = "this file does not exist in the project"
    if Path(path).is_absolute() or re.match(r"[A-Za-z]:|~", path):
        label = "a file outside the project is not uploaded"
    elif any(_exists(folder / path) for folder in (project.root, (project.root / conda.path).parent)):
        return
    span = conda.document.span(package.node)
    help_line = "move it into the project, and write its relative path"
    yield Finding(Diagnostic(Code.MISSING_FILE, "missing file", span, label, help=help_line))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        # Not a valid file name.
        return False


def _listed(words: Iterable[str]) -> str:
    return ", ".join(sorted(set(words)))
