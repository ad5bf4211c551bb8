"""Read a requirements file: its lines as packages and options for pip."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from gpuinfra.diagnostics import Code, Problem, problem
from gpuinfra.parse.document import Document
from gpuinfra.parse.source import Source
from gpuinfra.parse.tree import Mapping, Scalar
from gpuinfra.workbench.conda import Conda, Installer, Option, Package, parse
from gpuinfra.workbench.project import file_within

# A lock file of a large project has less than 4 MiB.
MAX_BYTES = 16 << 20
LINUX = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "platform_machine": "x86_64"}
"""The values of markers on a machine."""
# Lines that end with a backslash continue on the next one.
_LINE = re.compile(r"(?:[^\n\\]|\\(?!\r?\n)|\\\r?\n)+")
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*")


def read_requirements(project: Path, path: str) -> Conda:
    """Return the packages of a requirements file. Raise Problem if it cannot be read."""
    source = read_source(project, path)
    return packages_of(path, source, list(_lines(source.text)))


def packages_of(path: str, source: Source, lines: list[Scalar], *conda_packages: Package) -> Conda:
    """Return lines for pip, and packages for conda, as the packages of a file."""
    packages, options = list(conda_packages), []
    for line in lines:
        # pip itself judges a line that is unknown here.
        package = None if line.text.startswith("-") else parse(line, Installer.PIP)
        if package:
            packages.append(package)
        else:
            options.append(Option(line.text, line))
    document = Document(source, Mapping(0, 0, {}, {}), marked=False)
    return Conda(path, document, None, (), tuple(packages), tuple(options), is_conda=False)


def read_source(project: Path, path: str) -> Source:
    """Return a text file of the project. Raise Problem if it is missing, outside of the project, or not text."""
    file = file_within(project, path)
    if file is None:
        note = f"`{path}`, the job's environment, is not a file in `{project.absolute()}`"
        raise problem(Code.MISSING_FILE, "missing file", note, "create it, or change `job.environment` of the spec")
    try:
        if not file.resolve().is_relative_to(project.resolve()):
            raise _unreadable(file, "it is a symbolic link that leads out of the project")
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise _unreadable(file, f"it is larger than {MAX_BYTES >> 20} MiB")
        return Source(str(file), data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise _unreadable(file, "it is not UTF-8 text") from None
    except OSError as error:
        raise _unreadable(file, str(error.strerror)) from error


def _unreadable(file: Path, reason: str) -> Problem:
    return problem(Code.FILE_UNREADABLE, "file cannot be read", f"`{file}`: {reason}")


def _lines(text: str) -> Iterator[Scalar]:
    """Yield the lines without comments, each with its place. Continued lines are one."""
    for found in _LINE.finditer(text):
        parts = [_COMMENT.sub("", part).strip() for part in re.split(r"\\?\r?\n", found[0])]
        line = " ".join(part for part in parts if part)
        if line:
            start = found.start() + len(found[0]) - len(found[0].lstrip())
            end = start + len(found[0].lstrip().splitlines()[0].rstrip())
            yield Scalar(start, end, line, line)
