"""An environment that is there."""

from __future__ import annotations

from dataclasses import dataclass

# The first Python on the image's PATH, for those whose environment is the image itself.
FIND_PYTHON = (
    "found=$(command -v python || command -v python3) || "
    '{ echo "gpuinfra: the image has no Python" >&2; exit 127; }; exec "$found" "$@"'
)


@dataclass(frozen=True, slots=True)
class Environment:
    """The image that a job runs in."""

    image: str
    """Its id."""
    tag: str
    """Its name: the base image's own where there was nothing to install."""
    built: bool
    """Whether it was made just now."""
    python: str | None
    """The environment's interpreter; None where the image has its own, if any: `python_of` finds it."""
    seconds: float


def python_of(environment: Environment) -> tuple[str, ...]:
    """The words that start a job's interpreter: its arguments follow. One that is missing is exit code 127."""
    return (environment.python,) if environment.python else ("/bin/sh", "-c", FIND_PYTHON, "python")
