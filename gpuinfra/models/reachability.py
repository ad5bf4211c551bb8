"""Whether a machine answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Reachability:
    """Whether SSH answers at a target, and what is wrong if it does not."""

    state: Literal["yes", "other-key", "no"]
    """`yes` is with the host key that is expected, where one is."""
    detail: str = ""
