"""What a caller asks for when it submits a job, and what it means."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem
from gpuinfra.suggest import did_you_mean

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# More than variables ever are, and short enough for a file that has no end.
LONGEST_FILE = 4 << 20


class OnInterrupt(StrEnum):
    """What Ctrl-C does to a job that runs."""

    ASK = "ask"
    DETACH = "detach"
    CANCEL = "cancel"


@dataclass(frozen=True)
class JobOptions:
    """What was given."""

    script: str | None
    words: tuple[str, ...]
    gpus: str | None = None
    memory: str | None = None
    shm_size: str | None = None
    timeout: str | None = None
    environment: tuple[str, ...] = ()
    environment_files: tuple[Path, ...] = ()
    secrets: tuple[str, ...] = ()
    build_secrets: tuple[str, ...] = ()
    shared_directory: str | None = None
    require_gpu_use: bool = False
    rebuild: bool = False
    send_credentials: bool = False
    variables: tuple[dict[str, str], dict[str, str]] | None = field(default=None, repr=False)
    """What the three options for variables say, once they were read: a file may be a pipe."""


def usage(summary: str, note: str, help_line: str | None = None, code: Code = Code.USAGE) -> Problem:
    """An option that cannot be."""
    return Problem(Diagnostic(code, summary, note=note, help=help_line), exit_code=Exit.USAGE)


def size_of(option: str, text: str | None) -> int | None:
    """`16g` in bytes."""
    from gpuinfra.runner.wishes import parse_size

    if text is None:
        return None
    found = parse_size(text)
    if not found:
        raise usage("invalid size", f"`{option} {text}` is no size", "for example `512m`, `16g`")
    return found


def variables_of(options: JobOptions) -> tuple[dict[str, str], dict[str, str]]:
    """Variables that may be seen, and those that may not."""
    if options.variables is not None:
        return options.variables
    plain: dict[str, str] = {}
    for each in options.environment:
        name, mark, value = each.partition("=")
        if not mark or not _NAME.fullmatch(name):
            raise usage("invalid variable", f"`--env {name[:80]}`: expected NAME=VALUE", "or `--secret NAME`")
        plain[name] = value
    hidden: dict[str, str] = {}
    for file in options.environment_files:
        hidden |= _read_file(file)
    for name in options.secrets:
        hidden[name] = _own(name, f"`--secret {name[:80]}`")
    # What is said to be hidden stays so.
    return {name: value for name, value in plain.items() if name not in hidden}, hidden


def build_secrets_of(names: Iterable[str]) -> dict[str, str]:
    """Return the values of the variables that `--build-secret` names."""
    from gpuinfra.runner.environment.secrets import SHORTEST

    found = {name: _own(name, f"`--build-secret {name[:80]}`") for name in names}
    for name, value in found.items():
        if len(value) < SHORTEST or not value.isprintable():
            note = f"`--build-secret {name}`: its value is shorter than {SHORTEST} characters, or not one line of text"
            raise usage("invalid secret", note, "such a value cannot be kept out of the build's output")
    return found


def _own(name: str, shown: str) -> str:
    if not _NAME.fullmatch(name):
        raise usage("invalid variable", f"{shown} is no name of one: the value is taken from the environment")
    value = os.environ.get(name)
    if value is None:
        raise usage(
            "no such variable",
            f"{shown}: it is not set here",
            did_you_mean(name, os.environ) or f"set it first: `export {name}=…`",
            Code.MISSING_SECRET,
        )
    return value


def _read_file(file: Path) -> dict[str, str]:
    """A line each: `NAME=VALUE`, or `NAME` alone for one of this shell's. No line is ever shown."""
    try:
        with file.open("rb") as stream:
            content = stream.read(LONGEST_FILE + 1)
        lines = content.decode("utf-8").splitlines() if len(content) <= LONGEST_FILE else None
    except OSError as error:
        raise usage("file cannot be read", f"`{file}`: {error.strerror}", code=Code.FILE_UNREADABLE) from None
    except UnicodeDecodeError:
        lines = None  # the exception has the whole content in it, and goes no further
    if lines is None:
        raise usage("file cannot be read", f"`{file}` is too large, or not UTF-8", code=Code.FILE_UNREADABLE)
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, mark, value = line.lstrip().removeprefix("export ").partition("=")
        if not _NAME.fullmatch(name.strip()):
            raise usage("invalid variable", f"`{file}`, line {number}: expected NAME=VALUE", "it is shown nowhere")
        found[name.strip()] = value if mark else _own(name.strip(), f"`{file}`, line {number}")
    return found
