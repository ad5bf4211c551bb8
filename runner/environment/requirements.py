"""What pip is given: the file's lines as they are, and the files of the project that they name."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from packaging.markers import InvalidMarker, Marker, UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement

from gpuinfra.diagnostics import Code, Diagnostic, Span
from gpuinfra.parse.source import Source
from gpuinfra.parse.tree import Scalar
from gpuinfra.runner.environment.secrets import VARIABLE
from gpuinfra.workbench.conda import MAX_LINE, Conda, Installer, Option, Package, parse
from gpuinfra.workbench.project import plain_path

FILES = "files"
NOT_REQUIREMENTS = "it cannot be read as requirements"
# Each file may include others.
_DEEPEST = 8
_MOST_FILES = 200
_LARGEST, _MOST_TEXT = 1 << 20, 4 << 20
_ARCHIVES = (".whl", ".tar.gz", ".tgz", ".zip", ".tar.bz2", ".conda")
_NAME = r"[A-Za-z0-9._-]+\s*(?:\[[^\]]*\])?"
# What conda would take and pip does not. All else is for pip to judge: one takes what the next does not.
_SLIPS = {
    re.compile(rf"{_NAME}\s*=(?!=).*"): "a single `=` is conda's; pip has `==`",
    re.compile(rf"{_NAME}\s*[=<>!~]=?\s*[^\s#]+#.*"): "what follows the `#` is part of the version",
    re.compile(rf"{_NAME}\s+[0-9][0-9A-Za-z.]*"): "a space is conda's; pip has `==`",
}
_OPTION = re.compile(
    r"(?P<option>-r|--requirement|-c|--constraint|-e|--editable|-f|--find-links)(?:\s*=\s*|\s*)(?P<value>[^\s=].*)"
)
_ADDRESS = re.compile(r"[a-z+]{2,}:|\$\{", re.IGNORECASE)
_COMMENT = re.compile(r"(?:^|\s)#.*")
_ELSEWHERE = re.compile(r"[A-Za-z]:|~|/")
_LINUX = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "platform_machine": "x86_64"}


@dataclass
class Requirements:
    """Lines for pip and lines for conda, the files that travel along, and what cannot be."""

    conda: Conda
    root: Path
    build_secrets: frozenset[str] = frozenset()
    """The names of the variables that lines may use."""
    files: dict[str, Path] = field(default_factory=dict)
    """By the name that they have on the way."""
    diagnostics: list[Diagnostic] = field(default_factory=list)
    _read: set[Path] = field(default_factory=set)
    """The files that were read: each is read once, however often others include it."""
    _checked: set[Path] = field(default_factory=set)
    """The files of constraints that were read."""
    _size: int = 0
    _refused: set[Diagnostic] = field(default_factory=set)
    """Each is reported once: the files that a line includes have only the line's own place."""

    def pip_lines(self) -> list[str]:
        """The file's own order: options stand among the packages."""
        items: list[Package | Option] = [each for each in self.conda.packages if each.by is Installer.PIP]
        items = sorted([*items, *self.conda.options], key=lambda each: each.node.start)
        beside = self.root / plain_path(self.conda.path)
        self._read, self._checked, self._size = set(), set(), 0
        for each in items:
            self._check_variables(each.text, self.conda.document.span(each.node))
        return [line for each in items for line in self._lines(each.text.strip(), each.node, beside.parent, ())]

    def conda_lines(self) -> list[str]:
        """What conda is asked for."""
        return [self._conda_line(each) for each in self.conda.packages if each.by is Installer.CONDA]

    def _conda_line(self, package: Package) -> str:
        if package.url is None:
            return package.text
        if not (package.file or "").lower().endswith((".tar.bz2", ".conda")):
            self._refuse(package.node, Code.BAD_REQUIREMENT, "not a package of conda's", "put it under `pip:`")
        return self._carried(package, self.root / plain_path(self.conda.path)) if package.is_local else package.text

    def _lines(self, text: str, node: Scalar, folder: Path, above: tuple[Path, ...]) -> Iterator[str]:
        if len(text.partition(" --hash=")[0].rstrip()) > MAX_LINE:
            label = f"a line is longer than {MAX_LINE} characters"
            self._refuse(node, Code.BAD_REQUIREMENT, label, None)
        elif "\n" in text or text.endswith("\\"):
            self._refuse(node, Code.BAD_REQUIREMENT, "more than one line", "write an item for each line")
        elif text.startswith("-"):
            yield from self._option(text, node, folder, above)
        elif len(text) > MAX_LINE:
            yield text  # with many hashes
        elif package := parse(Scalar(node.start, node.end, text, text), Installer.PIP):
            if package.is_local:
                if _is_meant(package, self.conda.python):
                    yield self._carried(package, folder / "_")
                return
            if package.url is None and (slip := _slip(text)):
                self._refuse(node, Code.BAD_REQUIREMENT, slip, _instead(text))
            yield text
        else:
            yield text

    def _option(self, text: str, node: Scalar, folder: Path, above: tuple[Path, ...]) -> Iterator[str]:
        found = _OPTION.fullmatch(text)
        if found is None or _ADDRESS.match(found["value"]):
            yield text
            return
        option, value = found["option"], found["value"].strip()
        place = self._place(value, node, folder)
        if place is None:
            return
        if option in {"-e", "--editable"}:
            self._refuse_folder(node)
        elif option in {"-f", "--find-links"}:
            yield f"--find-links ./{self._carry_folder(place, node)}"
        elif option in {"-c", "--constraint"}:
            self._check_constraints(place)
            yield f"--constraint ./{self._carry(place)}"
        else:
            yield from self._nested(place, node, above)

    def _nested(self, file: Path, node: Scalar, above: tuple[Path, ...]) -> Iterator[str]:
        """Yield the lines of another file instead of the line that names it. `above` are the files that lead to it."""
        if file in above:
            self._refuse(node, Code.FILE_UNREADABLE, NOT_REQUIREMENTS, None)
        if file in self._read:
            return
        if len(self._read) >= _MOST_FILES:
            self._refuse(node, Code.FILE_UNREADABLE, f"it includes more than {_MOST_FILES} files", None)
            return
        self._read.add(file)
        text = _text_of(file) if len(above) < _DEEPEST else None
        self._size += len(text or "")
        if text is None or self._size > _MOST_TEXT:
            self._refuse(node, Code.FILE_UNREADABLE, NOT_REQUIREMENTS, None)
            return
        for line, span in self._lines_with_spans(file, text):
            self._check_variables(line, span)
        for line in re.sub(r"\\\r?\n", " ", text).splitlines():
            if (said := _COMMENT.sub("", line).strip()) and said != "\\":
                yield from self._lines(said, node, file.parent, (*above, file))

    def _lines_with_spans(self, file: Path, text: str) -> Iterator[tuple[str, Span]]:
        source = Source(file.relative_to(self.root.resolve()).as_posix(), text)
        for found in re.finditer(r"[^\r\n]+", text):
            yield found[0], source.span(found.start(), found.end())

    def _check_variables(self, line: str, span: Span) -> None:
        """Refuse a variable that is not a build secret: its value could be a secret of the caller."""
        for found in VARIABLE.finditer(_COMMENT.sub("", line)):
            name = found["name"]
            if name not in self.build_secrets:
                label = f"`${{{name}}}` is not read from your environment"
                help_line = f"to allow this project to use its value: `--build-secret {name}`"
                summary = "variable that is not a build secret"
                self.diagnostics.append(Diagnostic(Code.MISSING_SECRET, summary, span, label, help=help_line))

    def _check_constraints(self, file: Path) -> None:
        """Refuse variables here: pip reads this file as it is, in the build's own environment."""
        if file in self._checked:
            return
        self._checked.add(file)
        for line, span in self._lines_with_spans(file, _text_of(file) or ""):
            if VARIABLE.search(_COMMENT.sub("", line)):
                label, help_line = "variables are not replaced in constraints", f"move this line to `{self.conda.path}`"
                self.diagnostics.append(
                    Diagnostic(Code.BAD_REQUIREMENT, "invalid requirement", span, label, help=help_line)
                )

    def _carried(self, package: Package, beside: Path) -> str:
        """A line that names a file of the project, with the name that the file has on the way."""
        # What stands in brackets behind a path are extras, as behind a name.
        written = re.sub(r"\[[^\[\]]*\]$", "", (package.url or "").partition("#")[0].strip())
        place = self._place(written, package.node, beside.parent)
        if place is None:
            return ""
        if place.is_dir() or not place.name.lower().endswith(_ARCHIVES):
            self._refuse_folder(package.node)
            return ""
        return package.text.replace(written, f"./{self._carry(place)}", 1)

    def _carry(self, file: Path) -> str:
        """Files of one name may lie in two folders, so each has its own; a wheel has to keep its name."""
        name = f"{self._folder_for(file.parent)}/{file.name}"
        self.files[name] = file
        return name

    def _folder_for(self, folder: Path) -> str:
        path = folder.relative_to(self.root.resolve()).as_posix()
        return f"{FILES}/{hashlib.sha256(path.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}"

    def _carry_folder(self, place: Path, node: Scalar) -> str:
        """The packages of a folder, or the one file with links to them."""
        if place.is_file():
            return self._carry(place)
        name = self._folder_for(place)
        try:
            found = [each for each in sorted(place.iterdir()) if each.name.lower().endswith(_ARCHIVES)]
        except OSError as error:
            self._refuse(node, Code.FILE_UNREADABLE, f"it cannot be read: {error.strerror}", None)
            return name
        # A link may lead to what is not the project's.
        inside = [each for each in found if each.is_file() and each.resolve().is_relative_to(self.root.resolve())]
        self.files |= {f"{name}/{each.name}": each for each in inside}
        return name

    def _place(self, path: str, node: Scalar, folder: Path) -> Path | None:
        """Where a path leads, from the project's folder or from the file's own; nothing leads out of the project."""
        root = self.root.resolve()
        if not _ELSEWHERE.match(plain_path(path)):
            for start in (self.root, folder):
                try:
                    place = (start / plain_path(path)).resolve()
                    is_there = place.exists()
                except (OSError, ValueError, RuntimeError):
                    continue  # a name that no system takes, or links in a circle
                if is_there and place.is_relative_to(root):
                    return place
                if is_there:
                    help_line = "put it into the project, and write its path from there"
                    self._refuse(node, Code.MISSING_FILE, "it is not in the project", help_line)
                    return None
        is_elsewhere = _ELSEWHERE.match(plain_path(path))
        label = "a file of one computer, which is not sent along" if is_elsewhere else "there is no such file"
        self._refuse(node, Code.MISSING_FILE, label, "put it into the project, and write its path from there")
        return None

    def _refuse_folder(self, node: Scalar) -> None:
        help_line = "make a wheel of it with `pip wheel --no-deps`, and name that"
        self._refuse(node, Code.BAD_REQUIREMENT, "only wheels and archives are sent along", help_line)

    def _refuse(self, node: Scalar, code: Code, label: str, help_line: str | None) -> None:
        summary = {Code.MISSING_FILE: "missing file", Code.FILE_UNREADABLE: "file cannot be read"}.get(code)
        span = self.conda.document.span(node)
        diagnostic = Diagnostic(code, summary or "invalid requirement", span, label, help=help_line)
        if diagnostic not in self._refused:
            self._refused.add(diagnostic)
            self.diagnostics.append(diagnostic)


def _text_of(file: Path) -> str | None:
    try:
        return file.read_text("utf-8-sig") if file.is_file() and file.stat().st_size <= _LARGEST else None
    except (OSError, UnicodeDecodeError):
        return None


def _slip(text: str) -> str | None:
    if _is_requirement(text):
        return None
    return next((label for pattern, label in _SLIPS.items() if pattern.fullmatch(text)), None)


def _instead(text: str) -> str:
    if "#" in text:
        return "put a space before the `#`"
    doubled = re.sub(r"\s*=\s*", "==", text, count=1)
    return f"write `{doubled}`" if _is_requirement(doubled) else "for example `numpy==1.13`"


def _is_requirement(text: str) -> bool:
    try:
        Requirement(text)
    except InvalidRequirement:
        return False
    return True


def _is_meant(package: Package, python: tuple[int, int] | None) -> bool:
    """Whether a line is for Linux; if that is unknown, it is."""
    if not package.marker:
        return True
    version = {"python_version": f"{python[0]}.{python[1]}"} if python else {}
    try:
        return Marker(package.marker).evaluate({**_LINUX, **version})
    except (InvalidMarker, UndefinedComparison, UndefinedEnvironmentName):
        return True
