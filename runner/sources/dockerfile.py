"""A Dockerfile of the project as a job's environment: what it copies, and from which images it is built."""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gpuinfra.diagnostics import Code, Diagnostic, Problem
from gpuinfra.parse.source import Source
from gpuinfra.parse.tree import Scalar
from gpuinfra.runner.sources.requirements_file import packages_of, read_source
from gpuinfra.workbench.conda import Conda, Installer, parse

# Instructions may continue on the next line after a backslash, also with comments between.
_INSTRUCTION = re.compile(r"(?:[^\n\\]|\\(?![ \t]*\r?\n)|\\[ \t]*\r?\n(?:[ \t]*(?:#[^\n]*)?\r?\n)*)+")
_CONTINUATION = re.compile(r"\\[ \t]*\r?\n(?:[ \t]*(?:#[^\n]*)?\r?\n)*")
# The builder of the Engine's API does not know these.
_BUILDKIT = re.compile(
    r"(?:RUN\s+--(?:mount|network|security|device)|(?:COPY|ADD)\s+(?:--\S+\s+)*--(?:link|parents|exclude|checksum|"
    r"keep-git-dir|unpack)|(?:RUN|COPY|ADD)\b[^\n]*\s<<-?[\"']?[A-Za-z_])",
    re.IGNORECASE,
)
_PIP = re.compile(r"(?:.*/)?pip[0-9.]*")
_END_OF_COMMAND = re.compile(r"[;&|()]+")
# Options of pip and uv that decide where packages are from, and others with a value as the next word.
_SOURCES = frozenset(
    "-i --index-url --extra-index-url --index --default-index -f --find-links -r --requirement".split()
)
_WITH_VALUE = frozenset(
    "-c --constraint -p --python --python-version --timeout --retries --cache-dir --trusted-host --progress-bar "
    "--upgrade-strategy --no-binary --only-binary --config-settings --src --log --proxy --cert".split()
)
# With these, the packages are not for the job's Python.
_ELSEWHERE = frozenset("-t --target --prefix --root --platform".split())


@dataclass(frozen=True)
class Dockerfile:
    """A Dockerfile, and what it needs from the project."""

    path: str
    """Its path in the project."""
    context: str
    """The folder in the project whose files it can copy; `.` is the project."""
    text: str = field(default="", repr=False)

    @property
    def bases(self) -> list[str]:
        """The images that it is built on, except those that only the engine can determine."""
        stages, found = {"scratch"}, []
        for name, written in _instructions(self.text):
            words = [word for word in written if not word.startswith("--")]
            if name != "FROM" or not words:
                continue
            if words[0].lower() not in stages and "$" not in words[0]:
                found.append(words[0])
            if len(words) == 3:
                stages.add(words[2].lower())
        return list(dict.fromkeys(found))

    @property
    def copied(self) -> tuple[str, ...] | None:
        """The paths in the context that it copies, which may contain wildcards; None means that it may copy any."""
        found: list[str] = []
        for name, written in _instructions(self.text):
            if name not in {"COPY", "ADD"} or any(word.startswith("--from=") for word in written):
                continue
            words = [word for word in written if not word.startswith("--")]
            if words[:1] and words[0].startswith("["):
                words = _json_words(" ".join(words))
            sources = [posixpath.normpath(word).lstrip("/") for word in words[:-1] if "://" not in word]
            if not words or any("$" in each or each in {".", ""} for each in sources):
                return None
            found += sources
        return tuple(dict.fromkeys(found))


