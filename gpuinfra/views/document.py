"""`--json`: one object on stdout, with the version of its shape."""

from __future__ import annotations

import json
import sys
from typing import Any

SCHEMA_VERSION = 1


def show(payload: dict[str, Any]) -> None:
    """Print the one object of this command."""
    document = {"schemaVersion": SCHEMA_VERSION, **payload}
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=True) + "\n")
