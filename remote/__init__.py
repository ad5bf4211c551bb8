"""The code that runs on the target machine.

Each connection sends these modules as text (`runner.connection.remote_client`). The guest agent in `agent` is installed
once, as an archive (`provision.login`). Both need only Python 3.8 or newer and its standard library, and import nothing
else from gpuinfra.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from typing import Any


class Importer:
    """Imports modules from their source text. A module is compiled when a call first needs it."""

    def __init__(self, texts: dict[str, str]) -> None:
        self._texts = texts

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of a module, or None if its text was not sent."""
        return ModuleSpec(name, self) if name in self._texts else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python create the module object."""

    def exec_module(self, module: Any) -> None:
        """Run the module's text."""
        name = module.__name__
        exec(compile(self._texts[name], name, "exec"), module.__dict__)  # noqa: S102 our own code, as it was sent


def install(texts: dict[str, str]) -> None:
    """Make these texts importable, by module name."""
    sys.meta_path.insert(0, Importer(texts))
