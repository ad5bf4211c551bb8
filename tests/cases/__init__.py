"""Cases as files: a new case is a new file, and `make cases` writes what is expected of it, to be read."""

import re
from pathlib import Path

SPEC_CASES = Path(__file__).parent / "spec"
LINT_CASES = Path(__file__).parent / "lint"

_REPEAT = re.compile(rb"# case: repeat the last line ([0-9]+) times\n")


def spec_cases(kind: str) -> list[Path]:
    """The case files of a kind, `good` or `bad`."""
    return sorted((SPEC_CASES / kind).glob("*.yaml"))


def lint_cases(kind: str) -> list[Path]:
    """The folders of a kind, `good` or `bad`; each has a project, and what is expected of it where that is anything."""
    return sorted(folder for folder in (LINT_CASES / kind).iterdir() if (folder / "project").is_dir())


def content(case: Path) -> bytes:
    """The bytes of a case. A huge one is written small, with a first line that says how to blow it up."""
    data = case.read_bytes()
    if found := _REPEAT.match(data):
        last = data.splitlines(keepends=True)[-1]
        data += last * int(found.group(1))
    return data


def compare(actual: str, expected: Path, *, update: bool) -> None:
    """The text is what the file says; or, when updating, what it says from now on."""
    if update:
        expected.write_text(actual, "utf-8", newline="")
    assert expected.exists(), f"{expected.name} is missing: run `make cases`, then read it"
    assert actual == expected.read_text("utf-8")
