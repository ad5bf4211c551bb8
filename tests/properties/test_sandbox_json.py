"""JSON as ARM reads it."""

from typing import Any

import pytest

from gpuinfra.sandbox.web.json_text import read_json


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
def test_what_arm_reads(text: str, value: Any) -> None:
    assert read_json(text) == value


@pytest.mark.parametrize(
    "text", ["", "{", "{a}", "{a: b}", '{a: "b}', '{a: "b\\', "{/* }", "{a: NaN}", '{"a": NaN}', "{'a': 1}", "{a: 1,}"]
)
def test_what_is_not_even_that(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 any message will do
        read_json(text)


@pytest.mark.parametrize("text", ['"\\"', "/*", "a ", '{a:"', "//"])
def test_no_text_takes_long(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        read_json("{" + text * 200_000)
