"""Real programs that tests use. A missing one skips the test, or fails it where all are required."""

import os
import shutil
import sys
from pathlib import Path
from typing import NoReturn

import pytest

# Debian installs servers outside a user's PATH.
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def program(name: str, package: str) -> str:
    """Return the path of a program in Debian's `package`."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}:{PATH}")
    return found or missing(f"no `{name}` on this machine: apt-get install {package}")


def missing(reason: str) -> NoReturn:
    """Skip the test because a real part is missing, or fail it where every real part is required."""
    if os.environ.get("GPUINFRA_REQUIRE_REAL"):
        pytest.fail(reason)
    pytest.skip(reason)
