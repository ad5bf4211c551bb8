"""The JSON Schema of specs, for editors. It accepts the same documents as the loader.

Only the loader checks what parsing removes: syntax, duplicate keys, ambiguous values.
"""

import json
from pathlib import Path
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from gpuinfra.models.sizes import GPU_MODELS
from gpuinfra.models.spec import Spec
from gpuinfra.parse.rules import RULES

SCHEMA_ID = "urn:gpuinfra:v1:spec"
SCHEMA_FILE = "gpuinfra.schema.json"
"""The file name in the first line of a starter spec."""


def schema_text() -> str:
    """Return the content of the schema file."""
    return json.dumps(json_schema(), indent=2) + "\n"


def is_ours(file: Path) -> bool:
    """Return whether gpuinfra wrote this schema file."""
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.get("$id") == SCHEMA_ID


def json_schema() -> dict[str, Any]:
    """Return the schema of one document."""
    generated = Spec.model_json_schema(by_alias=True, mode="validation")
    schema: dict[str, Any] = {
        "$schema": GenerateJsonSchema.schema_dialect,
        "$id": SCHEMA_ID,
        "title": "gpuinfra spec",
        **{key: value for key, value in _tidied(generated).items() if key not in {"title", "required"}},
    }
    _add_short_forms(schema)
    schema["required"] = ["apiVersion", "name"]
    for rule in RULES:
        _mapping_at(schema, rule.place).setdefault("allOf", []).append(rule.schema)
    gpu = schema["properties"]["gpu"]
    gpu["anyOf"] = [{"enum": list(GPU_MODELS), "description": "Short for gpu.model."}, {"$ref": gpu.pop("$ref")}]
    return schema


def _add_short_forms(schema: dict[str, Any]) -> None:
    properties = schema["properties"]
    for short, full in (("region", "regions"), ("size", "sizes")):
        properties[short] = {
            **properties[full]["items"],
            "description": f"Short for {full} with one entry.",
            "examples": properties[full]["examples"][0][:1],
        }


def _mapping_at(schema: dict[str, Any], place: str) -> dict[str, Any]:
    found = schema
    for key in place.split(".") if place else ():
        found = schema["$defs"][found["properties"][key]["$ref"].rsplit("/", 1)[1]]
    return found


def _tidied(node: Any) -> Any:
    """Return the schema without generated titles and without `null`: no key of a spec can be empty."""
    if isinstance(node, list):
        return [_tidied(item) for item in node]
    if not isinstance(node, dict):
        return node
    tidied = {key: _tidied(value) for key, value in node.items() if not (key == "title" and isinstance(value, str))}
    if tidied.get("default", ...) is None:
        del tidied["default"]
    if {"type": "null"} in tidied.get("anyOf", []):
        choices = [choice for choice in tidied.pop("anyOf") if choice != {"type": "null"}]
        tidied = {**(choices[0] if len(choices) == 1 else {"anyOf": choices}), **tidied}
    return tidied
