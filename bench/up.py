"""How long `up` takes where Azure takes its time, as a multiple of the operations that must follow one another."""

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
from gpuinfra.sandbox.running import process
from tests.e2e.azure import Azure
from tests.e2e.user import User, inherited
from tests.program import PROGRAM

MOST = 1.10
LONGEST = 600.0


@dataclass(frozen=True)
class Critical:
    """What had to be done one after the other, and how long each took in Azure, in seconds."""

    group: float
    parts: dict[str, float]
    """These at the same time."""
    interface: float
    machine: float

    @property
    def seconds(self) -> float:
        return self.group + max(self.parts.values()) + self.interface + self.machine


def critical(operations: list[dict[str, Any]], requests: list[dict[str, Any]]) -> Critical:
    """By the sandbox's own logs; what was over with its request has no operation."""

    def took(kind: str) -> float:
        found = [each for each in operations if each["action"] == f"{kind}/write"]
        if not found:
            found = [each for each in requests if each["method"] == "PUT" and each["path"].split("/")[-2] == kind]
        (only,) = found
        return _moment(only["end"]) - _moment(only["start"])

    parts = {kind: took(kind) for kind in ("networkSecurityGroups", "virtualNetworks", "publicIPAddresses")}
    return Critical(took("resourcegroups"), parts, took("networkInterfaces"), took("virtualMachines"))


def _moment(text: str) -> float:
    # Seven digits, as Azure has them, are one more than Python reads.
    return datetime.fromisoformat(text[:26] + text[27:]).timestamp()


def measure() -> Sequence[Ratio]:
    """One `up` of a new machine, by the installed program, with operations as long as recorded ones."""
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
            process.stop(azure.folder)
    print(f"up: {took:.2f} s, critical path {path.seconds:.2f} s: {path}", file=sys.stderr, flush=True)
    return [Ratio("up", "the critical path in Azure", took / path.seconds, MOST)]
