"""`make test` leaves variants out, and its summary counts them."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.variants import counts_by_folder, variants, without_variants


def item(nodeid: str, *, is_variant: bool) -> pytest.Item:
    marker = object() if is_variant else None
    return cast("pytest.Item", SimpleNamespace(nodeid=nodeid, get_closest_marker=lambda name: marker))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (variants("a", "b"), ["a", pytest.param("b", marks=pytest.mark.variant)]),
        (variants(("a", 1), ("b", 2)), [("a", 1), pytest.param("b", 2, marks=pytest.mark.variant)]),
        (variants("a", "b", "c", first=2), ["a", "b", pytest.param("c", marks=pytest.mark.variant)]),
        (variants(1, pytest.param(2, id="two")), [1, pytest.param(2, id="two", marks=[pytest.mark.variant])]),
    ],
)
def test_all_parameters_but_the_first_are_variants(values: list[Any], expected: list[Any]) -> None:
    assert [_plain(each) for each in values] == [_plain(each) for each in expected]


def _plain(value: Any) -> Any:
    return (value.values, [mark.name for mark in value.marks], value.id) if hasattr(value, "marks") else value


def test_variants_are_left_out_and_counted_by_folder() -> None:
    kept, left = item("tests/e2e/test_a.py::test_a[x]", is_variant=False), item("tests/e2e/a.py::b", is_variant=True)
    assert without_variants([left, kept]) == ([kept], [left])
    assert counts_by_folder([left, left, kept, item("tests/unit/a.py::b", is_variant=True)]) == {
        "tests/e2e": 3,
        "tests/unit": 1,
    }


@pytest.mark.variant
def test_this_runs_only_in_test_all_or_by_name(request: pytest.FixtureRequest) -> None:
    is_named = any("::" in argument for argument in request.config.args)
    assert is_named or request.config.getoption("--exhaustive")
