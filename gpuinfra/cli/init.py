"""`gpuinfra init`: a spec to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuinfra.app.files import write_file
from gpuinfra.app.settings import Settings
from gpuinfra.cli.options import begin

DEFAULT = "gpu.yaml"
# In the template, and what it becomes for the embedded Azure.
IN_CONTAINERS = "  type: remotedocker      "
WITHOUT_CONTAINERS = (
    "  # In Azure: remotedocker. On the embedded Azure, containers need a Docker Engine with a GPU on this computer.\n"
    "  type: remote            "
)


def init(
    context: typer.Context,
    path: Annotated[
        Path | None,
        typer.Argument(metavar="PATH", help="File to write, or a directory for gpu.yaml.", show_default=False),
    ] = None,
) -> None:
    """Write a commented starter spec, and beside it the schema that editors check it with."""
    from gpuinfra.load.schema import SCHEMA_FILE, is_ours, schema_text
    from gpuinfra.templates import read_template
    from gpuinfra.views import document, files

    settings = begin(context, reaches_cloud=False)
    spec = _destination(settings, path)
    write_file(spec, starter(read_template("starter.yaml"), sandbox=settings.cloud == "sandbox"), settings)
    written = [spec]
    schema = spec.with_name(SCHEMA_FILE)
    # A schema of ours can be made again at any time; a file that only has its name is somebody's work.
    if not schema.exists() or is_ours(schema):
        write_file(schema, schema_text(), settings, ours=True)
        written.append(schema)
    if settings.json:
        document.show({"files": [str(file) for file in written]})
    else:
        files.show_written(written, hint=f"edit {spec.name}, then: gpuinfra validate {spec}")


def starter(template: str, *, sandbox: bool) -> str:
    """Return the starter spec; on the embedded Azure, one whose jobs run on a computer without Docker too."""
    return template.replace(IN_CONTAINERS, WITHOUT_CONTAINERS) if sandbox else template


def _destination(settings: Settings, path: Path | None) -> Path:
    from gpuinfra.workspace import find_workspace

    if path is None:
        return find_workspace(settings.workspace) / DEFAULT
    return path / DEFAULT if path.is_dir() else path
