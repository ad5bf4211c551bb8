"""Suggestions for misspelled words."""

import pytest

from gpuinfra.diagnostics import did_you_mean, listed, nearest

REGIONS = ("southcentralus", "northcentralus", "eastus", "eastus2", "westus")


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("South Central US", "southcentralus"),
        ("southcentalus", "southcentralus"),
        ("EASTUS2", "eastus2"),
        ("estus", "eastus"),
        ("wstus", "westus"),
        ("mars", None),
        ("", None),
        ("--", None),
        ("e" * 200, None),
    ],
)
def test_nearest_word_is_found(word: str, meant: str | None) -> None:
    assert nearest(word, REGIONS) == meant


def test_suggestions_are_formatted() -> None:
    assert did_you_mean("estus", REGIONS) == "did you mean `eastus`?"
    assert did_you_mean("mars", REGIONS) is None
    assert listed(["a"]) == "`a`"
    assert listed(["a", "b", "c"], "and") == "`a`, `b` and `c`"
