"""The fenced blocks of the documentation's pages."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Block(NamedTuple):
    """A fenced block: its language, its content, and where it is."""

    language: str
    text: str
    place: str
    """Page and line, as `docs/jobs.md:12`."""
    section: str
    """The heading above it, of level two."""


def blocks(page: str) -> list[Block]:
    """Return the fenced blocks of a page in order."""
    text = (ROOT / page).read_text("utf-8")
    found = []
    for match in re.finditer(r"^```(.*)\n((?:.*\n)*?)^```$", text, re.MULTILINE):
        before = text[: match.start()]
        headings = re.findall(r"^## (.*)$", before, re.MULTILINE)
        place = f"{page}:{before.count(chr(10)) + 1}"
        found.append(Block(match[1], match[2], place, headings[-1] if headings else ""))
    return found
