"""Measure how long `reap` takes to stop 50 of 5,000 machines with realistic operation times."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.ratio import Ratio
from gpuinfra.sandbox import running
from tests.e2e.azure import Azure
from tests.e2e.test_reap_many import ALL, OVER, fill
from tests.e2e.user import User, inherited
from tests.program import PROGRAM

MOST_SECONDS = 60.0


def measure() -> Sequence[Ratio]:
    """Run one `reap` with the installed program and operation times as recorded in Azure."""
    with tempfile.TemporaryDirectory(prefix="gpuinfra-bench-") as name:
        folder = Path(name)
        fill(folder / "sandbox", ALL)
        azure = Azure(folder / "sandbox")
        try:
            user = User(azure, folder / "home", folder / "project", key=False)
            azure.control("POST", "profile", {"profile": "realistic"})
            environment = {**inherited(), **user.variables, "GPUINFRA_CLOUD": "sandbox"}
            started = time.monotonic()
            subprocess.run(
                [PROGRAM, "reap"], cwd=user.workspace, env=environment, timeout=600, check=True, stdout=sys.stderr
            )
            took = time.monotonic() - started
        finally:
            running.stop(azure.folder)
    print(f"reap: stopped {OVER} of {ALL} machines in {took:.1f} s", file=sys.stderr, flush=True)
    return [Ratio("reap 50 of 5,000", "one minute", took / MOST_SECONDS, 1.0)]
