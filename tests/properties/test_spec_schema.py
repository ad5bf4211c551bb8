"""The JSON Schema of specs agrees with the loader on every case."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from gpuinfra.diagnostics import Code, Diagnostic, Problem
from gpuinfra.parse.schema import json_schema
from gpuinfra.parse.source import decode
from gpuinfra.parse.spec import load_bytes
from gpuinfra.parse.tree import data, read
from tests.cases import content
from tests.properties.test_spec_cases import BAD, GOOD, name_of

SCHEMA = Draft202012Validator(json_schema())


def complaints_of_meaning(diagnostics: list[Diagnostic]) -> list[Diagnostic]:
    # Tags that differ only in case are one tag to Azure; JSON Schema cannot express that.
    return [diagnostic for diagnostic in diagnostics if diagnostic.code != Code.DUPLICATE_KEY]


def documents(case: Path) -> list[Any]:
    """Return the documents that a schema can check: none where the text itself is invalid."""
    try:
        reading = read(decode("gpu.yaml", content(case)))
    except Problem:
        return []
    plain = [data(document) for document in reading.documents if data(document) is not None]
    # JSON has lists, not tuples.
    return [] if reading.diagnostics else [json.loads(json.dumps(document)) for document in plain]


@pytest.mark.parametrize("case", [case for case in GOOD + BAD if documents(case)], ids=name_of)
def test_schema_and_loader_agree_on_every_case(case: Path) -> None:
    verdicts = [SCHEMA.is_valid(document) for document in documents(case)]
    loaded = load_bytes("gpu.yaml", content(case))
    assert all(verdicts) == (not complaints_of_meaning(loaded.diagnostics))


def test_only_text_cases_are_skipped_by_the_schema() -> None:
    unseen = {case.stem for case in GOOD + BAD if not documents(case)}
    about_text = {stem for stem in unseen if stem.startswith(("text-", "yaml1", "number-"))}
    assert unseen - about_text == {"many-problems", "syntax-in-second-document"}
