"""Which files hold specs, and all of them loaded."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpuinfra.diagnostics import Code, Diagnostic
from gpuinfra.parse.folder import is_ours, yaml_files
from gpuinfra.parse.source import LARGEST
from gpuinfra.parse.spec import Loaded, Located, load_bytes

logger = logging.getLogger(__name__)

STANDARD_INPUT = "-"


def load_paths(paths: Iterable[str]) -> Loaded:
    """Every spec in the files and directories. In a directory, YAML files of other kinds are passed over."""
    loaded = Loaded()
    for path in paths:
        for part in _load_path(path):
            logger.debug("%s: %d specs, %d problems", path, len(part.specs), len(part.diagnostics))
            loaded.specs += part.specs
            loaded.diagnostics += part.diagnostics
    loaded.diagnostics += _same_names(loaded.specs)
    return loaded


def _load_path(path: str) -> Iterator[Loaded]:
    if path == STANDARD_INPUT:
        yield load_bytes("<stdin>", sys.stdin.buffer.read(LARGEST + 1))
    elif Path(path).is_dir():
        yield from _load_directory(Path(path))
    else:
        content = _read_named(Path(path))
        yield Loaded(diagnostics=[content]) if isinstance(content, Diagnostic) else load_bytes(path, content)


def _load_directory(directory: Path) -> Iterator[Loaded]:
    found = False
    for file in sorted(yaml_files(directory)):
        content = _read(file)
        if isinstance(content, Diagnostic):
            found = True
            yield Loaded(diagnostics=[content])
        elif is_ours(content):
            found = True
            yield load_bytes(str(file), content)
        else:
            logger.debug("%s: passed over, it is no spec", file)
    if not found:
        yield Loaded(
            diagnostics=[
                Diagnostic(
                    Code.NO_SPEC_FOUND,
                    "no spec found",
                    note=f"no YAML file below `{directory}` has `apiVersion: gpuinfra/v1`",
                    help="`gpuinfra init` writes one to start from",
                )
            ]
        )


def _read_named(file: Path) -> bytes | Diagnostic:
    """The content of a file that was named, unless it is behind a link and no spec.

    An error shows the line that it is about. A link in a project of others could lead to any file of the user.
    """
    content = _read(file)
    parts = [file] if file.is_absolute() else [file, *file.parents]
    if isinstance(content, Diagnostic) or is_ours(content) or not any(part.is_symlink() for part in parts):
        return content
    note = f"`{file}` leads to `{file.resolve()}` by a symbolic link, and there is no `apiVersion: gpuinfra/v1` in it"
    return Diagnostic(
        Code.FILE_UNREADABLE, "link to a file that is not a spec", note=note, help="give that file itself"
    )


def _read(file: Path) -> bytes | Diagnostic:
    try:
        with file.open("rb") as stream:
            return stream.read(LARGEST + 1)
    except FileNotFoundError:
        return Diagnostic(Code.FILE_NOT_FOUND, "no such file", note=f"`{file}` does not exist")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return Diagnostic(Code.FILE_UNREADABLE, "file cannot be read", note=f"`{file}`: {reason}")


def _same_names(specs: list[Located]) -> Iterator[Diagnostic]:
    """Two specs of one name would fight over one machine. Azure does not see case in a name."""
    seen: dict[str, Located] = {}
    for located in specs:
        first = seen.setdefault(located.spec.name.casefold(), located)
        if first is not located:
            where = f"{first.span.file}:{first.span.line}:{first.span.column}"
            yield Diagnostic(
                Code.DUPLICATE_NAME,
                "two specs of one name",
                located.span,
                f"`{first.spec.name}` is described at {where} already",
                help="a machine has one spec; rename one, or remove it",
            )
