"""Places in a text, and what of it may be shown."""

import pytest

from gpuinfra.load.source import Source
from gpuinfra.load.spec import load_bytes
from gpuinfra.views.diagnostics import render


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_lines_and_columns_count_from_one(newline: str) -> None:
    source = Source("gpu.yaml", newline.join(["one", "two", "", "four"]))
    span = source.span(source.text.index("wo"), source.text.index("wo") + 2)
    assert (span.line, span.column, span.end_line, span.end_column, span.text) == (2, 2, 2, 4, "two")
    assert source.position(len(source.text)) == (4, 5)


def test_other_line_separators_are_not_lines() -> None:
    # Editors count lines by line feeds; PyYAML would count these as well.
    source = Source("gpu.yaml", "a\u2028b\x85c\nd")
    assert source.position(source.text.index("d")) == (2, 1)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("password: hunter2", "password: ***"),
        ("  clientSecret : 'hunter2'", "  clientSecret : ***"),
        ('{"AZURE_TOKEN": "hunter2", a: b}', '{"AZURE_TOKEN": ***'),
        ("name: my-dsvm", "name: my-dsvm"),
        ("- https://a.example/b.whl?sv=1&sig=hunter2%3D&sp=r", "- https://a.example/b.whl?sv=1&sig=***&sp=r"),
        ("- 'https://a.example/b.whl?sig=hunter2' # why", "- 'https://a.example/b.whl?sig=***' # why"),
        ("sig=1", "sig=1"),
    ],
)
def test_a_secret_is_not_shown(line: str, shown: str) -> None:
    assert Source("gpu.yaml", line).span(0, 1).text == shown


def test_no_line_of_a_private_key_is_shown() -> None:
    key = "-----BEGIN RSA PRIVATE KEY-----\nhunter2: [\n-----END RSA PRIVATE KEY-----\n"
    source = Source("gpu.yaml", f"a: 1\n{key}b: 2\n")
    assert [source.span(source.text.index(word), 0).text for word in ("a", "BEGIN", "hunter2", "END", "b: 2")] == [
        "a: 1",
        "",
        "",
        "",
        "b: 2",
    ]
    printed = "".join(
        render(diagnostic).plain for diagnostic in load_bytes("gpu.yaml", source.text.encode()).diagnostics
    )
    assert printed
    assert "hunter2" not in printed
