"""What the options that every command has say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Settings:
    """The options that hold for a whole command or API call."""

    json: bool
    yes: bool
    verbose: bool
    cloud: Literal["azure", "sandbox"]
    workspace: Path
    correlation_id: str
