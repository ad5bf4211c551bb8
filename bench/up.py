"""Compare the time of `up` with the operations that must follow one another, with realistic operation times."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.ratio import Ratio
from gpuinfra.sandbox import running
from tests.e2e.azure import Azure
from tests.e2e.user import User, inherited
from tests.program import PROGRAM

MOST = 1.10
LONGEST = 600.0


@dataclass(frozen=True)
class Critical:
    """The operations that must follow one another, with their durations in Azure, in seconds."""

    group: float
    parts: dict[str, float]
    """These run in parallel."""
    interface: float
    machine: float

    @property
    def seconds(self) -> float:
        return self.group + max(self.parts.values()) + self.interface + self.machine


def critical(operations: list[dict[str, Any]], requests: list[dict[str, Any]]) -> Critical:
    """Return the durations from the sandbox's logs. What finished with its request has no operation."""

    def took(kind: str) -> float:
        found = [each for each in operations if each["action"] == f"{kind}/write"]
        if not found:
            found = [each for each in requests if each["method"] == "PUT" and each["path"].split("/")[-2] == kind]
        (only,) = found
        return _moment(only["end"]) - _moment(only["start"])

    parts = {kind: took(kind) for kind in ("networkSecurityGroups", "virtualNetworks", "publicIPAddresses")}
    return Critical(took("resourcegroups"), parts, took("networkInterfaces"), took("virtualMachines"))


def _moment(text: str) -> float:
    # Azure has seven digits, one more than Python can parse.
    return datetime.fromisoformat(text[:26] + text[27:]).timestamp()


def measure() -> Sequence[Ratio]:
    """Run one `up` of a new machine with the installed program and operation times as recorded in Azure."""
    with tempfile.TemporaryDirectory(prefix="gpuinfra-bench-") as name:
        folder = Path(name)
        azure = Azure(folder / "sandbox")
        try:
            user = User(azure, folder / "home", folder / "project")
            user.spec()
            azure.control("POST", "profile", {"profile": "realistic"})
            environment = {**inherited(), **user.variables, "GPUINFRA_CLOUD": "sandbox"}
            started = time.monotonic()
            subprocess.run(
                [PROGRAM, "up", "gpu.yaml"], cwd=user.workspace, env=environment, timeout=LONGEST, check=True
            )
            took = time.monotonic() - started
            path = critical(azure.control("GET", "operations")["operations"], azure.control("GET", "log")["requests"])
        finally:
            running.stop(azure.folder)
    print(f"up: {took:.2f} s, critical path {path.seconds:.2f} s: {path}", file=sys.stderr, flush=True)
    return [Ratio("up", "the critical path in Azure", took / path.seconds, MOST)]
