"""Records of runs for tests."""

from datetime import UTC, datetime
from typing import Any

from gpuinfra.models.run import GpuUsage, JobRef, Run, RunState

CREATED = datetime(2026, 11, 16, 12, 15, 30, tzinfo=UTC)
DETAILS: dict[str, Any] = {
    "exit_code": 7,
    "reason": "out of memory",
    "job": JobRef("container", "c0ffee"),
    "git_commit": "ab" * 20,
    "git_dirty": True,
    "spec_digest": "sha256:12",
    "image": "microsoft/mmlspark:plus-gpu-0.9.9",
    "image_digest": "sha256:34",
    "usage": GpuUsage(60, 59.5, 97, 61.25, 10240),
    "environment": ("SEED", "TOKEN"),
    "cost_usd": 0.0123,
    "after_run": "deallocate",
}
"""Fields of a failed container job."""


def make_run(run_id: str = "r1", target: str = "my_dsvm", **fields: Any) -> Run:
    """Return the record of a running job of `train.py` on `target`, with these fields."""
    usual = {
        "type": "remote",
        "configuration": target,
        "command": ("python", "train.py"),
        "state": RunState.RUNNING,
        "created": CREATED,
    }
    return Run(id=run_id, target=target, **{**usual, **fields})