def ignored_paths(project: Path, dockerfile: Dockerfile) -> list[str]:
    """Return the patterns of the Dockerfile's own ignore file, or of that in the context."""
    for file in (project / f"{dockerfile.path}.dockerignore", project / dockerfile.context / ".dockerignore"):
        try:
            lines = file.read_text("utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError):
            continue
        return [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    return []


def check_builder(source: Source) -> None:
    """Raise Problem for an instruction that only BuildKit knows, which the Engine's API does not offer."""
    for found in _INSTRUCTION.finditer(source.text):
        text = found[0].lstrip()
        if not text.startswith("#") and (match := _BUILDKIT.match(text)):
            start = found.start() + len(found[0]) - len(text)
            label = "only BuildKit knows this, and the machine's engine builds without it"
            help_line = "remove it, or build the image elsewhere, push it, and use `environment: {image: …}`"
            span = source.span(start, start + len(match[0]))
            raise Problem(Diagnostic(Code.BUILD_FAILED, "Dockerfile for BuildKit", span, label, help=help_line))


def base_image(project: Path, dockerfile: Dockerfile) -> Scalar | None:
    """Return the image that the last stage is built on, with its place; None if the file does not say."""
    source = read_source(project, dockerfile.path)
    stages: dict[str, Scalar] = {}
    base = None
    for found in _INSTRUCTION.finditer(source.text):
        name, words = next(_instructions(found[0]), ("", []))
        words = [word for word in words if not word.startswith("--")]
        if name == "FROM" and words:
            start = source.text.find(words[0], found.start())
            base = stages.get(words[0].lower()) or Scalar(start, start + len(words[0]), words[0], words[0])
            if len(words) == 3:
                stages[words[2].lower()] = base
    return None if base is None or "$" in base.text else base


def installed_packages(project: Path, dockerfile: Dockerfile) -> Conda:
    """Return what pip installs in the last stage, without words that have variables or name files in the image."""
    source = read_source(project, dockerfile.path)
    stages: dict[str, list[Scalar]] = {}
    lines: list[Scalar] = []
    for found in _INSTRUCTION.finditer(source.text):
        name, words = next(_instructions(found[0]), ("", []))
        if name == "FROM":
            words = [word for word in words if not word.startswith("--")]
            lines = [*stages.get(words[0].lower() if words else "", ())]
            if len(words) == 3:
                stages[words[2].lower()] = lines
        elif name == "RUN":
            place = found.start()
            for word, line in _pip_lines(found[0]):
                start = max(source.text.find(word, place, found.end()), place)
                place = start
                lines.append(Scalar(start, start + len(word), line, line))
    return packages_of(dockerfile.path, source, lines)


def _pip_lines(instruction: str) -> Iterator[tuple[str, str]]:
    """Yield the requirements and indexes of each `pip install`, as written and as a line for pip."""
    for command in _commands(instruction):
        starts = [
            number for number, word in enumerate(command[1:]) if word == "install" and _PIP.fullmatch(command[number])
        ]
        words = iter(command[starts[0] + 2 :] if starts else ())
        found: list[tuple[str, str]] = []
        for word in words:
            option, _, value = word.partition("=")
            if word == "#":
                break
            if option in _ELSEWHERE:
                found = []
                break
            if option in _SOURCES:
                value = value or next(words, "")
                found.append((value, f"{option} {value}"))
            elif word in _WITH_VALUE or re.fullmatch("[0-9]*[<>]+&?", word):
                next(words, None)
            elif not word.startswith("-") and "$" not in word and not word.isdigit():  # `2>&1`
                package = parse(Scalar(0, 0, word, word), Installer.PIP)
                found += [(word, word)] if package and not package.is_local else []
        yield from found


def _commands(instruction: str) -> Iterator[list[str]]:
    """Yield the words of each command of a RUN instruction."""
    _, _, line = _CONTINUATION.sub(" ", instruction).strip().partition(" ")
    if line.lstrip().startswith("["):
        yield _json_words(line)
        return
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|()<>")
    lexer.whitespace_split, lexer.commenters = True, ""  # a URL may have a `#`
    words: list[str] = []
    try:
        for word in lexer:
            if _END_OF_COMMAND.fullmatch(word):
                yield words
                words = []
            else:
                words.append(word)
    except ValueError:
        return  # a quote without an end
    yield words


def _instructions(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the words of each instruction."""
    for found in _INSTRUCTION.finditer(text):
        line = _CONTINUATION.sub(" ", found[0]).strip()
        name, _, rest = line.partition(" ")
        if line and not line.startswith("#"):
            yield name.upper(), _words(rest)


def _words(text: str) -> list[str]:
    if text.lstrip().startswith("["):
        return [text.strip()]
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _json_words(text: str) -> list[str]:
    try:
        found = json.loads(text)
    except ValueError:
        return []
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []
