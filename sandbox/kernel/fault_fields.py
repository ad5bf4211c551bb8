"""What a fault may say: every field with its check, and a message that names what is allowed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpuinfra.sandbox.catalogue.catalogue import Catalogue
from gpuinfra.sandbox.kernel.faults import ERRORS, NAMES, OPERATION_ERRORS, READ_ONLY, place_of

METHODS = ("GET", "HEAD", "PUT", "PATCH", "POST", "DELETE")
EVICT = "evict"
LONGEST = 86_400
"""A day, in seconds."""


def checked_fault(fault: Mapping[str, Any], catalogue: Catalogue) -> dict[str, Any]:
    """The fault as it is kept. Raises ValueError for a field that is not known, or a value that it does not take."""
    checks: dict[str, Callable[[str, Any], Any]] = {
        "name": _name,
        "method": _method,
        "type": _text,
        "resource": _text,
        "region": lambda field, value: _region(field, value, catalogue),
        "skip": _whole_number,
        "count": _whole_number,
        "seconds": _seconds,
        "retryAfter": _whole_number,
        "message": _text,
        "operation": _truth,
    }
    unknown = sorted(set(fault) - set(checks))
    if unknown:
        raise ValueError(f"a fault has no field {unknown[0]!r}; there are: {', '.join(checks)}")
    kept = {field: checks[field](field, value) for field, value in {"name": None, **fault}.items()}
    _check_together(kept)
    return kept


def _check_together(fault: Mapping[str, Any]) -> None:
    name = fault["name"]
    if fault.get("operation") and name not in {*ERRORS, *OPERATION_ERRORS, "slow", "never-ends"}:
        raise ValueError(f"operation goes with an error, slow or never-ends, not with {name}")
    if "seconds" in fault and name != "slow":
        raise ValueError(f"seconds goes with slow, not with {name}")
    if "retryAfter" in fault and (name not in ERRORS or fault.get("operation")):
        raise ValueError(f"retryAfter goes with an error that answers a request, not with {name}")
    if "message" in fault and name not in {*ERRORS, *OPERATION_ERRORS}:
        raise ValueError(f"message goes with an error, not with {name}")
    if "skip" in fault and place_of(dict(fault)) == "elsewhere":
        raise ValueError(f"skip goes with a fault of requests or operations, not with {name}")
    narrowed = [field for field in ("method", "type", "resource", "region") if field in fault]
    if name == READ_ONLY and narrowed:
        raise ValueError(f"{narrowed[0]} does not go with {name}: a Reader is one of the whole subscription")
    if name == EVICT and not fault.get("resource"):
        raise ValueError("evict needs resource: the name of a spot machine")


def _name(field: str, value: Any) -> str:
    if value not in NAMES:
        raise ValueError(f"{field} is {value!r}, which is no fault; there are: {', '.join(NAMES)}")
    return str(value)


def _method(field: str, value: Any) -> str:
    if not isinstance(value, str) or value.upper() not in METHODS:
        raise ValueError(f"{field} is {value!r}; it can be: {', '.join(METHODS)}")
    return value.upper()


def _text(field: str, value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 1000:
        raise ValueError(f"{field} must be a text of 1 to 1000 characters")
    return value


def _region(field: str, value: Any, catalogue: Catalogue) -> str:
    region = catalogue.region(_text(field, value))
    if region is None:
        raise ValueError(f"{field} is {value!r}, which is no region of the sandbox's catalogue")
    return str(region.name)


def _whole_number(field: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LONGEST:
        raise ValueError(f"{field} must be a whole number from 0 to {LONGEST}")
    return value


def _seconds(field: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LONGEST:
        raise ValueError(f"{field} must be a number of more than 0 and at most {LONGEST}")
    return float(value)


def _truth(field: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{field} must be true or false")  # noqa: TRY004 one kind of error for all of them
    return value
