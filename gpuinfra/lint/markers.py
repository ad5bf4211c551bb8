"""Environment markers of pip: lines such as `… ; sys_platform == 'win32'` do not affect jobs."""

from __future__ import annotations

import re

from packaging.markers import InvalidMarker, Marker, UndefinedComparison, UndefinedEnvironmentName

from gpuinfra.workbench.conda import Package

# Without a Python version, a marker counts if it is the same for all of these.
_PYTHONS = ((2, 7), *((3, minor) for minor in range(4, 15)))
# Depends on the machine, or on the patch version of Python.
_NOT_KNOWN = re.compile(
    r"platform_release|platform_version|platform\.version|python_full_version|implementation_version"
)


def is_meant(package: Package, python: tuple[int, int] | None) -> bool | None:
    """Return whether a line applies to jobs, on Linux x86-64; None if unknown."""
    if not package.marker:
        return True
    if _NOT_KNOWN.search(package.marker):
        return None
    try:
        marker = Marker(package.marker)
        found = {marker.evaluate(_environment(each)) for each in ([python] if python else _PYTHONS)}
    except (InvalidMarker, UndefinedComparison, UndefinedEnvironmentName):
        return None
    return found.pop() if len(found) == 1 else None


def _environment(python: tuple[int, int]) -> dict[str, str]:
    return {
        "extra": "",
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_version": f"{python[0]}.{python[1]}",
        # Python 2 includes the major version of its build kernel.
        "sys_platform": "linux2" if python[0] == 2 else "linux",
    }
