"""How long `up` takes where Azure takes its time: hardly longer than the operations that have to follow one another."""

import sys
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest

from tests.e2e.azure import Azure
from tests.e2e.user import User

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


@pytest.mark.alone
@pytest.mark.timeout(LONGEST + 60)
def test_up_takes_hardly_longer_than_azure(azure: Azure, user: User, capsys: pytest.CaptureFixture[str]) -> None:
    azure.control("POST", "profile", {"profile": "realistic"})
    started = time.monotonic()
    program = user.start("up", "gpu.yaml")
    out, err = program.communicate(timeout=LONGEST)
    took = time.monotonic() - started
    assert program.returncode == 0, out + err
    path = critical(azure.control("GET", "operations")["operations"], azure.control("GET", "log")["requests"])
    ratio = took / path.seconds
    with capsys.disabled():
        sys.stdout.write(f"\n`up` took {took:.2f} s, {ratio:.3f} x the critical path of {path.seconds:.2f} s: {path}\n")
    assert ratio <= MOST, err
