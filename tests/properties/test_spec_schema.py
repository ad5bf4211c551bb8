"""The JSON Schema of specs says of every case what the loader says."""

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
    # Tags that differ only in case are one tag to Azure; JSON Schema has no word for that.
    return [diagnostic for diagnostic in diagnostics if diagnostic.code != Code.DUPLICATE_KEY]


def documents(case: Path) -> list[Any]:
    """The documents that a schema gets to see: none where the text itself is at fault."""
    try:
        reading = read(decode("gpu.yaml", content(case)))
    except Problem:
        return []
    plain = [data(document) for document in reading.documents if data(document) is not None]
    # JSON knows lists, not tuples.
    return [] if reading.diagnostics else [json.loads(json.dumps(document)) for document in plain]


@pytest.mark.parametrize("case", [case for case in GOOD + BAD if documents(case)], ids=name_of)
def test_the_schema_accepts_and_rejects_what_the_loader_does(case: Path) -> None:
    verdicts = [SCHEMA.is_valid(document) for document in documents(case)]
    loaded = load_bytes("gpu.yaml", content(case))
    assert all(verdicts) == (not complaints_of_meaning(loaded.diagnostics))


def test_only_cases_about_the_text_are_kept_from_the_schema() -> None:
    unseen = {case.stem for case in GOOD + BAD if not documents(case)}
    about_text = {stem for stem in unseen if stem.startswith(("text-", "yaml1", "number-"))}
    assert unseen - about_text == {"many-problems", "syntax-in-second-document"}
