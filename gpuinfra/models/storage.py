"""What gpuinfra keeps on a machine: runs, copies of projects, environments, images and caches."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpuinfra.models.json_values import exact_stamp

IMAGE = "image"


@dataclass(frozen=True, slots=True)
class StoredItem:
    """Something that gpuinfra keeps on a machine."""

    kind: str
    """`run`, `copy`, `environment`, `image`, `cache`, or `leftover` of an interrupted removal or installation."""
    name: str
    size: int
    """The bytes that its removal frees."""
    used: datetime | None
    """When a job used it last; None if that is unknown."""
    kept: str = ""
    """Why it stays; empty if it can be removed."""

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "name": self.name,
            "size": self.size,
            "used": exact_stamp(self.used),
            "kept": self.kept or None,
        }
