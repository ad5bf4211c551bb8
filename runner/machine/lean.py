"""Imports that cost more than they give."""

from __future__ import annotations

import sys


def import_paramiko() -> None:
    """Import paramiko without `invoke`, which it has only for reading OpenSSH's settings, and does without.

    That is half of the time that its import takes, of a command that people wait for.
    """
    if "paramiko" in sys.modules or "invoke" in sys.modules:
        return
    sys.modules["invoke"] = None  # type: ignore[assignment] # Python's own word for: there is none
    try:
        import paramiko  # noqa: F401
    finally:
        del sys.modules["invoke"]
