"""What travels to a target: it needs Python 3.8 and nothing else, and every verb is where it is looked for."""

import ast
import sys
from importlib import import_module
from pathlib import Path

import pytest

from gpuinfra.remote.main import MODULES

ROOT = Path(__file__).parents[3] / "remote"
FILES = sorted(ROOT.rglob("*.py"))
# What Python 3.8 does not have, of what one is tempted to use here.
NEWER = {"removeprefix", "removesuffix", "UTC", "batched", "pairwise", "file_digest", "zoneinfo", "tomllib"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_python_3_8_reads_it(file: Path) -> None:
    tree = ast.parse(file.read_text(), feature_version=(3, 8))
    words = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    words |= {each.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for each in node.names}
    assert not words & NEWER
    # Only then are annotations never looked at, which are written as in later versions.
    assert file.name == "__init__.py" or "from __future__ import annotations" in file.read_text()


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_it_needs_the_standard_library_alone(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text())):
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            assert name.startswith("gpuinfra.remote") or name.partition(".")[0] in sys.stdlib_module_names, name


def test_every_verb_is_where_it_is_looked_for() -> None:
    found = {
        verb: name
        for name in (f"gpuinfra.remote.{file.stem}" for file in sorted(ROOT.glob("*.py")) if file.stem != "__init__")
        for verb in getattr(import_module(name), "VERBS", {})
    }
    assert found == MODULES
