"""Documents that are edited in place: only the requested value changes, or the edit is refused."""

import codecs

import pytest

from gpuinfra.diagnostics import Code, Problem
from gpuinfra.parse.document import Document, Edit, EditError, read_document, written
from gpuinfra.parse.tree import Sequence, Value, data


def document(text: str | bytes) -> Document:
    return read_document("my.compute", text.encode() if isinstance(text, str) else text)


def edit(text: str, **values: Value) -> str:
    """Return the text after the change, and check that all other values are unchanged."""
    before = document(text)
    after = before.with_values(**values)
    assert data(after.root) == {**data(before.root), **values}
    assert read_document("again", after.encode()).root == after.root
    return after.source.text


def refuse(text: str, **values: Value) -> str:
    before = document(text)
    with pytest.raises(EditError) as caught:
        before.with_values(**values)
    assert before.source.text == text
    return str(caught.value)


# Values


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a: old\n", "a: new\n"),
        ("a: 'old'\n", "a: 'new'\n"),
        ('a: "old"\n', 'a: "new"\n'),
        ('"a": "old"\n', '"a": "new"\n'),
        ("a:    old   \nb: 1\n", "a:    new   \nb: 1\n"),
        ("a: old  # why\nb: 1\n", "a: new  # why\nb: 1\n"),
        ("a: 'old'  # 'why'\n", "a: 'new'  # 'why'\n"),
        ("# a: older\na: old\n# a: oldest\n", "# a: older\na: new\n# a: oldest\n"),
        ("a: old\r\nb: 1\r\n", "a: new\r\nb: 1\r\n"),
        ("a: old\r\nb: 1\nc: 2\r\n", "a: new\r\nb: 1\nc: 2\r\n"),
        ("a: old\rb: 1\r", "a: new\rb: 1\r"),
        ("a: old", "a: new"),
        ("b: 1\na: old", "b: 1\na: new"),
        ("---\na: old\n...\n", "---\na: new\n...\n"),
        ("--- # first\na: old\n", "--- # first\na: new\n"),
        ("%YAML 1.1\n---\na: old\n", "%YAML 1.1\n---\na: new\n"),
        ("  a: old\n  b: 1\n", "  a: new\n  b: 1\n"),
        ("b:\n  a: inner\na: old\n", "b:\n  a: inner\na: new\n"),
        ("a: old\n  and more\nb: 1\n", "a: new\nb: 1\n"),
        ("a: 'old\n  and more'\nb: 1\n", "a: 'new'\nb: 1\n"),
        ("a:\n  old\nb: 1\n", "a:\n  new\nb: 1\n"),
        ("? a\n: old\nb: 1\n", "? a\n: new\nb: 1\n"),
        ("a: 1e3\nb: 1\n", "a: new\nb: 1\n"),
        ("é: ü\na: old # ñ𝄞\nb: 𝄞\n", "é: ü\na: new # ñ𝄞\nb: 𝄞\n"),
    ],
)
def test_value_is_replaced_in_place(before: str, after: str) -> None:
    assert edit(before, a="new") == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a:\nb: 1\n", "a: new\nb: 1\n"),
        ("a: \nb: 1\n", "a: new \nb: 1\n"),
        ("a:   # why\nb: 1\n", "a: new   # why\nb: 1\n"),
        ("a:", "a: new"),
        ("a: null\n", "a: new\n"),
        ("a: ~ # why\n", "a: new # why\n"),
        ("a: ''\n", "a: 'new'\n"),
        ("{a: , b: 1}\n", "{a: new , b: 1}\n"),
        ('{"a":}\n', '{"a": new}\n'),
    ],
)
def test_empty_value_is_filled(before: str, after: str) -> None:
    assert edit(before, a="new") == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a: [VM FQDN]\nb: 1\n", "a: new\nb: 1\n"),
        ("a: [1,\n  2] # why\nb: 1\n", "a: new # why\nb: 1\n"),
        ("a: {k: 1}\r\nb: 1\r\n", "a: new\r\nb: 1\r\n"),
        ("a:\n- 1\n- 2\nb: 1\n", "a: new\nb: 1\n"),
        ("a:\r\n  - 1\r\n  - 2\r\nb: 1\r\n", "a: new\r\nb: 1\r\n"),
        ("a:\n- 1\n-\nb: 1\n", "a: new\nb: 1\n"),
        ("a:\n- 1", "a: new"),
        ("a:\n  k: 1\n  l:\nb: 1\n", "a: new\nb: 1\n"),
        ("a:\n- |\n  text\nb: 1\n", "a: new\nb: 1\n"),
        ("'a':\n- 1\n# the next\nb: 1\n", "'a': new\n# the next\nb: 1\n"),
    ],
)
def test_value_replaces_a_list_or_a_mapping(before: str, after: str) -> None:
    assert edit(before, a="new") == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a: |\n  old\n  older\nb: 1\n", "a: new\nb: 1\n"),
        ("a: >-\n  old\n\n# the next\nb: 1\n", "a: new\n\n# the next\nb: 1\n"),
        ("a: |+\r\n  old\r\n\r\n", "a: new\r\n\r\n"),
        ("a: |\n  old\n", "a: new\n"),
        ("a: |\n  old", "a: new"),
    ],
)
def test_value_replaces_a_block_and_keeps_the_lines_below(before: str, after: str) -> None:
    assert edit(before, a="new") == after


