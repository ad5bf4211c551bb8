"""`gpuinfra schema`: the spec language as JSON Schema."""

from __future__ import annotations

import typer

from gpuinfra.cli.options import begin


def schema(context: typer.Context) -> None:
    """Print the JSON Schema of a spec, for editors; it accepts what validate accepts."""
    from gpuinfra.app.init import json_schema, schema_text
    from gpuinfra.views import document

    if begin(context, reaches_cloud=False).json:
        document.show({"schema": json_schema()})
    else:
        typer.echo(schema_text(), nl=False)
