"""`--json`: one object on stdout, with the version of its shape."""

from __future__ import annotations

import json
import sys
from typing import Any

from gpuinfra.views.ci_commands import neutralize_json

SCHEMA_VERSION = 1


def show(payload: dict[str, Any]) -> None:
    """Print the one object of this command."""
    document = {"schemaVersion": SCHEMA_VERSION, **payload}
    sys.stdout.write(to_text(document, indent=2))


def to_text(document: dict[str, Any], *, indent: int | None = None) -> str:
    """Return JSON that no CI system takes for a command."""
    return neutralize_json(json.dumps(document, indent=indent, ensure_ascii=True)) + "\n"
