"""The requirements of a conda file: lines for pip and conda, and the project's files that they name."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from packaging.markers import InvalidMarker, Marker, UndefinedComparison, UndefinedEnvironmentName

from gpuinfra.diagnostics import Code, Diagnostic, Span
from gpuinfra.parse.source import Source
from gpuinfra.parse.tree import Scalar
from gpuinfra.runner.environment.secrets import VARIABLE
from gpuinfra.runner.sources.requirements_file import LINUX
from gpuinfra.workbench.conda import MAX_LINE, Conda, Installer, Option, Package, is_requirement, parse
from gpuinfra.workbench.project import plain_path

FILES = "files"
NOT_REQUIREMENTS = "it cannot be read as requirements"
# Each file may include others.
_MAX_DEPTH = 8
_MAX_FILES = 200
_MAX_FILE_SIZE, _MAX_TEXT = 1 << 20, 4 << 20
_ARCHIVES = (".whl", ".tar.gz", ".tgz", ".zip", ".tar.bz2", ".conda")
_NAME = r"[A-Za-z0-9._-]+\s*(?:\[[^\]]*\])?"
# Conda syntax that pip does not accept. pip itself judges all other lines, because its versions differ.
_CONDA_SYNTAX = {
    re.compile(rf"{_NAME}\s*=(?!=).*"): "pip needs `==`; a single `=` is conda's syntax",
    re.compile(rf"{_NAME}\s*[=<>!~]=?\s*[^\s#]+#.*"): "without a space, the `#` is part of the version",
    re.compile(rf"{_NAME}\s+[0-9][0-9A-Za-z.]*"): "pip needs `==`; a space is conda's syntax",
}
_OPTION = re.compile(
    r"(?P<option>-r|--requirement|-c|--constraint|-e|--editable|-f|--find-links)(?:\s*=\s*|\s*)(?P<value>[^\s=].*)"
)
_ADDRESS = re.compile(r"[a-z+]{2,}:|\$\{", re.IGNORECASE)
_COMMENT = re.compile(r"(?:^|\s)#.*")
_ELSEWHERE = re.compile(r"[A-Za-z]:|~|/")


@dataclass
class Requirements:
    """The lines for pip and conda, the files to send, and problems."""

    conda: Conda
    root: Path
    build_secrets: frozenset[str] = frozenset()
    """The names of the variables that lines may use."""
    files: dict[str, Path] = field(default_factory=dict)
    """The files to send, by their name in the build."""
    diagnostics: list[Diagnostic] = field(default_factory=list)
    _read: set[Path] = field(default_factory=set)
    """The included files that were read. Each is read once."""
    _checked: set[Path] = field(default_factory=set)
    """The constraint files that were read."""
    _size: int = 0
    _refused: set[Diagnostic] = field(default_factory=set)
    """Reported diagnostics. Each is reported once, because all files that a line includes have the line's place."""

    def pip_lines(self) -> list[str]:
        """Return the lines for pip in the file's order, with options among the packages."""
        items: list[Package | Option] = [each for each in self.conda.packages if each.by is Installer.PIP]
        items = sorted([*items, *self.conda.options], key=lambda each: each.node.start)
        folder = (self.root / plain_path(self.conda.path)).parent
        self._read, self._checked, self._size = set(), set(), 0
        for each in items:
            self._check_variables(each.text, self.conda.document.span(each.node))
        return [line for each in items for line in self._lines(each.text.strip(), each.node, folder, ())]

    def conda_lines(self) -> list[str]:
        """Return the lines for conda."""
        return [self._conda_line(each) for each in self.conda.packages if each.by is Installer.CONDA]

    def _conda_line(self, package: Package) -> str:
        if package.url is None:
            return package.text
        if not (package.file or "").lower().endswith((".tar.bz2", ".conda")):
            self._refuse(package.node, Code.BAD_REQUIREMENT, "not a conda package", "move it under `pip:`")
        folder = (self.root / plain_path(self.conda.path)).parent
        return self._local_file(package, folder) if package.is_local else package.text

    def _lines(self, text: str, node: Scalar, folder: Path, above: tuple[Path, ...]) -> Iterator[str]:
        if len(text.partition(" --hash=")[0].rstrip()) > MAX_LINE:
            label = f"a line is longer than {MAX_LINE} characters"
            self._refuse(node, Code.BAD_REQUIREMENT, label, None)
        elif "\n" in text or text.endswith("\\"):
            self._refuse(node, Code.BAD_REQUIREMENT, "more than one line", "write one item per line")
        elif text.startswith("-"):
            yield from self._option(text, node, folder, above)
        elif len(text) > MAX_LINE:
            yield text  # its hashes make it long
        elif package := parse(Scalar(node.start, node.end, text, text), Installer.PIP):
            if package.is_local:
                if _is_for_linux(package, self.conda.python):
                    yield self._local_file(package, folder)
                return
            if package.url is None and (problem := _conda_syntax(text)):
                self._refuse(node, Code.BAD_REQUIREMENT, problem, _suggestion(text))
            yield text
        else:
            yield text

    def _option(self, text: str, node: Scalar, folder: Path, above: tuple[Path, ...]) -> Iterator[str]:
        found = _OPTION.fullmatch(text)
        if found is None or _ADDRESS.match(found["value"]):
            yield text
            return
        option, value = found["option"], found["value"].strip()
        path = self._resolve(value, node, folder)
        if path is None:
            return
        if option in {"-e", "--editable"}:
            self._refuse_folder(node)
        elif option in {"-f", "--find-links"}:
            yield f"--find-links ./{self._add_folder(path, node)}"
        elif option in {"-c", "--constraint"}:
            self._check_constraints(path)
            yield f"--constraint ./{self._add_file(path)}"
        else:
            yield from self._nested(path, node, above)

    def _nested(self, file: Path, node: Scalar, above: tuple[Path, ...]) -> Iterator[str]:
        """Yield the lines of an included file. `above` are the files that include it."""
        if file in above:
            self._refuse(node, Code.FILE_UNREADABLE, NOT_REQUIREMENTS, None)
        if file in self._read:
            return
        if len(self._read) >= _MAX_FILES:
            self._refuse(node, Code.FILE_UNREADABLE, f"it includes more than {_MAX_FILES} files", None)
            return
        self._read.add(file)
        text = _text_of(file) if len(above) < _MAX_DEPTH else None
        self._size += len(text or "")
        if text is None or self._size > _MAX_TEXT:
            self._refuse(node, Code.FILE_UNREADABLE, NOT_REQUIREMENTS, None)
            return
        for line, span in self._lines_with_spans(file, text):
            self._check_variables(line, span)
        for line in re.sub(r"\\\r?\n", " ", text).splitlines():
            if (content := _COMMENT.sub("", line).strip()) and content != "\\":
                yield from self._lines(content, node, file.parent, (*above, file))

    def _lines_with_spans(self, file: Path, text: str) -> Iterator[tuple[str, Span]]:
        source = Source(file.relative_to(self.root.resolve()).as_posix(), text)
        for found in re.finditer(r"[^\r\n]+", text):
            yield found[0], source.span(found.start(), found.end())

    def _check_variables(self, line: str, span: Span) -> None:
        """Refuse a variable that is not a build secret, because its value could be another secret of the user."""
        for found in VARIABLE.finditer(_COMMENT.sub("", line)):
            name = found["name"]
            if name not in self.build_secrets:
                label = f"`${{{name}}}` is not read from your environment"
                help_line = f"to allow this project to use its value: `--build-secret {name}`"
                summary = "variable that is not a build secret"
                self.diagnostics.append(Diagnostic(Code.MISSING_SECRET, summary, span, label, help=help_line))

    def _check_constraints(self, file: Path) -> None:
        """Refuse variables in constraints, because pip would expand them from the build's environment."""
        if file in self._checked:
            return
        self._checked.add(file)
        for line, span in self._lines_with_spans(file, _text_of(file) or ""):
            if VARIABLE.search(_COMMENT.sub("", line)):
                label, help_line = "variables are not replaced in constraints", f"move this line to `{self.conda.path}`"
                self.diagnostics.append(
                    Diagnostic(Code.BAD_REQUIREMENT, "invalid requirement", span, label, help=help_line)
                )

    def _local_file(self, package: Package, folder: Path) -> str:
        """Return a line that names a file of the project, with the file's name in the build."""
        # Brackets after a path contain extras, as after a name.
        written = re.sub(r"\[[^\[\]]*\]$", "", (package.url or "").partition("#")[0].strip())
        path = self._resolve(written, package.node, folder)
        if path is None:
            return ""
        if path.is_dir() or not path.name.lower().endswith(_ARCHIVES):
            self._refuse_folder(package.node)
            return ""
        return package.text.replace(written, f"./{self._add_file(path)}", 1)

    def _add_file(self, file: Path) -> str:
        """Add a file to send, and return its name in the build. A wheel keeps its name."""
        name = f"{self._folder_for(file.parent)}/{file.name}"
        self.files[name] = file
        return name

    def _folder_for(self, folder: Path) -> str:
        path = folder.relative_to(self.root.resolve()).as_posix()
        return f"{FILES}/{hashlib.sha256(path.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}"

    def _add_folder(self, path: Path, node: Scalar) -> str:
        """Add the packages in a folder, or a file with links to packages. Return the name in the build."""
        if path.is_file():
            return self._add_file(path)
        name = self._folder_for(path)
        try:
            found = [each for each in sorted(path.iterdir()) if each.name.lower().endswith(_ARCHIVES)]
        except OSError as error:
            self._refuse(node, Code.FILE_UNREADABLE, f"it cannot be read: {error.strerror}", None)
            return name
        # A link may lead out of the project.
        inside = [each for each in found if each.is_file() and each.resolve().is_relative_to(self.root.resolve())]
        self.files |= {f"{name}/{each.name}": each for each in inside}
        return name

    def _resolve(self, path: str, node: Scalar, folder: Path) -> Path | None:
        """Return the file that a path names, relative to the project or to `folder`. Refuse one outside the project."""
        root = self.root.resolve()
        if not _ELSEWHERE.match(plain_path(path)):
            for start in (self.root, folder):
                try:
                    resolved = (start / plain_path(path)).resolve()
                    exists = resolved.exists()
                except (OSError, ValueError, RuntimeError):
                    continue  # an invalid name, or a cycle of links
                if exists and resolved.is_relative_to(root):
                    return resolved
                if exists:
                    help_line = "move it into the project, and use its path from there"
                    self._refuse(node, Code.MISSING_FILE, "it is not in the project", help_line)
                    return None
        is_elsewhere = _ELSEWHERE.match(plain_path(path))
        label = "an absolute path, which is not sent to the target" if is_elsewhere else "the file does not exist"
        self._refuse(node, Code.MISSING_FILE, label, "move it into the project, and use its path from there")
        return None

    def _refuse_folder(self, node: Scalar) -> None:
        help_line = "build a wheel with `pip wheel --no-deps`, and use the wheel"
        self._refuse(node, Code.BAD_REQUIREMENT, "only wheels and archives are sent to the target", help_line)

    def _refuse(self, node: Scalar, code: Code, label: str, help_line: str | None) -> None:
        summary = {Code.MISSING_FILE: "missing file", Code.FILE_UNREADABLE: "file cannot be read"}.get(code)
        span = self.conda.document.span(node)
        diagnostic = Diagnostic(code, summary or "invalid requirement", span, label, help=help_line)
        if diagnostic not in self._refused:
            self._refused.add(diagnostic)
            self.diagnostics.append(diagnostic)


def _text_of(file: Path) -> str | None:
    try:
        return file.read_text("utf-8-sig") if file.is_file() and file.stat().st_size <= _MAX_FILE_SIZE else None
    except (OSError, UnicodeDecodeError):
        return None


def _conda_syntax(text: str) -> str | None:
    if is_requirement(text):
        return None
    return next((label for pattern, label in _CONDA_SYNTAX.items() if pattern.fullmatch(text)), None)


def _suggestion(text: str) -> str:
    if "#" in text:
        return "put a space before the `#`"
    doubled = re.sub(r"\s*=\s*", "==", text, count=1)
    return f"write `{doubled}`" if is_requirement(doubled) else "for example `numpy==1.13`"


def _is_for_linux(package: Package, python: tuple[int, int] | None) -> bool:
    """Return whether a line's marker accepts Linux, or cannot be evaluated."""
    if not package.marker:
        return True
    version = {"python_version": f"{python[0]}.{python[1]}"} if python else {}
    try:
        return Marker(package.marker).evaluate({**LINUX, **version})
    except (InvalidMarker, UndefinedComparison, UndefinedEnvironmentName):
        return True
