"""Load all specs in files and folders."""

import logging
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpuinfra.diagnostics import Code, Diagnostic
from gpuinfra.parse.source import MAX_BYTES, mentions_spec, yaml_files
from gpuinfra.parse.spec import Loaded, LocatedSpec, load_bytes

logger = logging.getLogger(__name__)

STANDARD_INPUT = "-"


def load_paths(paths: Iterable[str]) -> Loaded:
    """Return every spec in the files and folders. In folders, other YAML files are ignored."""
    loaded = Loaded()
    for path in paths:
        for part in _load_path(path):
            logger.debug("%s: %d specs, %d problems", path, len(part.specs), len(part.diagnostics))
            loaded.specs += part.specs
            loaded.diagnostics += part.diagnostics
    loaded.diagnostics += same_names(loaded.specs)
    return loaded


def _load_path(path: str) -> Iterator[Loaded]:
    if path == STANDARD_INPUT:
        yield load_bytes("<stdin>", sys.stdin.buffer.read(MAX_BYTES + 1))
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
        elif mentions_spec(content):
            found = True
            yield load_bytes(str(file), content)
        else:
            logger.debug("%s: ignored, not a spec", file)
    if not found:
        note = f"no YAML file below `{directory}` has `apiVersion: gpuinfra/v1`"
        help_line = "`gpuinfra init` writes a starter"
        yield Loaded(diagnostics=[Diagnostic(Code.NO_SPEC_FOUND, "no spec found", note=note, help=help_line)])


def _read_named(file: Path) -> bytes | Diagnostic:
    """Return a file's content, or a diagnostic if a link leads to something that is not a spec.

    Errors show lines of the file, and a link in a foreign project could lead to any file of the user.
    """
    content = _read(file)
    parts = [file] if file.is_absolute() else [file, *file.parents]
    if isinstance(content, Diagnostic) or mentions_spec(content) or not any(part.is_symlink() for part in parts):
        return content
    note = f"`{file}` is a symbolic link to `{file.resolve()}`, which has no `apiVersion: gpuinfra/v1`"
    return Diagnostic(
        Code.FILE_UNREADABLE, "link to a file that is not a spec", note=note, help="name that file directly"
    )


def _read(file: Path) -> bytes | Diagnostic:
    try:
        # In a project, it may be that no program ever writes to it. A shell's pipes are in `/dev`.
        if file.is_fifo() and not file.is_relative_to("/dev"):
            return Diagnostic(Code.FILE_UNREADABLE, "file cannot be read", note=f"`{file}`: it is a named pipe")
        with file.open("rb") as stream:
            return stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return Diagnostic(Code.FILE_NOT_FOUND, "no such file", note=f"`{file}` does not exist")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return Diagnostic(Code.FILE_UNREADABLE, "file cannot be read", note=f"`{file}`: {reason}")


def same_names(specs: list[LocatedSpec]) -> Iterator[Diagnostic]:
    """Report specs with the same name. Azure ignores case in names."""
    seen: dict[str, LocatedSpec] = {}
    for located in specs:
        first = seen.setdefault(located.spec.name.casefold(), located)
        if first is not located:
            where = f"{first.span.file}:{first.span.line}:{first.span.column}"
            yield Diagnostic(
                Code.DUPLICATE_NAME,
                "two specs with one name",
                located.span,
                f"`{first.spec.name}` is already defined at {where}",
                help="rename or remove one of them",
            )
