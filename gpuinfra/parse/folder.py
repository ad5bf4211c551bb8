"""Find files that may be specs, without importing what is needed to load them."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from gpuinfra.parse.source import MAX_BYTES

_SUFFIXES = {".yaml", ".yml"}
_SKIPPED = {"node_modules", "__pycache__"}
# Also match misspelt versions: an error is better than an ignored spec.
_SPEC_MENTION = re.compile(rb"""apiVersion["']?\s*:\s*["']?\s*(?:gpu|(?i:gpu-?infra))""")


def yaml_files(directory: Path) -> Iterator[Path]:
    """Return every YAML file below, without hidden folders and those of other tools."""
    for folder, subfolders, names in os.walk(directory):
        subfolders[:] = [name for name in subfolders if not name.startswith(".") and name not in _SKIPPED]
        for name in names:
            if os.path.splitext(name)[1] in _SUFFIXES and (file := Path(folder, name)).is_file():  # noqa: PTH122 quicker
                yield file


def mentions_spec(content: bytes) -> bool:
    """Return whether the content may be a spec."""
    return _SPEC_MENTION.search(content) is not None


def has_spec(directory: Path) -> bool:
    """Return whether any file below may be a spec."""
    return any(_file_mentions_spec(file) for file in yaml_files(directory))


def _file_mentions_spec(file: Path) -> bool:
    try:
        with file.open("rb") as stream:
            return mentions_spec(stream.read(MAX_BYTES + 1))
    except (OSError, ValueError):
        return False
