"""`--json`: one JSON object on stdout, with its schema version."""

import json
import sys
from typing import Any

from gpuinfra.views.terminal import neutralize_json

SCHEMA_VERSION = 1


def show(payload: dict[str, Any]) -> None:
    """Print the command's JSON object."""
    document = {"schemaVersion": SCHEMA_VERSION, **payload}
    sys.stdout.write(to_text(document, indent=2))


def to_text(document: dict[str, Any], *, indent: int | None = None) -> str:
    """Return JSON in which CI commands are neutralized."""
    return neutralize_json(json.dumps(document, indent=indent, ensure_ascii=True)) + "\n"