def test_edit_that_would_lose_a_comment_is_refused() -> None:
    assert "comment after `a`" in refuse("a: # why\n  - 1\nb: 1\n", a="new")
    assert "comment after `a`" in refuse("a:\n  # why\n  - 1\nb: 1\n", a="new")


@pytest.mark.parametrize("key", ["a:b", "it's", 'say "x"', "a b", "true", "<<", "#x", ""])
def test_keys_of_any_kind_are_edited(key: str) -> None:
    for quoted in (written(key, "'"), written(key, '"')):
        text = f"{quoted}: old\nb: 1\n"
        assert edit(text, **{key: "new"}) == text.replace("old", "new")
        assert edit(f"{quoted}:\n- 1\nb: 1\n", **{key: "new"}) == f"{quoted}: new\nb: 1\n"
    assert edit("b: 1\n", **{key: "new"}).endswith(": new\n")


def test_equal_value_is_not_a_change() -> None:
    for text, value in (("a: yes\n", True), ("a: 'x'\n", "x"), ("a: 0x10\n", 16), ("a:\n", None), ("a: ~\n", None)):
        assert document(text).setting("a", value) == ()
        assert edit(text, a=value) == text
    assert edit("a: 1\n", a=True) == "a: true\n"
    assert edit("a: 'yes'\n", a=True) == "a: true\n"
    assert edit("a: yes\n", a="yes") == 'a: "yes"\n'


# Quoting


PLAIN = [
    "new",
    "a b",
    "host.example.com:2222",
    "~/.azureml/share/",
    "microsoft/mmlspark:plus-gpu-0.9.9",
    "$file",
    "x:y",
    "\\",
]
QUOTED = [
    *("yes", "no", "on", "true", "null", "~", "1", "1e3", "0x10", "010", "1_000", ".5", "22:30", "2017-01-01", "="),
    *("a: b", "a:", "# x", "a # b", "*x", "&x", "-x", "- x", "@x", "!x", "%x", "|", ">", "? x", "`x", "a,b", "[x]"),
    *("", " a", "a ", "é", "𝄞", "a\nb", "a\r\nb", "\t", "'", '"', "it's", "\\n'", "---", "\x07", "\x7f", "\x85"),
    *("\u2028", "\ufeff", "\U000e0001"),
]
STYLES = [
    "a: 1\nb: 2\n",
    "a: 'x'\nb: 2\n",
    'a: "x"\nb: 2\n',
    "{a: 1, b: 2}\n",
    "{'a': 'x', b: 2}",
    '{"a": "x"}',
    "b: 2\n",
]


