"""`conda_dependencies.yml`: the packages of a job's environment, with locations."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import unquote

from gpuinfra.diagnostics import Code, Diagnostic
from gpuinfra.parse.document import Document
from gpuinfra.parse.tree import Mapping, Node, Scalar, Sequence
from gpuinfra.workbench.fields import Fields

MAX_LINE = 2000
_CONDA = re.compile(
    r"(?:(?P<channel>[^\s:]+)::)?(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*)\s*(?P<version>(?:[=<>!~ \[].*)?)", re.DOTALL
)
_PIP = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(?P<extras>\[[^\]]*\])?\s*(?P<version>[^;@]*)", re.DOTALL)
_NAMED_URL = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*@\s*(?P<url>\S+).*", re.DOTALL)
_ARCHIVES = (".whl", ".tar.gz", ".zip", ".tar.bz2", ".conda")
# pip expands environment variables.
_VARIABLE = re.compile(r"\$\{[A-Z0-9_]+\}")
_URL = re.compile(r"(?:[a-z+]+://|git\+)", re.IGNORECASE)


class Installer(StrEnum):
    """The program that installs a package."""

    CONDA = "conda"
    PIP = "pip"


@dataclass(frozen=True)
class Package:
    """One package line. Options of pip, such as `--index-url`, are separate."""

    text: str
    node: Scalar
    by: Installer
    name: str
    """Lower case, with `-` for `_` and `.`; empty if the line does not say."""
    version: str
    """The version specifier as written: `=3.5.2`, `>=1.13`, or empty."""
    url: str | None = None
    """The URL, or the path of a file in the project."""
    marker: str = ""
    """The pip environment marker as written, such as `sys_platform == 'linux'`."""

    @property
    def file(self) -> str | None:
        """The file name in the URL, which says what a wheel is for."""
        return _file_of(self.url) if self.url else None

    @property
    def is_local(self) -> bool:
        """Whether it is a file that must be uploaded. URLs with variables are unknown."""
        return self.url is not None and not _URL.match(self.url) and not _VARIABLE.search(self.url)


@dataclass(frozen=True)
class Option:
    """A pip option among the packages."""

    text: str
    node: Scalar


@dataclass(frozen=True)
class Conda:
    """A file that names packages: a conda environment file, or another one with packages for pip alone."""

    path: str
    """The path relative to the project."""
    document: Document
    name: str | None
    channels: tuple[str, ...]
    packages: tuple[Package, ...]
    options: tuple[Option, ...]
    is_conda: bool = True
    """Whether it is a conda file."""

    @property
    def lines(self) -> tuple[Package | Option, ...]:
        """All packages and options."""
        return (*self.packages, *self.options)

    def package(self, *names: str, by: Installer | None = None) -> Package | None:
        """Return the first package with one of these names, or None."""
        found = (each for each in self.packages if each.name in names and by in {None, each.by})
        return next(found, None)

    @property
    def python(self) -> tuple[int, int] | None:
        """The requested Python version, or None."""
        package = self.package("python", by=Installer.CONDA)
        # `=3.5`, `==3.5` and ` 3.5` request that version; `>=3.5` does not.
        found = re.match(r"[= ]*(\d{1,3})\.(\d{1,3})", package.version) if package else None
        return (int(found[1]), int(found[2])) if found else None


def read_conda(path: str, document: Document) -> tuple[Conda, list[Diagnostic]]:
    """Return the environment of a file, and its problems."""
    diagnostics: list[Diagnostic] = []
    fields = Fields(document.source, document.root, diagnostics)
    packages: list[Package] = []
    options: list[Option] = []
    for by, node in _items(fields, document.root.items.get("dependencies")):
        if len(node.text) > MAX_LINE:
            label = f"longer than {MAX_LINE} characters"
            fields.complain(node, Code.UNKNOWN_VALUE, "not a package", label)
        elif by is Installer.PIP and node.text.startswith("-"):
            options.append(Option(node.text, node))
        elif package := parse(node, by):
            packages.append(package)
        else:
            # Do not quote the line: it may be a URL with a password.
            label = f"not a package specification of {by.value}"
            fields.complain(node, Code.UNKNOWN_VALUE, "not a package", label, _example(by))
    conda = Conda(
        path=path,
        document=document,
        name=fields.text("name"),
        channels=fields.texts("channels"),
        packages=tuple(packages),
        options=tuple(options),
    )
    return conda, diagnostics


def parse(node: Scalar, by: Installer) -> Package | None:
    """Return a line as a package, or None if it is not one."""
    text = node.text.strip()
    line, marker = _split_marker(text) if by is Installer.PIP else (text, "")
    if by is Installer.PIP and (named := _NAMED_URL.fullmatch(line)):
        return Package(text, node, by, normal(named["name"]), "", named["url"], marker)
    if _URL.match(line) or line.startswith((".", "/")) or line.lower().endswith(_ARCHIVES):
        return Package(text, node, by, _name_of(line), "", line, marker)
    if by is Installer.PIP and _VARIABLE.match(line):
        return Package(text, node, by, "", "", marker=marker)
    found = (_CONDA if by is Installer.CONDA else _PIP).fullmatch(line)
    return Package(text, node, by, normal(found["name"]), found["version"].strip(), None, marker) if found else None


def _split_marker(text: str) -> tuple[str, str]:
    """Return a line of pip without its comment and checksums, and the marker after its semicolon.

    After a URL, only a semicolon with a space starts a marker: others may be part of the URL.
    """
    said = re.split(r"\s(?:#|--hash=)", text, maxsplit=1)[0]
    has_address = _URL.match(said) or _NAMED_URL.fullmatch(said)
    line, *rest = re.split(r";\s" if has_address else ";", said, maxsplit=1)
    return line.strip(), rest[0].strip() if rest else ""


def is_requirement(text: str) -> bool:
    """Return whether a line is a requirement as pip reads it."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        Requirement(text)
    except InvalidRequirement:
        return False
    return True


