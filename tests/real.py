"""Real programs that tests drive. One that is missing skips the test, or fails it where all are required."""

import os
import shutil
from typing import NoReturn

import pytest

# Debian keeps servers where a user's PATH does not look.
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def program(name: str, package: str) -> str:
    """The path of a program that Debian's `package` has."""
    found = shutil.which(name, path=PATH)
    return found or missing(f"no `{name}` on this machine: apt-get install {package}")


def missing(reason: str) -> NoReturn:
    """A real part is not to be had: the test is skipped, or fails where every real part is required."""
    if os.environ.get("GPUINFRA_REQUIRE_REAL"):
        pytest.fail(reason)
    pytest.skip(reason)