@pytest.mark.parametrize("value", [*PLAIN, *QUOTED, None, True, False, 0, -3, 1.5, 10**20])
def test_every_value_round_trips_in_every_style(value: Value) -> None:
    for text in STYLES:
        edited = edit(text, a=value)
        assert edited.count("\n") == text.count("\n") + ("a" not in text)


@pytest.mark.parametrize("value", PLAIN)
def test_plain_value_gets_no_quotes(value: str) -> None:
    assert written(value) == value


@pytest.mark.parametrize("value", QUOTED)
def test_ambiguous_value_gets_quotes(value: str) -> None:
    assert written(value)[0] == '"'


def test_single_quotes_are_kept_where_possible() -> None:
    assert edit("a: 'x'\n", a="it's") == "a: 'it''s'\n"
    assert edit("a: 'x'\n", a="two\nlines") == 'a: "two\\nlines"\n'


@pytest.mark.parametrize("value", ["\ud800", float("inf"), float("nan"), 1e300])
def test_value_that_yaml_cannot_express_is_refused(value: Value) -> None:
    for text in STYLES:
        refuse(text, a=value)


# New keys


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a: 1\n", "a: 1\nnew: x\n"),
        ("a: 1", "a: 1\nnew: x"),
        ("a: 1\r\nb: 2", "a: 1\r\nb: 2\r\nnew: x"),
        ("a: 1\nb: 2\r\n", "a: 1\nb: 2\r\nnew: x\r\n"),
        ("'a': 1\n", "'a': 1\n'new': 'x'\n"),
        ('"a": "1"\n', '"a": "1"\n"new": "x"\n'),
        ("  a: 1\n  b: 2\n", "  a: 1\n  b: 2\n  new: x\n"),
        ("a: |\n  text\n", "a: |\n  text\nnew: x\n"),
        ("a: |\r\n  text\r\n", "a: |\r\n  text\r\nnew: x\r\n"),
        ("a: |+\n  text\n\n\n", "a: |+\n  text\n\n\nnew: x\n"),
        ("a: >-\n  text\n# end\n", "a: >-\n  text\nnew: x\n# end\n"),
        ("a:\n- 1\n- 2\n", "a:\n- 1\n- 2\nnew: x\n"),
        ("a:\n- 1\n-\n", "a:\n- 1\n-\nnew: x\n"),
        ("a:\n  b:\n    c: 1 # why\n", "a:\n  b:\n    c: 1 # why\nnew: x\n"),
        ("a: [1,\n  2]\n", "a: [1,\n  2]\nnew: x\n"),
        ("a:\n", "a:\nnew: x\n"),
        ("a: # why\n", "a: # why\nnew: x\n"),
        ("a: 1 # why", "a: 1 # why\nnew: x"),
        ("a: 1\n\n\n# b: 2\n", "a: 1\nnew: x\n\n\n# b: 2\n"),
        ("a: 1\n# b: 2", "a: 1\nnew: x\n# b: 2"),
        ("---\na: 1\n...\n", "---\na: 1\nnew: x\n...\n"),
        ("a: &x 1\nb: *x\n", "a: &x 1\nb: *x\nnew: x\n"),
    ],
)
def test_key_is_added_after_the_last_one(before: str, after: str) -> None:
    assert edit(before, new="x") == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{}\n", "{new: x}\n"),
        ("{ }", "{ new: x}"),
        ("{\n}\n", "{\nnew: x}\n"),
        ("--- {} # why\n", "--- {new: x} # why\n"),
        ("{a: 1}", "{a: 1, new: x}"),
        ("{a: 1,}", "{a: 1, new: x}"),
        ("{a: , b}", "{a: , b, new: x}"),
        ("{a: &x 1, b: *x}", "{a: &x 1, b: *x, new: x}"),
        ('{"a": "1"}\n', '{"a": "1", "new": "x"}\n'),
        ('{"a": {"b": [1]}}\n', '{"a": {"b": [1]}, "new": "x"}\n'),
        ('{\n  "a": "1"\n}\n', '{\n  "a": "1",\n  "new": "x"\n}\n'),
        ('{\r\n  "a": "1",\r\n}\r\n', '{\r\n  "a": "1",\r\n  "new": "x"\r\n}\r\n'),
        ('{\n  "a": "1", # why\n}\n', '{\n  "a": "1", # why\n  "new": "x"\n}\n'),
        ('{\n  "a": "1" # why\n}\n', '{\n  "a": "1", # why\n  "new": "x"\n}\n'),
        ("{a: 1 # why\n}\n", "{a: 1, # why\n new: x\n}\n"),
        ('{"a": 1,\n "b": 2}\n', '{"a": 1,\n "b": 2,\n "new": "x"}\n'),
    ],
)
def test_key_is_added_to_a_flow_mapping(before: str, after: str) -> None:
    assert edit(before, new="x") == after


