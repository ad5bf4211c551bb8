"""CI commands in text and in JSON."""

import io
import json
import re

import pytest

from gpuinfra.views.terminal import filter_commands, neutralize, neutralize_json

TEXTS = [
    "##vso[task.complete result=Failed]x",
    "before ##VSO[build.addbuildtag]x",
    "##[error]x",
    "###[group]x",
    "##teamcity[x]",
    "::add-mask::x",
    "  \t::error file=a,line=1::x",
    "a\n::stop-commands::x\nb",
    "a\r::debug::x",
    "\x1b[1m::debug::x",
    "::::debug::x",
    "## ##vso##vso[x]",
]
COMMAND = re.compile(r"##\w*\[|(?:^|[\r\n])(?:\s|\x1b\[[0-9;]*m)*::")


@pytest.mark.parametrize("text", TEXTS)
def test_ci_commands_get_a_space(text: str) -> None:
    assert COMMAND.search(text)
    safe = neutralize(text)
    assert not COMMAND.search(safe)
    assert safe.replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize(
    "text", ["# heading", "## heading [1]", "fe80::1", "a ::/0", "conda-forge::numpy", "#1 [x]", "std::vector"]
)
def test_other_text_is_unchanged(text: str) -> None:
    assert neutralize(text) == text


@pytest.mark.parametrize("text", TEXTS)
def test_json_has_the_same_value_and_no_command(text: str) -> None:
    written = neutralize_json(json.dumps({"a": [text, f"\\{text}"]}, indent=2))
    assert "::add-mask" not in written
    assert not COMMAND.search(written)
    assert json.loads(written) == {"a": [text, f"\\{text}"]}


@pytest.mark.parametrize("text", TEXTS)
def test_command_in_pieces_is_neutralized(text: str) -> None:
    for place in range(len(text) + 1):
        for other in range(place, len(text) + 1):
            stream = io.StringIO()
            filter_commands(stream)
            for part in (text[:place], text[place:other], text[other:]):
                stream.write(part)
            assert not COMMAND.search(stream.getvalue()), (place, other)
