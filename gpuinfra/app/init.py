"""Write a starter spec."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuinfra.app.settings import Settings
from gpuinfra.app.workspace import write_file

if TYPE_CHECKING:
    from gpuinfra.app.frontend import Frontend

DEFAULT = "gpu.yaml"
# The text in the template, and its replacement for the sandbox.
IN_CONTAINERS = "  type: remotedocker      "
WITHOUT_CONTAINERS = (
    "  # In Azure: remotedocker. On the embedded Azure, containers need a Docker Engine with a GPU on this computer.\n"
    "  type: remote            "
)


def init(settings: Settings, path: Path | None, frontend: Frontend) -> list[Path]:
    """Write a commented starter spec and the schema for editors next to it; return both files."""
    from gpuinfra.parse.schema import SCHEMA_FILE, is_ours
    from gpuinfra.templates import read_template

    spec = _destination(settings, path)
    content = starter(read_template("starter.yaml"), sandbox=settings.cloud == "sandbox")
    write_file(spec, content, settings, frontend)
    schema = spec.with_name(SCHEMA_FILE)
    # A schema that gpuinfra wrote can be replaced at any time; any other file with that name is the user's.
    if schema.exists() and not is_ours(schema):
        return [spec]
    write_file(schema, schema_text(), settings, frontend, ours=True)
    return [spec, schema]


def schema_text() -> str:
    """Return the JSON Schema of a spec as text."""
    from gpuinfra.parse import schema

    return schema.schema_text()


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a spec."""
    from gpuinfra.parse import schema

    return schema.json_schema()


def starter(template: str, *, sandbox: bool) -> str:
    """Return the starter spec; for the sandbox, one whose jobs also run on a computer without Docker."""
    return template.replace(IN_CONTAINERS, WITHOUT_CONTAINERS) if sandbox else template


def _destination(settings: Settings, path: Path | None) -> Path:

    if path is None:
        return settings.folder / DEFAULT
    return path / DEFAULT if path.is_dir() else path
