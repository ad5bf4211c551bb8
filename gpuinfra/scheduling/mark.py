"""Whether a text is as we wrote it: its first line has the digest of all others."""

from __future__ import annotations

import hashlib
import re

_LINE = re.compile(r"# Made by `gpuinfra schedule` \(([0-9a-f]{16})\)\..*")


def marked(text: str) -> str:
    """The text under its first line."""
    return (
        f"# Made by `gpuinfra schedule` ({_digest(text)}). It will not overwrite what you change here unasked.\n{text}"
    )


def is_untouched(text: str) -> bool:
    """Whether nobody has changed it since."""
    first, _, rest = text.partition("\n")
    found = _LINE.fullmatch(first)
    return found is not None and found[1] == _digest(rest)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]
