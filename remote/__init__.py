"""The remote side: what runs on the machine that jobs are sent to.

Its modules are sent as text with each connection (`runner.connection.remote_client`); `agent` is installed once as an
archive (`provision.login.agent_archive`). They need nothing but Python 3.8 or newer and its standard library. They
import each other, and nothing else of gpuinfra.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from typing import Any


class Importer:
    """Finds modules in texts, so that only those are compiled that a call needs."""

    def __init__(self, texts: dict[str, str]) -> None:
        self._texts = texts

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the module of this name, if its text was sent."""
        return ModuleSpec(name, self) if name in self._texts else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """As Python makes any."""

    def exec_module(self, module: Any) -> None:
        """Fill it."""
        name = module.__name__
        exec(compile(self._texts[name], name, "exec"), module.__dict__)  # noqa: S102 our own code, as it was sent


def install(texts: dict[str, str]) -> None:
    """From now on these are modules."""
    sys.meta_path.insert(0, Importer(texts))