def test_key_after_a_block_without_a_line_end_is_refused() -> None:
    refuse("a: |\n  text", new="x")


def test_key_is_not_added_among_explicit_keys() -> None:
    refuse("? a\n: 1\n", new="x")


# Several edits at once


def test_several_values_are_set_at_once() -> None:
    text = "a: 1 # one\r\n# b: 0\r\nb: 'two'\r\n"
    assert edit(text, b="x", a=None, c="y", d=True) == ("a: null # one\r\n# b: 0\r\nb: 'x'\r\nc: y\r\nd: true\r\n")


def test_edits_may_come_in_any_order() -> None:
    found = document("a: [1, 22, 333]\n")
    items = found.root.items["a"]
    assert isinstance(items, Sequence)
    edits = [found.replacing(node, "new") for node in items.items]
    assert found.edited(reversed(edits)).source.text == "a: [new, new, new]\n"


def test_overlapping_edits_are_refused() -> None:
    found = document("a: 123\nb: 1\n")
    with pytest.raises(EditError, match="two changes at"):
        found.edited([Edit(3, 6, "x"), Edit(5, 8, "y")])
    with pytest.raises(EditError, match="two changes at"):
        found.edited([*found.setting("a", 1), *found.setting("a", 2)])


@pytest.mark.parametrize("text", ["{", "'", "*x", "x: y", "\t", "\x00", "\ud800", "!!int x", "x\n---\n"])
def test_edit_that_breaks_the_file_is_refused(text: str) -> None:
    found = document("a: 1\nb: 2\n")
    with pytest.raises(EditError, match=r"my\.compute would be invalid YAML"):
        found.edited([Edit(3, 4, text)])
    assert found.encode() == b"a: 1\nb: 2\n"


def test_edit_that_would_change_a_neighbour_is_refused() -> None:
    assert "cannot be changed in place" in refuse("{a, b: 2}\n", a="new")
    assert "cannot be changed in place" in refuse("a: 'x'# y\nb: 1\n", a=3)


# Bytes


def test_byte_order_mark_is_kept() -> None:
    found = document(codecs.BOM_UTF8 + b"a: 1\r\nb: 2")
    assert found.marked
    assert found.encode() == codecs.BOM_UTF8 + b"a: 1\r\nb: 2"
    assert found.with_values(a=3, c=4).encode() == codecs.BOM_UTF8 + b"a: 3\r\nb: 2\r\nc: 4"
    assert document(codecs.BOM_UTF8 + b"{}").with_values(a=1).encode() == codecs.BOM_UTF8 + b"{a: 1}"
    assert not document("a: 1\n").marked
    twice = codecs.BOM_UTF8 * 2
    assert document(twice + b"a: 1\n").with_values(a=2).encode() == twice + b"a: 2\n"


def test_file_does_not_grow_beyond_the_readable_size() -> None:
    refuse("a: 1\n", b="x" * 300_000)


# Anchors and aliases


def test_alias_is_replaced_and_its_anchor_kept() -> None:
    assert edit("a: &x 1\nb: *x # why\nc: *x\n", b=2) == "a: &x 1\nb: 2 # why\nc: *x\n"
    assert edit("a: &x [1]\nb: *x\n", b="new") == "a: &x [1]\nb: new\n"
    assert edit("a: &x\n- 1\nb: *x\nc: 3\n", b="new") == "a: &x\n- 1\nb: new\nc: 3\n"
    assert edit("{a: &x 1, b: *x, c: 3}", b="new") == "{a: &x 1, b: new, c: 3}"


