"""Suggested commands repeat options of the command line."""

from collections.abc import Iterator

import pytest

from gpuinfra.views import terminal
from gpuinfra.views.terminal import messages


@pytest.fixture(autouse=True)
def given() -> Iterator[None]:
    terminal.repeat_options(sandbox=True, workspace="a b")
    yield
    terminal.repeat_options(sandbox=False, workspace=None)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("see `gpuinfra status`", "see `gpuinfra --sandbox --workspace 'a b' status`"),
        ("`gpuinfra ssh m -- df`", "`gpuinfra --sandbox --workspace 'a b' ssh m -- df`"),
        ("`gpuinfra up S`, then `gpuinfra runs`", None),
        ("`gpuinfra down m --sandbox`", "`gpuinfra --workspace 'a b' down m --sandbox`"),
        ("`gpuinfra sandbox stop` stops it", "`gpuinfra sandbox stop` stops it"),
        ("see `gpuinfra up --help`", "see `gpuinfra up --help`"),
        ("ended by gpuinfra down", "ended by gpuinfra down"),
    ],
)
def test_command_in_a_text_repeats_the_options(text: str, shown: str | None) -> None:
    both = "`gpuinfra --sandbox --workspace 'a b' up S`, then `gpuinfra --sandbox --workspace 'a b' runs`"
    assert terminal.complete(text) == (shown or both)
    assert terminal.complete(terminal.complete(text)) == (shown or both)


def test_console_completes_commands_and_keeps_styles(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.text import Text

    terminal.repeat_options(sandbox=True, workspace=None)
    messages().print(Text.assemble(("help", "bold"), ": `gpuinfra status`"))
    messages().print("or `gpuinfra runs`")
    assert capsys.readouterr().err == "help: `gpuinfra --sandbox status`\nor `gpuinfra --sandbox runs`\n"


def test_nothing_is_added_without_options() -> None:
    terminal.repeat_options(sandbox=False, workspace=None)
    assert terminal.complete("`gpuinfra status`") == "`gpuinfra status`"
