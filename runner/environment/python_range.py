"""The versions of Python that a conda file accepts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpuinfra.workbench.conda import Conda, Installer

# 3.5.2 is 3005002. Python 3.3 is the first version with `venv`.
MIN_PYTHON, MAX_PYTHON = 3_003_000, 4_000_000
_PYTHON_STEPS = (1_000_000, 1_000, 1)
_NUMBER = r"(?P<number>[0-9]{1,2}(?:\.[0-9]{1,3}){0,2})"
# `=3.6`, `==3.6`, ` 3.6` and `=3.6.*`, each with or without a build.
_EXACT = re.compile(rf"={{0,2}}\s*{_NUMBER}(?:\.?\*)?(?:[= ]\S*)?")
_BOUND = re.compile(rf"(?P<sign>>=|<=|>|<)\s*{_NUMBER}")


@dataclass(frozen=True, slots=True)
class PythonRange:
    """The versions of Python from `first` up to, but not including, `end`."""

    text: str
    """The requirement in the file, for messages; empty if there is none."""
    first: int = MIN_PYTHON
    end: int = MAX_PYTHON
    is_understood: bool = True
    """Whether the requirement is a version or bounds. Only conda can evaluate others."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the program names that an image may have for it, the likeliest first."""
        major, minor = self.first // 1_000_000, self.first // 1_000 % 1_000
        is_one = self.end <= self.first // 1_000 * 1_000 + 1_000
        return ("python", "python3", f"python{major}.{minor}") if is_one else ("python", "python3")


def python_range(conda: Conda) -> PythonRange:
    """Return the versions of Python that a file requires."""
    package = conda.package("python", by=Installer.CONDA)
    if package is None or not package.version:
        return PythonRange("")
    if bounds := _bounds(package.version):
        return PythonRange(package.text, *bounds)
    return PythonRange(package.text, 0, MAX_PYTHON, is_understood=False)


def _bounds(version: str) -> tuple[int, int] | None:
    """Return the first and end number, or None if the text is not a version or bounds."""
    if exact := _EXACT.fullmatch(version.strip()):
        return _releases(exact["number"])
    first, end = MIN_PYTHON, MAX_PYTHON
    for part in version.split(","):
        bound = _BOUND.fullmatch(part.strip())
        if bound is None:
            return None
        # In conda and pip, `>3.6` and `<=3.6` refer to 3.6.0.
        number = _releases(bound["number"])[0]
        match bound["sign"]:
            case ">=":
                first = max(first, number)
            case ">":
                first = max(first, number + 1)
            case "<":
                end = min(end, number)
            case _:
                end = min(end, number + 1)
    return first, end


def _releases(number: str) -> tuple[int, int]:
    """Return the first and end number of a version's releases: 3.6 includes 3.6.0 to 3.6.999."""
    parts = [int(part) for part in number.split(".")]
    first = sum(part * step for part, step in zip(parts, _PYTHON_STEPS, strict=False))
    return first, first + _PYTHON_STEPS[len(parts) - 1]
