"""Which files of a folder may hold specs: found quickly, before anything is needed to read one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from gpuinfra.parse.source import LARGEST

_SUFFIXES = {".yaml", ".yml"}
_SKIPPED = {"node_modules", "__pycache__"}
# Any mention will do, a misspelt version as well: better one complaint too many than a spec passed over.
_OURS = re.compile(rb"""apiVersion["']?\s*:\s*["']?\s*(?:gpu|(?i:gpu-?infra))""")


def yaml_files(directory: Path) -> Iterator[Path]:
    """Every YAML file below it, but for hidden folders and those of other tools."""
    for folder, subfolders, names in os.walk(directory):
        subfolders[:] = [name for name in subfolders if not name.startswith(".") and name not in _SKIPPED]
        for name in names:
            if os.path.splitext(name)[1] in _SUFFIXES and (file := Path(folder, name)).is_file():  # noqa: PTH122 quicker
                yield file


def is_ours(content: bytes) -> bool:
    """Whether it may be a spec."""
    return _OURS.search(content) is not None


def has_spec(directory: Path) -> bool:
    """Whether any file below it may be one."""
    return any(_may_be_ours(file) for file in yaml_files(directory))


def _may_be_ours(file: Path) -> bool:
    try:
        with file.open("rb") as stream:
            return is_ours(stream.read(LARGEST + 1))
    except (OSError, ValueError):
        return False
