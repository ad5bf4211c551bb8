"""Positions in a text, and which parts may be shown."""

import pytest

from gpuinfra.parse.source import Source
from gpuinfra.parse.spec import load_bytes
from gpuinfra.views.diagnostics import render


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_lines_and_columns_count_from_one(newline: str) -> None:
    source = Source("gpu.yaml", newline.join(["one", "two", "", "four"]))
    span = source.span(source.text.index("wo"), source.text.index("wo") + 2)
    assert (span.line, span.column, span.end_line, span.end_column, span.text) == (2, 2, 2, 4, "two")
    assert source.position(len(source.text)) == (4, 5)


def test_other_line_separators_are_not_lines() -> None:
    # Editors count lines by line feeds; PyYAML would also count these.
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
        ("pwd: @hunter2", "pwd: ***"),
        ("pasword: hunter2", "pasword: ***"),
        ("passwrod: hunter2", "passwrod: ***"),
        ("password hunter2", "password ***"),
        ("AZURE_STORAGE_KEY:\thunter2", "AZURE_STORAGE_KEY:\t***"),
        ("- 'STORAGE_KEY_1' : hunter2", "- 'STORAGE_KEY_1' : ***"),
        ("DB_PASS=hunter2", "DB_PASS=***"),
        ("a: AccountName=a;AccountKey=hunter2", "a: AccountName=a;AccountKey=***"),
        ("SharedAccessKeyName=a;SharedAccessKey=hunter2", "SharedAccessKeyName=a;SharedAccessKey=***"),
        (
            '"fs.azure.account.key.a.blob.core.windows.net": hunter2',
            '"fs.azure.account.key.a.blob.core.windows.net": ***',
        ),
        ("[$file, --token, hunter2]", "[$file, --token, ***"),
        ("- --db-password hunter2", "- --db-password ***"),
        ("postgres://me:hunter2@h/a", "postgres://***@h/a"),
        ("redis://:hunter2@h", "redis://***@h"),
        ("https://me:a@hunter2@h", "https://***@h"),
        ("https://me:a/hunter2@h", "https://***@h"),
        ("git+https://hunter2@h/a@v1", "git+https://***@h/a@v1"),
        ("- https://conda.anaconda.org/t/me-hunter2/a", "- https://conda.anaconda.org/t/***/a"),
        *[
            (line, line)
            for line in (
                "key: value",
                "sshPublicKey: ~/.ssh/id_ed25519.pub",
                "ssh_public_key: a",
                "sshKey: ~/.ssh/id_ed25519.pub",
                "hostKey: ssh-ed25519 AAAA",
                "privateKeyFile: ~/.ssh/id_ed25519",
                "past: 1",
                "- git+ssh://git@github.com/a/b@v1",
                "- git+https://github.com/a/b@v1",
                "- https://h:8080/a@b",
            )
        ],
    ],
)
def test_secret_is_not_shown(line: str, shown: str) -> None:
    assert Source("gpu.yaml", line).span(0, 1).text == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("password:\n  hunter2\na: 1", ["password:", "", "a: 1"]),
        ("password:\nhunter2\na: 1", ["password:", "", "a: 1"]),
        ("password:\n\n\thunter2", ["password:", "", ""]),
        ("password:\n- hunter2\n- hunter2\na: 1", ["password:", "", "", "a: 1"]),
        ("password: |\n  hunter2\n\n  hunter2\na: 1", ["password: ***", "", "", "", "a: 1"]),
        ('password: "a\n  hunter2"\na: 1', ["password: ***", "", "a: 1"]),
        ("? password\n: hunter2\na: 1", ["? password", "", "a: 1"]),
        ("- --token\n- hunter2\n- a", ["- --token", "", "- a"]),
        ("- password: b\n  user: c", ["- password: ***", "  user: c"]),
        ("password:\nuser: a", ["password:", "user: a"]),
        ("# a token: see\n  a: 1", ["# a token: ***", "  a: 1"]),
    ],
)
def test_secret_on_its_own_lines_is_not_shown(text: str, shown: list[str]) -> None:
    source = Source("gpu.yaml", text)
    starts = [0, *(place + 1 for place, character in enumerate(text) if character == "\n")]
    assert [source.span(start, start).text for start in starts] == shown


def test_private_key_is_not_shown() -> None:
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


def test_messages_do_not_repeat_a_hidden_value() -> None:
    text = b"tags:\n  dbPassword: 01234567\n  other: *hunter2\n"
    printed = "".join(render(diagnostic).plain for diagnostic in load_bytes("gpu.yaml", text).diagnostics)
    assert "ambiguous value" in printed
    assert "unknown alias" in printed
    assert "1234567" not in printed
    # 0o1234567, as YAML 1.1 reads it.
    assert "342391" not in printed


LONG = ["password: hunter2 " + "x" * 2000, "token:&" * 30_000 + " hunter2", "pwd" + " " * 100_000 + ": hunter2"]


@pytest.mark.parametrize("line", LONG)
def test_long_line_is_hidden_without_a_search(line: str) -> None:
    source = Source("gpu.yaml", f"name: a\n{line}\nafter: b\n")
    assert [source.span(offset, offset).text for offset in (0, 8)] == ["name: a", ""]
    assert source.span(len(source.text) - 3, len(source.text)).text == "after: b"


def test_lines_below_a_long_line_may_be_its_value() -> None:
    text = "password:" + " " * 2000 + "\n  hunter2\nname: a\n"
    source = Source("gpu.yaml", text)
    assert source.span(text.index("hunter2"), text.index("hunter2")).text == ""
    assert source.span(text.index("name"), text.index("name")).text == "name: a"