def test_value_with_aliases_is_not_changed() -> None:
    assert "unknown alias" in refuse("a: &x 1\nb: *x\n", a=2)
    assert "unknown alias" in refuse("a: &x\n- 1\nb: *x\n", a=2)
    refuse("a: &x 1\nb: &x 2\nc: *x\n", b=3)


def test_unused_anchor_is_replaced_with_its_value() -> None:
    assert edit("a: &x 1\nb: 2\n", a=3) == "a: 3\nb: 2\n"


def test_item_with_aliases_is_not_changed() -> None:
    found = document("a:\n- &x 1\n- *x\n")
    items = found.root.items["a"]
    assert isinstance(items, Sequence)
    for node in items.items:
        with pytest.raises(EditError):
            found.edited([found.replacing(node, 2)])


# Unreadable documents


@pytest.mark.parametrize(
    ("text", "code", "place"),
    [
        ("", Code.EMPTY_FILE, (1, 1)),
        ("# nothing\n", Code.EMPTY_FILE, (1, 1)),
        ("---\n...\n", Code.EMPTY_FILE, (1, 1)),
        ("\ufeff", Code.EMPTY_FILE, (1, 1)),
        ("- 1\n", Code.WRONG_TYPE, (1, 1)),
        ("\njust text\n", Code.WRONG_TYPE, (2, 1)),
        ("a: 1\n---\nb: 2\n", Code.INVALID_YAML, (3, 1)),
        ("a: 1\na: 2\n", Code.DUPLICATE_KEY, (2, 1)),
        ("b: {a: 1, a: 2}\n", Code.DUPLICATE_KEY, (1, 11)),
        ("a:\t1\n", Code.TAB, (1, 3)),
        ("a:\n\t- 1\n", Code.TAB, (2, 1)),
        ("b: &x {c: 1}\na:\n  <<: *x\n", Code.BAD_KEY, (3, 3)),
        ("a: *x\n", Code.UNSUPPORTED_ALIAS, (1, 4)),
        ("a: !!str 1\n", Code.UNSUPPORTED_TAG, (1, 4)),
        ("<<<<<<< HEAD\na: 1\n=======\na: 2\n>>>>>>> other\n", Code.INVALID_YAML, (1, 1)),
        ('{"a": "b" "c": 1}\n', Code.INVALID_YAML, (1, 11)),
    ],
)
def test_unreadable_document_is_reported_with_its_place(text: str, code: Code, place: tuple[int, int]) -> None:
    with pytest.raises(Problem) as caught:
        document(text)
    first = caught.value.diagnostics[0]
    assert first.span is not None
    assert (first.code, (first.span.line, first.span.column)) == (code, place)
    assert first.span.file == "my.compute"


def test_invalid_utf8_is_reported() -> None:
    with pytest.raises(Problem) as caught:
        document(b"a: 1\nb: \xff\n")
    assert caught.value.diagnostics[0].code is Code.NOT_UTF8


# Reading values


def test_plain_values_are_read_as_workbench_read_them() -> None:
    found = document("a: yes\nb: 22:30\nc: 2017-01-01\nd: 010\ne: AzureMlSecret=x#y#0\nf: ~\n")
    plain = {"a": True, "b": 1350, "c": "2017-01-01", "d": 8, "e": "AzureMlSecret=x#y#0", "f": None}
    assert {key: found.value(key) for key in plain} == plain
    assert found.value("missing") is None


def test_spans_have_line_and_column() -> None:
    found = document("a: 1\n'b': [x, y]\n")
    span = found.key_span("b")
    assert (span.line, span.column, span.end_column) == (2, 1, 4)
    assert found.span(found.root.items["a"]).column == 4
    assert (found.key_span("missing").line, found.key_span("missing").column) == (1, 1)
