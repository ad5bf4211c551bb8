"""Checks of the fields that the control endpoints receive. Each raises ValueError and says what is wrong."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpuinfra.sandbox.catalogue.catalogue import Catalogue

Check = Callable[[str, Any], Any]
"""Returns the value of a field, given its name and what was received."""


def read_fields(
    payload: Mapping[str, Any], checks: Mapping[str, Check], required: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the checked fields of a payload. A required field that is missing is checked as None."""
    unknown = sorted(set(payload) - set(checks))
    if unknown:
        raise ValueError(f"no such field: {unknown[0]!r}; there are: {', '.join(checks) or 'none'}")
    return {name: checks[name](name, value) for name, value in {**dict.fromkeys(required), **payload}.items()}


def text(name: str, value: Any) -> str:
    """Check a string of 1 to 1000 characters."""
    if not isinstance(value, str) or not 0 < len(value) <= 1000:
        raise ValueError(f"{name} must be a text of 1 to 1000 characters")
    return value


def boolean(name: str, value: Any) -> bool:
    """Check a boolean."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false")  # noqa: TRY004 one kind of error for all of them
    return value


def number(name: str, value: Any) -> float:
    """Check a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= 1e15:
        raise ValueError(f"{name} must be a number")
    return float(value)


def positive(most: float) -> Check:
    """Return the check of a number above 0."""

    def check(name: str, value: Any) -> float:
        if not 0 < (checked := number(name, value)) <= most:
            raise ValueError(f"{name} must be more than 0 and at most {most}")
        return checked

    return check


def whole_number(most: int) -> Check:
    """Return the check of a whole number from 0."""

    def check(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            raise ValueError(f"{name} must be a whole number from 0 to {most}")
        return value

    return check


def one_of(choices: Sequence[str], *, any_case: bool = False) -> Check:
    """Return the check of a choice."""
    known = {each.lower() if any_case else each: each for each in choices}

    def check(name: str, value: Any) -> str:
        found = known.get(value.lower() if any_case else value) if isinstance(value, str) else None
        if found is None:
            raise ValueError(f"{name} is {value!r}; it can be: {', '.join(choices)}")
        return found

    return check


def region(catalogue: Catalogue) -> Check:
    """Return the check of a region, which returns its name in Azure's own spelling."""

    def check(name: str, value: Any) -> str:
        found = catalogue.region(text(name, value)) if value is not None else None
        if found is None:
            raise ValueError(f"{name} is {value!r}; no region in the sandbox's catalogue has this name")
        return found.name

    return check
