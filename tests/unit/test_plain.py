"""Values on the command line: text is taken unchanged, and other types are read as Typer reads them."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.main import get_command

from gpuinfra.cli.main import use_fast_parsing


class Colour(StrEnum):
    RED = "red"


def sample(
    name: Annotated[str, typer.Argument()],
    words: Annotated[list[str] | None, typer.Argument()] = None,
    count: Annotated[int, typer.Option(min=1)] = 3,
    files: Annotated[list[Path] | None, typer.Option("--file")] = None,
    folder: Annotated[Path | None, typer.Option()] = None,
    colour: Annotated[Colour, typer.Option()] = Colour.RED,
    tags: Annotated[list[str] | None, typer.Option("--tag")] = None,
) -> Any:
    return name, list(words or ()), count, list(files or ()), folder, colour, list(tags or ())


def call(*words: str, plainly: bool) -> Any:
    app = typer.Typer(add_completion=False)
    app.command()(sample)
    command = get_command(app)
    if plainly:
        use_fast_parsing(command)
    try:
        return command.main(list(words), prog_name="x", standalone_mode=False)
    except typer.TyperException as error:
        return error.format_message()


@pytest.mark.parametrize(
    "words",
    [
        ("a",),
        ("a", "b", "c"),
        ("a", "--count", "5"),
        ("a", "--count", "0"),
        ("a", "--count", "x"),
        ("a", "--file", "p", "--file", "q", "--folder", "r"),
        ("a", "--colour", "red", "--tag", "t"),
        ("a", "--colour", "blue"),
        ("", "--tag", ""),
        (),
    ],
)
def test_fast_parsing_agrees_with_typer(words: tuple[str, ...]) -> None:
    assert call(*words, plainly=True) == call(*words, plainly=False)