def normal(name: str) -> str:
    """Return a package's name as PyPI compares names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _name_of(url: str) -> str:
    """Return the package in a file name, or in the `egg` of a repository's URL; empty if there is none."""
    if egg := re.search(r"#(?:.*&)?egg=(?P<name>[A-Za-z0-9._-]+)", url):
        return normal(egg["name"])
    found = re.match(r"(?P<name>[A-Za-z0-9._-]+?)-\d", _file_of(url))
    return normal(found["name"]) if found else ""


def _file_of(url: str) -> str:
    """Return the last part of a URL, or of a path from any operating system."""
    return unquote(re.split(r"[?#;\s]", url, maxsplit=1)[0].replace("\\", "/").rsplit("/", 1)[-1])


def _items(fields: Fields, node: Node | None, by: Installer = Installer.CONDA) -> Iterator[tuple[Installer, Scalar]]:
    """Return each line with its installer."""
    if node is None or (isinstance(node, Scalar) and node.value is None):
        return
    if not isinstance(node, Sequence):
        fields.complain(node, Code.WRONG_TYPE, "wrong type", "expected a list of packages")
        return
    for item in node.items:
        if isinstance(item, Scalar):
            if item.value is not None:
                yield by, item
        elif by is Installer.CONDA and isinstance(item, Mapping) and item.keys.keys() == {"pip"}:
            yield from _items(fields, item.items["pip"], Installer.PIP)
        else:
            expected = "a package" if by is Installer.PIP else "a package, or `pip:` with a list"
            fields.complain(item, Code.WRONG_TYPE, "wrong type", f"expected {expected}")


def _example(by: Installer) -> str:
    return "for example `numpy=1.13`" if by is Installer.CONDA else "for example `numpy==1.13`"
