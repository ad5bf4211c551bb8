"""The program with short periods: what it does every few seconds it does at once, so that tests need not wait."""

import contextlib
import subprocess
from collections.abc import Iterator, Mapping

from tests.e2e.user import User, inherited
from tests.lab import LabUser
from tests.program import Program

PATCH = {
    "gpuinfra.app.lease_renewal.FIRST_SECONDS": 0.5,
    "gpuinfra.app.lease_renewal.LONGEST_SECONDS": 0.5,
    "gpuinfra.runner.heartbeat.PERIOD_SECONDS": 0.2,
    "gpuinfra.runner.link.POWER_SECONDS": 1.0,
}


@contextlib.contextmanager
def start_impatient(
    user: LabUser | User, *words: str, patch: Mapping[str, float] | None = None
) -> "Iterator[subprocess.Popen[str]]":
    """Start the program with short periods, and end it at the latest after the block."""
    more = {"GPUINFRA_CLOUD": "sandbox"} if isinstance(user, User) else {}
    with Program(
        *words,
        cwd=user.workspace,
        env={**inherited(), **user.variables, **more},
        patch={**PATCH, **(patch or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()
