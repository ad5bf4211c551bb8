"""`conda_dependencies.yml`: the packages of a job's environment, each with its place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import unquote

from gpuinfra.diagnostics import Code, Diagnostic
from gpuinfra.parse.document import Document
from gpuinfra.parse.tree import Mapping, Node, Scalar, Sequence
from gpuinfra.workbench.fields import Fields

_CONDA = re.compile(
    r"(?:(?P<channel>[^\s:]+)::)?(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*)\s*(?P<version>(?:[=<>!~ \[].*)?)", re.DOTALL
)
_PIP = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(?P<extras>\[[^\]]*\])?\s*(?P<version>[^;@]*)", re.DOTALL)
_NAMED_URL = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*@\s*(?P<url>\S+).*", re.DOTALL)
_ARCHIVES = (".whl", ".tar.gz", ".zip", ".tar.bz2", ".conda")
# pip fills in variables of the environment before it reads a line.
_VARIABLE = re.compile(r"\$\{[A-Z0-9_]+\}")
_URL = re.compile(r"(?:[a-z+]+://|git\+)", re.IGNORECASE)


class By(StrEnum):
    """Who installs a package."""

    CONDA = "conda"
    PIP = "pip"


@dataclass(frozen=True)
class Package:
    """One line of the file. An option of pip's, such as `--index-url`, is none."""

    text: str
    node: Scalar
    by: By
    name: str
    """Lower case, `-` for `_` and `.`; empty where the line does not say."""
    version: str
    """What is asked of the version as it is written: `=3.5.2`, `>=1.13`, or nothing."""
    url: str | None = None
    """Where it is fetched from, or the path of a file in the project."""
    marker: str = ""
    """Where pip is to install it: `sys_platform == 'linux'`, as it is written; everywhere if it is empty."""

    @property
    def file(self) -> str | None:
        """The last part of the address, without query: a wheel says in it what it is for."""
        return _file_of(self.url) if self.url else None

    @property
    def is_local(self) -> bool:
        """Whether it is a file that has to travel along. What a variable stands for nobody can tell."""
        return self.url is not None and not _URL.match(self.url) and not _VARIABLE.search(self.url)


@dataclass(frozen=True)
class Option:
    """An option of pip's, written among the packages."""

    text: str
    node: Scalar


@dataclass(frozen=True)
class Conda:
    """What the file says."""

    path: str
    """Relative to the project."""
    document: Document
    name: str | None
    channels: tuple[str, ...]
    packages: tuple[Package, ...]
    options: tuple[Option, ...]

    def package(self, *names: str, by: By | None = None) -> Package | None:
        """The first package with one of these names."""
        found = (each for each in self.packages if each.name in names and by in {None, each.by})
        return next(found, None)

    @property
    def python(self) -> tuple[int, int] | None:
        """The version of Python that it asks for, if it says one."""
        package = self.package("python", by=By.CONDA)
        # `=3.5`, `==3.5` and ` 3.5` are that one; `>=3.5` is any of many.
        found = re.match(r"[= ]*(\d{1,3})\.(\d{1,3})", package.version) if package else None
        return (int(found[1]), int(found[2])) if found else None


def read_conda(path: str, document: Document) -> tuple[Conda, list[Diagnostic]]:
    """What a file says, and what is wrong with it."""
    diagnostics: list[Diagnostic] = []
    fields = Fields(document.source, document.root, diagnostics)
    packages: list[Package] = []
    options: list[Option] = []
    for by, node in _items(fields, document.root.items.get("dependencies")):
        if by is By.PIP and node.text.startswith("-"):
            options.append(Option(node.text, node))
        elif package := parse(node, by):
            packages.append(package)
        else:
            span = document.span(node)
            # The line itself is not quoted: it may be an address with a password in it.
            label = f"{by.value} cannot tell what this is"
            diagnostics.append(Diagnostic(Code.UNKNOWN_VALUE, "not a package", span, label, help=_example(by)))
    conda = Conda(
        path=path,
        document=document,
        name=fields.text("name"),
        channels=fields.texts("channels") or (),
        packages=tuple(packages),
        options=tuple(options),
    )
    return conda, diagnostics


def parse(node: Scalar, by: By) -> Package | None:
    """A line as a package; None where it is nothing of the kind."""
    text = node.text.strip()
    line, marker = _split_marker(text) if by is By.PIP else (text, "")
    if by is By.PIP and (named := _NAMED_URL.fullmatch(line)):
        return Package(text, node, by, normal(named["name"]), "", named["url"], marker)
    if _URL.match(line) or line.startswith((".", "/")) or line.lower().endswith(_ARCHIVES):
        return Package(text, node, by, _name_of(line), "", line, marker)
    if by is By.PIP and _VARIABLE.match(line):
        return Package(text, node, by, "", "", marker=marker)
    found = (_CONDA if by is By.CONDA else _PIP).fullmatch(line)
    return Package(text, node, by, normal(found["name"]), found["version"].strip(), None, marker) if found else None


def _split_marker(text: str) -> tuple[str, str]:
    """A line of pip's without its comment, and what stands behind its semicolon.

    Behind an address that is one with a space: others may be part of it.
    """
    said = re.split(r"\s#", text, maxsplit=1)[0]
    has_address = _URL.match(said) or _NAMED_URL.fullmatch(said)
    line, *rest = re.split(r";\s" if has_address else ";", said, maxsplit=1)
    return line.strip(), rest[0].strip() if rest else ""


def normal(name: str) -> str:
    """A package's name as PyPI compares them."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _name_of(url: str) -> str:
    """The package in a wheel's or an archive's name, or what is said of a repository."""
    if egg := re.search(r"#(?:.*&)?egg=(?P<name>[A-Za-z0-9._-]+)", url):
        return normal(egg["name"])
    found = re.match(r"(?P<name>[A-Za-z0-9._-]+?)-\d", _file_of(url))
    return normal(found["name"]) if found else ""


def _file_of(url: str) -> str:
    """The last part of an address or of a path, on whatever system it was written."""
    return unquote(re.split(r"[?#;\s]", url, maxsplit=1)[0].replace("\\", "/").rsplit("/", 1)[-1])


def _items(fields: Fields, node: Node | None, by: By = By.CONDA) -> Iterator[tuple[By, Scalar]]:
    """Each line, with who installs it."""
    if node is None or (isinstance(node, Scalar) and node.value is None):
        return
    if not isinstance(node, Sequence):
        _complain(fields, node, "a list of packages")
        return
    for item in node.items:
        if isinstance(item, Scalar):
            if item.value is not None:
                yield by, item
        elif by is By.CONDA and isinstance(item, Mapping) and item.keys.keys() == {"pip"}:
            yield from _items(fields, item.items["pip"], By.PIP)
        else:
            _complain(fields, item, "a package" if by is By.PIP else "a package, or `pip:` with a list")


def _complain(fields: Fields, node: Node, expected: str) -> None:
    span = fields.source.span(node.start, node.end)
    fields.diagnostics.append(Diagnostic(Code.WRONG_TYPE, "wrong type", span, f"expected {expected}"))


def _example(by: By) -> str:
    return "for example `numpy=1.13`" if by is By.CONDA else "for example `numpy==1.13`"
