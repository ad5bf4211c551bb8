"""`gpuinfra schema`: print the JSON Schema of specs."""

from __future__ import annotations

import typer

from gpuinfra.cli.options import start_command


def schema(context: typer.Context) -> None:
    """Print the JSON Schema of specs, for editors."""
    from gpuinfra.app.init import json_schema, schema_text
    from gpuinfra.views import json_output

    if start_command(context, reaches_cloud=False).json:
        json_output.show({"schema": json_schema()})
    else:
        typer.echo(schema_text(), nl=False)
