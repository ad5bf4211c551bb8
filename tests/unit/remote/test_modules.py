"""Code for the target needs only Python 3.8, and every verb names a function that exists."""

import ast
import sys
from importlib import import_module
from pathlib import Path

import pytest

from gpuinfra.remote.main import VERBS

ROOT = Path(__file__).parents[3] / "remote"
FILES = sorted(ROOT.rglob("*.py"))
# Names that Python 3.8 does not have.
NEWER = {"removeprefix", "removesuffix", "UTC", "batched", "pairwise", "file_digest", "zoneinfo", "tomllib"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_file_is_valid_python_3_8(file: Path) -> None:
    tree = ast.parse(file.read_text(), feature_version=(3, 8))
    words = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    words |= {each.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for each in node.names}
    assert not words & NEWER
    # Annotations use newer syntax, so they must not be evaluated.
    assert file.name == "__init__.py" or "from __future__ import annotations" in file.read_text()


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_file_imports_only_the_standard_library(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text())):
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            assert name.startswith("gpuinfra.remote") or name.partition(".")[0] in sys.stdlib_module_names, name


@pytest.mark.parametrize("verb", VERBS)
def test_verb_has_a_function(verb: str) -> None:
    module, function = VERBS[verb]
    assert callable(getattr(import_module(f"gpuinfra.remote.{module}"), function))
