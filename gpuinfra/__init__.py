"""GPU machines in Azure from a YAML file in git: the Python API. `docs/api.md` describes it.

Names are imported when they are first used, so `import gpuinfra` costs nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuinfra.api import (
        Machine,
        Plan,
        Problem,
        Receipt,
        Run,
        Spec,
        Target,
        down,
        load,
        machine,
        plan,
        reap,
        run,
        status,
        submit,
        up,
        validate,
    )

__version__ = "0.1.0"

__all__ = [
    "Machine",
    "Plan",
    "Problem",
    "Receipt",
    "Run",
    "Spec",
    "Target",
    "down",
    "load",
    "machine",
    "plan",
    "reap",
    "run",
    "status",
    "submit",
    "up",
    "validate",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gpuinfra import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
