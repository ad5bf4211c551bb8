"""Which Pythons a file is content with, as a stretch of numbers that a shell can compare."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpuinfra.workbench.conda import By, Conda

# 3.5.2 is 3005002. The first with `venv`, and the first that is none of today's Python.
FIRST, LAST = 3_003_000, 4_000_000
_STEPS = (1_000_000, 1_000, 1)
_NUMBER = r"(?P<number>[0-9]{1,2}(?:\.[0-9]{1,3}){0,2})"
# `=3.6`, `==3.6`, ` 3.6`, `=3.6.*`, each with a build behind it or not.
_EXACT = re.compile(rf"={{0,2}}\s*{_NUMBER}(?:\.?\*)?(?:[= ]\S*)?")
_BOUND = re.compile(rf"(?P<sign>>=|<=|>|<)\s*{_NUMBER}")


@dataclass(frozen=True, slots=True)
class PythonWish:
    """A Python from `first` on and before `end`."""

    text: str
    """As the file says it, for messages; empty where it says nothing."""
    first: int = FIRST
    end: int = LAST
    is_understood: bool = True
    """Where it is not, conda alone can tell which Python is meant."""

    @property
    def names(self) -> tuple[str, ...]:
        """By what names an image may have it, the likeliest first."""
        major, minor = self.first // 1_000_000, self.first // 1_000 % 1_000
        is_one = self.end <= self.first // 1_000 * 1_000 + 1_000
        return ("python", "python3", f"python{major}.{minor}") if is_one else ("python", "python3")


def python_wish(conda: Conda) -> PythonWish:
    """What a file asks for."""
    package = conda.package("python", by=By.CONDA)
    if package is None or not package.version:
        return PythonWish("")
    if stretch := _stretch(package.version):
        return PythonWish(package.text, *stretch)
    return PythonWish(package.text, 0, LAST, is_understood=False)


def _stretch(version: str) -> tuple[int, int] | None:
    """The same as first and end; None where it is more than a version or bounds."""
    if exact := _EXACT.fullmatch(version.strip()):
        return _of(exact["number"])
    first, end = FIRST, LAST
    for part in version.split(","):
        bound = _BOUND.fullmatch(part.strip())
        if bound is None:
            return None
        # `>3.6` and `<=3.6` are about 3.6.0, as conda and pip have it.
        least = _of(bound["number"])[0]
        match bound["sign"]:
            case ">=":
                first = max(first, least)
            case ">":
                first = max(first, least + 1)
            case "<":
                end = min(end, least)
            case _:
                end = min(end, least + 1)
    return first, end


def _of(number: str) -> tuple[int, int]:
    """Every release of a version: 3.6 has all of 3.6.0 to 3.6.999."""
    parts = [int(part) for part in number.split(".")]
    first = sum(part * step for part, step in zip(parts, _STEPS, strict=False))
    return first, first + _STEPS[len(parts) - 1]
