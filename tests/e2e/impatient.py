"""The program with less patience: what it does every few seconds it does at once, so that a test need not wait."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator

from tests.e2e.user import User, inherited
from tests.lab import LabUser

SOURCE = """
import sys
import gpuinfra.cli.renewing, runner.attending, runner.machine.link
gpuinfra.cli.renewing.FIRST_SECONDS = gpuinfra.cli.renewing.LONGEST_SECONDS = 0.5
runner.attending.PERIOD_SECONDS = 0.2
runner.machine.link.POWER_SECONDS = 1.0
sys.argv[0] = "gpuinfra"
from gpuinfra.cli.main import program
sys.exit(program())
"""


@contextlib.contextmanager
def impatient(user: LabUser | User, *words: str) -> "Iterator[subprocess.Popen[str]]":
    """It, on its way, for as long as this takes at most."""
    more = {"GPUINFRA_CLOUD": "sandbox"} if isinstance(user, User) else {}
    process = subprocess.Popen(
        ["env", "--default-signal=INT", sys.executable, "-c", SOURCE, *words],
        cwd=user.workspace,
        env={**inherited(), **user.variables, **more},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(timeout=10)
        for stream in (process.stdout, process.stderr):
            if stream:
                stream.close()
