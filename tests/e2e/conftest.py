"""The installed program, run as a user would."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAM = Path(sys.executable).with_name("gpuinfra")

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run `gpuinfra` in an empty folder, with nothing of this shell's own settings."""

    def run(*arguments: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        return subprocess.run(
            [PROGRAM, *arguments],
            cwd=tmp_path,
            env={**kept, **variables},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run
