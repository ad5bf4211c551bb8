"""To be written."""

from __future__ import annotations

from collections.abc import Callable

VERBS: dict[str, Callable[..., None]] = {}
