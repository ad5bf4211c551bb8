"""Variants: tests of a behaviour that another test shows in another place or with another input.

`make test` runs one test of each behaviour, and `make test-all` the variants too. The summary shows how many were left.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

variant = pytest.mark.variant
"""Marks a test, or one set of its parameters, as a variant."""


def variants(*values: Any, first: int = 1) -> list[Any]:
    """Return the values of a parameter, of which all but the first are variants."""
    return [*values[:first], *(_marked(value) for value in values[first:])]


def _marked(value: Any) -> Any:
    if hasattr(value, "marks"):  # from pytest.param
        return value._replace(marks=[*value.marks, variant])
    return pytest.param(*value, marks=variant) if isinstance(value, tuple) else pytest.param(value, marks=variant)


def without_variants(items: Sequence[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the tests that are not variants, and the variants."""
    chosen = [item for item in items if not item.get_closest_marker("variant")]
    return chosen, [item for item in items if item.get_closest_marker("variant")]


def counts_by_folder(items: Iterable[pytest.Item]) -> dict[str, int]:
    """Return how many of these tests each folder has, such as `tests/e2e`."""
    return dict(Counter("/".join(item.nodeid.split("/")[:2]) for item in items))
