"""Every command that a message or a page suggests can be typed: it exists, and so do its options and arguments."""

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from typer._click.exceptions import MissingParameter, UsageError

from gpuinfra.cli.main import COMMANDS, load_command

ROOT = Path(__file__).parents[2]
ENTRIES = {entry.name: entry for entry in COMMANDS}
# In messages a command ends with its backtick, before `;`, or with the text.
START = rf"\bgpuinfra ((?:{'|'.join(ENTRIES)})(?![\w:-]|"
IN_MESSAGE = re.compile(START + r" in | \()[^`;)\n]*)")
IN_BACKTICKS = re.compile(rf"`[^`]*?{START}$)[^`)\n]*)[^`\n]*`")
# Stands for a value that is known only when the message is made.
VALUE = "\x00"
# Values that a shell takes as they are: ids of runs, fingerprints, and names of machines, by Azure's rules.
MACHINES = "event|facts|failure|machine|named|orphan|plan|ref|spec|verdict"
SAFE = re.compile(rf"(shlex\.)?(quote|join)\(.+\)|(\w+\.)*(id|_?machine|fingerprint|shown)|(\w+\.)*({MACHINES})\.name")


@dataclass(frozen=True)
class Suggestion:
    """The words behind `gpuinfra`."""

    place: str
    text: str
    values: tuple[str, ...] = ()
    """The expressions that fill in its values."""


def find_suggestions(pattern: re.Pattern[str], text: str, place: str, values: tuple[str, ...] = ()) -> Iterator[Any]:
    for found in pattern.finditer(text):
        filled = [at for at, character in enumerate(text) if character == VALUE]
        # A value right behind a word is an option that may be there, such as ` --sandbox`.
        own = {at for at in range(*found.span(1)) if not is_option(text, at)}
        known = tuple(value for at, value in zip(filled, values, strict=True) if at in own)
        yield Suggestion(place, found.group(1).strip(), known)


def is_option(text: str, at: int) -> bool:
    return bool(re.match(rf"[\w{VALUE}-]", text[at - 1]))


def read_code(file: Path) -> Iterator[Suggestion]:
    code = file.read_text("utf-8")
    if "gpuinfra " not in code:
        return
    nodes = list(ast.walk(ast.parse(code)))
    inner = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    name = file.relative_to(ROOT)
    for node in nodes:
        place = f"{name}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else VALUE for part in node.values)
            values = tuple(ast.unparse(part.value) for part in node.values if isinstance(part, ast.FormattedValue))
            yield from find_suggestions(IN_MESSAGE, text, place, values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            pattern = IN_BACKTICKS if "\n" in node.value or "`" in node.value else IN_MESSAGE
            yield from find_suggestions(pattern, node.value, place)


def read_page(file: Path) -> Iterator[Suggestion]:
    in_block = False
    for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
        in_block ^= line.startswith("```")
        place = f"{file.relative_to(ROOT)}:{number}"
        if in_block:
            # What follows `#` is a comment. The rest of a pipe is another program's.
            yield from find_suggestions(IN_MESSAGE, re.split(r" #|[|<>&)]", line)[0], place)
        else:
            yield from find_suggestions(IN_BACKTICKS, line, place)


@cache
def all_suggestions() -> list[Suggestion]:
    folders = ("gpuinfra", "provision", "runner", "remote", "sandbox")
    code = sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py"))
    pages = sorted(
        [ROOT / "README.md", ROOT / "SECURITY.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").rglob("*.md")]
    )
    return [*(each for file in code for each in read_code(file)), *(each for file in pages for each in read_page(file))]


def split(text: str) -> list[str]:
    words = "".join(character for at, character in enumerate(text) if character != VALUE or not is_option(text, at))
    return shlex.split(words.replace(VALUE, "value"))


@cache
def find_command(name: str) -> Any:
    return load_command(*ENTRIES[name])


def parse(words: list[str], *, is_part: bool) -> None:
    """Raise UsageError where the program would; not for missing words of a part. A name alone needs no words."""
    command = find_command(words[0])
    left = [word for word in words[1:] if word != "…"]
    while hasattr(command, "commands") and left:
        assert left[0] in command.commands or left[0].startswith("-"), f"{left[0]} is not a command of {command.name}"
        if left[0].startswith("-"):
            break
        command = command.commands[left.pop(0)]
    if not left or "--help" in left:
        return
    try:
        command.parse_args(command.context_class(command, **command.context_settings), left)
    except MissingParameter:
        if not is_part:
            raise


def test_the_search_finds_suggestions_in_messages_and_pages() -> None:
    places = {each.place.partition("/")[0] for each in all_suggestions()}
    assert {"gpuinfra", "provision", "runner", "docs"} <= places
    assert len(all_suggestions()) > 200


def test_suggested_commands_can_be_parsed() -> None:
    wrong = []
    for each in all_suggestions():
        try:
            words = split(each.text)
            # Pages name options by their command alone: `gpuinfra up --adopt`.
            is_named = each.place.split(":")[0].endswith(".md") and all(word.startswith("-") for word in words[1:])
            parse(words, is_part="…" in words or is_named)
        except (UsageError, AssertionError) as error:
            reason = error.format_message() if isinstance(error, UsageError) else error
            wrong.append(f"{each.place}: gpuinfra {each.text}: {reason}")
    assert wrong == []


def test_values_in_suggested_commands_are_quoted() -> None:
    bare = [(each.place, value) for each in all_suggestions() for value in each.values if not SAFE.fullmatch(value)]
    assert bare == []


# Of pip, and of programs whose passwords are not shown.
OTHERS = {"--index-url", "--extra-index-url", "--password"}


def all_options() -> set[str]:
    commands = [find_command(name) for name in ENTRIES]
    parts = [part for command in commands for part in (command, *getattr(command, "commands", {}).values())]
    found = {option for part in parts for parameter in part.params for option in parameter.opts}
    return {*found, "--help", "--version", *OTHERS}


def test_options_that_messages_name_exist() -> None:
    known, unknown = all_options(), []
    for folder in ("gpuinfra", "provision", "runner"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            named = re.findall(r"`(--[a-z][a-z-]+)", file.read_text("utf-8"))
            unknown += [f"{file.relative_to(ROOT)}: {option}" for option in named if option not in known]
    assert unknown == []
