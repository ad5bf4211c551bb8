"""Every error that the model can raise has a message."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gpuinfra.parse.schema import json_schema
from gpuinfra.parse.spec import flow, keys_at, load_bytes
from tests.properties.test_load_properties import BASE

WRONG: tuple[Any, ...] = (True, 0, -1, 10**9, 0.5, "", "x", [], ["x"], [1], {}, {"x": 1}, None)


def places(document: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in document.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from places(value, (*path, key))


@pytest.mark.parametrize("path", [*places(BASE), ("gpu",), ("gpu", "model"), ("gpu", "count")], ids=".".join)
def test_every_wrong_value_has_an_error_message(path: tuple[str, ...]) -> None:
    for wrong in WRONG:
        document: dict[str, Any] = json.loads(json.dumps(BASE))
        if path[0] == "gpu":
            del document["sizes"]
            document["gpu"] = {"model": "T4", "count": 1}
        place = document
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = wrong
        load_bytes("gpu.yaml", json.dumps(document).encode())  # raises where an error has no message


def test_keys_match_the_schema() -> None:
    schema = json_schema()
    assert set(keys_at(())) == set(schema["properties"])
    for name in ("admin", "network", "disk", "target", "lifecycle", "gpu", "spot"):
        field = schema["properties"][name]
        (reference,) = [choice["$ref"] for choice in (field, *field.get("anyOf", ())) if "$ref" in choice]
        definition = reference.rsplit("/", 1)[1]
        assert set(keys_at((name,))) == set(schema["$defs"][definition]["properties"])


def test_examples_in_help_are_valid() -> None:
    schema = json_schema()
    fields = dict(schema["properties"])
    lines = {name: f"{name}: {flow(field['examples'][0])}" for name, field in fields.items()}
    chosen = [lines[name] for name in lines if name not in {"region", "size", "gpu"}]
    loaded = load_bytes("gpu.yaml", "\n".join(chosen).encode())
    assert [diagnostic.summary for diagnostic in loaded.diagnostics] == []
