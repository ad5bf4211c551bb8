"""Editing in place over every available real file, and over mappings in unusual styles."""

import re
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuinfra.diagnostics import Problem
from gpuinfra.parse.document import Document, EditError, read_document, written
from gpuinfra.parse.tree import Scalar, Value, data
from gpuinfra.workbench.project import find_projects, load_project
from tests.workbench import FOLDER, files, needs_projects

UNREADABLE = {
    "project-019/earlier/2019-04-03_47a26ffd/aml_config/condadependencies.yml:21:1 invalid-yaml",
    "project-067/aml_config/spark_dependencies.yml:9:25 tab",
}


@cache
def documents() -> tuple[Document, ...]:
    """Every readable file."""
    found = []
    for file in files():
        try:
            found.append(read_document(str(file), file.read_bytes()))
        except Problem:
            continue
    return tuple(found)


def lines(document: Document) -> list[str]:
    return re.findall(r"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+", document.source.text)


@needs_projects
def test_every_file_is_read_or_reported_with_its_place() -> None:
    found = set()
    for file in files():
        try:
            read_document(str(file), file.read_bytes())
        except Problem as problem:
            for diagnostic in problem.diagnostics:
                assert diagnostic.span is not None
                place = Path(diagnostic.span.file).relative_to(FOLDER).as_posix()
                found.add(f"{place}:{diagnostic.span.line}:{diagnostic.span.column} {diagnostic.code.value}")
    assert found == UNREADABLE
    assert len(documents()) == len(files()) - 2 > 300


@needs_projects
def test_unchanged_file_keeps_every_byte() -> None:
    for document in documents():
        assert document.encode() == Path(document.source.name).read_bytes()
        assert document.with_values(**scalars(document)).encode() == document.encode()


def scalars(document: Document) -> dict[str, Value]:
    """Return the top-level keys with scalar values."""
    return {key: node.value for key, node in document.root.items.items() if isinstance(node, Scalar)}


@needs_projects
def test_changed_value_changes_one_line() -> None:
    changed = 0
    for document in documents():
        for key in scalars(document):
            node = document.root.items[key]
            assert isinstance(node, Scalar)
            edited = document.with_values(**{key: "something-else"})
            before, after = lines(document), lines(edited)
            differing = [number for number, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]]
            assert differing == [document.span(node).line - 1]
            # Within the line, only the value changes.
            text, start, end = document.source.text, node.start, node.end
            assert edited.source.text.startswith(text[:start])
            assert edited.source.text.endswith(text[end:])
            assert (
                edited.source.text[start : len(edited.source.text) - len(text) + end].strip(" '\"") == "something-else"
            )
            changed += 1
    assert changed > 500


@needs_projects
def test_added_key_adds_one_line() -> None:
    for document in documents():
        edited = document.with_values(oneMore="value")
        before, after = lines(document), lines(edited)
        if len(before) == 1:
            # JSON on a single line stays on one line.
            assert edited.source.text.replace(', "oneMore": "value"', "") == document.source.text
            continue
        added = next(number for number, line in enumerate(after) if "oneMore" in line)
        rest = after[:added] + after[added + 1 :]
        assert len(after) == len(before) + 1
        # A last line without a newline gets one; a line in braces gets a comma.
        different = [(old, new) for old, new in zip(before, rest, strict=True) if old != new]
        assert all(new.rstrip("\r\n") in {old, f"{old.rstrip()},"} for old, new in different)
        assert len(different) <= 1


@needs_projects
def test_reading_any_project_reports_problems_with_places() -> None:
    projects = [load_project(folder) for folder in find_projects(FOLDER)]
    assert len(projects) > 60
    assert sum(len(project.computes) for project in projects) == len(files(".compute"))
    assert sum(len(project.runconfigs) for project in projects) == len(files(".runconfig"))
    for project in projects:
        for diagnostic in project.diagnostics:
            assert diagnostic.span is not None


# Mappings in unusual styles

WORDS = st.sampled_from(
    [
        "a",
        "b c",
        "yes",
        "1",
        "1e3",
        "~",
        "",
        "é",
        "it's",
        'say "x"',
        "x: y",
        "# x",
        "a #b",
        "*x",
        "- x",
        "\n",
        "\x85",
        "𝄞",
    ]
)
VALUES = WORDS | st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=4)
ENDINGS = st.sampled_from(["\n", "\r\n", "\r"])
REMARKS = st.sampled_from(["", "", " # why", "   # a: 'b'", "  "])


@st.composite
def entries(draw: st.DrawFn) -> dict[str, str]:
    """Keys and values in many spellings."""
    keys = draw(st.lists(WORDS, min_size=1, max_size=4, unique=True))
    return {
        key: draw(st.sampled_from([*NESTED, *(written(draw(VALUES), quote) for quote in ("", "'", '"'))]))
        for key in keys
    }


NESTED = [
    "",
    "|\n  text",
    ">-\n  text\n  more",
    "\n- x\n- y",
    "\n  k: 1\n  l:",
    "[x, y]",
    "{k: [1]}",
    "&n word",
    "x\n  y",
]


@st.composite
def block_mappings(draw: st.DrawFn) -> str:
    text = draw(st.sampled_from(["", "# first\n", "---\n"]))
    for key, value in draw(entries()).items():
        name = written(key, draw(st.sampled_from(["", "'", '"'])))
        remark = "" if "\n" in value else draw(REMARKS)
        text += f"{name}:{'' if value.startswith(chr(10)) else ' '}{value}{remark}\n"
        text += draw(st.sampled_from(["", "", "\n", "# b: 2\n"]))
    text = text if draw(st.booleans()) else text.rstrip("\n")
    return "".join(draw(ENDINGS) if letter == "\n" else letter for letter in text)


@st.composite
def flow_mappings(draw: st.DrawFn) -> str:
    gap = draw(st.sampled_from(["", " ", "\n  ", "\r\n\r\n", " # x\n "]))
    pairs = [f"{written(key)}: {value}" for key, value in draw(entries()).items() if "\n" not in value]
    return f"{{{gap}{f',{gap}'.join(pairs)}{draw(st.sampled_from(['', ',']))}{gap}}}"


@given(block_mappings() | flow_mappings(), WORDS, VALUES)
@settings(max_examples=400, deadline=None)
def test_edit_sets_the_value_or_is_refused(text: str, key: str, value: Value) -> None:
    try:
        document = read_document("any", text.encode())
    except Problem:
        return
    try:
        edited = document.with_values(**{key: value})
    except EditError:
        return
    assert data(edited.root) == {**data(document.root), key: value}
    again = read_document("again", edited.encode())
    assert again.root == edited.root
    old = document.root.items.get(key)
    if isinstance(old, Scalar) and document.source.text[old.start : old.end] == written(old.value):
        assert edited.with_values(**{key: old.value}).encode() == document.encode()


@given(st.binary(max_size=80), WORDS, VALUES)
@settings(max_examples=100, deadline=None)
def test_editing_any_bytes_never_crashes(content: bytes, key: str, value: Value) -> None:
    with suppress(Problem, EditError):
        read_document("any", content).with_values(**{key: value})


@pytest.mark.parametrize("quote", ["", "'", '"'])
@given(value=st.text() | VALUES)
@settings(max_examples=100, deadline=None)
def test_any_value_round_trips_in_any_quotes(quote: str, value: Value) -> None:
    for text in (f"a: {written(value, quote)}\n", f"{{a: {written(value, quote)}}}"):
        assert read_document("any", text.encode()).value("a") == value
