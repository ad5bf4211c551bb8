"""JSON as ARM reads it."""

from typing import Any

import pytest

from gpuinfra.sandbox.web.app import read_json


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1}', {"a": 1}),
        ('{"a": 1, template:{"b": [true]}}', {"a": 1, "template": {"b": [True]}}),
        ('{"a": "template: // /* no */ \\" x:", $b : 2}', {"a": 'template: // /* no */ " x:', "$b": 2}),
        ('// first\n{"a": /* inside */ null} // last', {"a": None}),
        ('{/* over\n lines */ a: "b:"}', {"a": "b:"}),
    ],
)
def test_comments_and_unquoted_names_are_accepted(text: str, value: Any) -> None:
    assert read_json(text) == value


@pytest.mark.parametrize(
    "text", ["", "{", "{a}", "{a: b}", '{a: "b}', '{a: "b\\', "{/* }", "{a: NaN}", '{"a": NaN}', "{'a': 1}", "{a: 1,}"]
)
def test_invalid_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 any message will do
        read_json(text)


@pytest.mark.parametrize("text", ['"\\"', "/*", "a ", '{a:"', "//"])
def test_parsing_is_linear(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        read_json("{" + text * 200_000)
