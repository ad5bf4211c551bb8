"""Targets whose jobs use a Python that is there already."""

from __future__ import annotations

from gpuinfra.workbench.compute import LOCAL, REMOTE


def note_for(target_type: str, path: str = "conda_dependencies.yml") -> str | None:
    """What to say of the file where jobs run without a container; None where it is used."""
    whose = {LOCAL: "this computer's", REMOTE: "the machine's"}.get(target_type)
    return f"`{path}` is not used: a `{target_type}` target has {whose} own Python and packages" if whose else None
