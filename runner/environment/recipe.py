"""How an environment's image is made: everything that is decided before Docker is asked."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem, Severity
from gpuinfra.runner.environment.requirements import Requirements
from gpuinfra.runner.environment.secrets import expand, secrets_in, spellings, telling
from gpuinfra.templates import read_template
from gpuinfra.workbench.conda import Conda, Installer, Package, read_conda

# 3.5.2 is 3005002. The first with `venv`, and the first that is none of today's Python.
FIRST_PYTHON, LAST_PYTHON = 3_003_000, 4_000_000
_PYTHON_STEPS = (1_000_000, 1_000, 1)
_NUMBER = r"(?P<number>[0-9]{1,2}(?:\.[0-9]{1,3}){0,2})"
# `=3.6`, `==3.6`, ` 3.6`, `=3.6.*`, each with a build behind it or not.
_EXACT = re.compile(rf"={{0,2}}\s*{_NUMBER}(?:\.?\*)?(?:[= ]\S*)?")
_BOUND = re.compile(rf"(?P<sign>>=|<=|>|<)\s*{_NUMBER}")


@dataclass(frozen=True, slots=True)
class PythonRange:
    """A Python from `first` on and before `end`."""

    text: str
    """As the file says it, for messages; empty where it says nothing."""
    first: int = FIRST_PYTHON
    end: int = LAST_PYTHON
    is_understood: bool = True
    """Where it is not, conda alone can tell which Python is meant."""

    @property
    def names(self) -> tuple[str, ...]:
        """By what names an image may have it, the likeliest first."""
        major, minor = self.first // 1_000_000, self.first // 1_000 % 1_000
        is_one = self.end <= self.first // 1_000 * 1_000 + 1_000
        return ("python", "python3", f"python{major}.{minor}") if is_one else ("python", "python3")


def python_range(conda: Conda) -> PythonRange:
    """What a file asks for."""
    package = conda.package("python", by=Installer.CONDA)
    if package is None or not package.version:
        return PythonRange("")
    if stretch := _stretch(package.version):
        return PythonRange(package.text, *stretch)
    return PythonRange(package.text, 0, LAST_PYTHON, is_understood=False)


def _stretch(version: str) -> tuple[int, int] | None:
    """The same as first and end; None where it is more than a version or bounds."""
    if exact := _EXACT.fullmatch(version.strip()):
        return _releases(exact["number"])
    first, end = FIRST_PYTHON, LAST_PYTHON
    for part in version.split(","):
        bound = _BOUND.fullmatch(part.strip())
        if bound is None:
            return None
        # `>3.6` and `<=3.6` are about 3.6.0, as conda and pip have it.
        least = _releases(bound["number"])[0]
        match bound["sign"]:
            case ">=":
                first = max(first, least)
            case ">":
                first = max(first, least + 1)
            case "<":
                end = min(end, least)
            case _:
                end = min(end, least + 1)
    return first, end


def _releases(number: str) -> tuple[int, int]:
    """Every release of a version: 3.6 has all of 3.6.0 to 3.6.999."""
    parts = [int(part) for part in number.split(".")]
    first = sum(part * step for part, step in zip(parts, _PYTHON_STEPS, strict=False))
    return first, first + _PYTHON_STEPS[len(parts) - 1]


# Whatever changes what is installed, other than the script, has to count this up: images are found by their digest.
VERSION = 1
PREFIX = "/opt/gpuinfra/environment"
PYTHON = f"{PREFIX}/bin/python"
SCRIPT = "environment.sh"
CONTEXT, INSIDE = "context", "/opt/gpuinfra-build"
LABEL, BUILDING_LABEL = "gpuinfra.environment", "gpuinfra.building"
# pip can bring these by itself.
_TOOLS = frozenset({"pip", "setuptools", "wheel"})
_TOOL_VERSION = re.compile(r"(?P<sign>={1,2}|>=|<=|>|<)\s*(?P<number>[0-9]+(?:\.[0-9]+)*)(?P<any>\.\*)?")


class Base(Protocol):
    """The image that an environment is built on."""

    @property
    def id(self) -> str:
        """`sha256:…`"""

    @property
    def name(self) -> str:
        """As the user calls it."""


@dataclass(frozen=True)
class Recipe:
    """Files for the build, and the tag by which its image is found again."""

    base: str
    """The base image's id."""
    tag: str
    files: Mapping[str, bytes | Path] = field(repr=False)
    """By name. Those that are bytes may have passwords in them: they are never in the image."""
    secrets: tuple[str, ...] = field(repr=False)
    """What must not be printed."""

    def dockerfile(self, building: str) -> str:
        """What the engine is to do. The label is that of one build alone: by it the first stage is found and removed.

        There are two stages, as each file that is copied stays in an image for ever, and may have passwords in it.
        """
        return f"""\
FROM {self.base} AS made
LABEL {BUILDING_LABEL}={building}
USER 0
COPY {CONTEXT}/ {INSIDE}/
RUN ["/bin/sh", "{INSIDE}/{SCRIPT}"]
FROM {self.base}
LABEL {LABEL}={self.tag.rpartition("/")[2]}
COPY --from=made {PREFIX}/ {PREFIX}/
ENV PATH={PREFIX}/bin:$PATH PYSPARK_PYTHON={PYTHON} PYSPARK_DRIVER_PYTHON={PYTHON}
"""


def recipe(
    base: Base, conda: Conda | None, project: Path, build_secrets: Mapping[str, str] | None = None
) -> Recipe | None:
    """How to make it; None where there is nothing to install. What cannot be made raises a Problem, with its places.

    `build_secrets` replace `${NAME}` in pip's lines, so that an index can have a password that is in no file. Any other
    name is an error: a project's files must not read the caller's environment.
    """
    if conda is None:
        return None
    secrets_by_name = build_secrets or {}
    requirements, pip, packages = _requirements(conda, project, secrets_by_name)
    python = python_range(conda)
    if not pip and not python.text and all(each.name == "python" for each in conda.packages):
        return None
    filled = [expand(line, secrets_by_name) for line in pip]
    tools, needs = _tools(conda)
    said = {
        SCRIPT: read_template(SCRIPT).encode(),
        "environment.yml": _environment(conda, packages, needs_pip=bool(pip)),
        "tools.txt": _lines(tools),
        "options": _script_input(conda, python, needs),
    }
    secrets = set().union(*(secrets_in(each) for each in (*filled, *conda.channels, *packages)))
    secrets |= {each for value in secrets_by_name.values() for each in spellings(value)}
    files: dict[str, bytes | Path] = {
        **said,
        **requirements.files,
        "requirements.txt": _lines(filled),
        "secrets": _lines(telling(secrets)),
    }
    # By the names of variables, not by their values: another password makes no other environment.
    digest = _digest(base.id, {**said, **requirements.files, "requirements.txt": _lines(pip)})
    return Recipe(base.id, f"gpuinfra/{digest[:16]}", files, telling(secrets))


def check_requirements(conda: Conda, project: Path, build_secrets: Collection[str]) -> None:
    """Raise a Problem for each line that cannot be installed, or that uses a variable that is not a build secret."""
    _requirements(conda, project, build_secrets)


def _requirements(
    conda: Conda, project: Path, build_secrets: Collection[str]
) -> tuple[Requirements, list[str], list[str]]:
    """The requirements, with their lines for pip and for conda."""
    requirements = Requirements(conda, project, frozenset(build_secrets))
    pip, packages = requirements.pip_lines(), requirements.conda_lines()
    _check(conda, requirements)
    return requirements, pip, packages


def _check(conda: Conda, requirements: Requirements) -> None:
    # A line that reading could not make out is among no packages: it would be missing without a word.
    _, diagnostics = read_conda(conda.path, conda.document)
    found: list[Diagnostic] = [*diagnostics, *requirements.diagnostics]
    if errors := [each for each in found if each.severity is Severity.ERROR]:
        raise Problem(*dict.fromkeys(errors), exit_code=Exit.USAGE)


def _tools(conda: Conda) -> tuple[list[str], list[str]]:
    """What pip is asked for before all else, and the packages that conda alone has."""
    tools, needs = [], []
    for package in conda.packages:
        if package.by is Installer.PIP or package.name == "python":
            continue
        line = _tool(package) if package.name in _TOOLS and package.url is None else None
        if line is None:
            needs.append(package.name or package.file or "a package")
        elif package.version:
            tools.append(line)
    return tools, needs


def _tool(package: Package) -> str | None:
    """The same in pip's words: conda's `=9.0` is `==9.0.*`."""
    if not package.version:
        return package.name
    found = _TOOL_VERSION.fullmatch(package.version)
    if found is None:
        return None
    is_prefix = found["sign"] == "=" or (found["any"] and found["sign"] == "==")
    return f"{package.name}{'==' if is_prefix else found['sign']}{found['number']}{'.*' if is_prefix else ''}"


def _environment(conda: Conda, packages: list[str], *, needs_pip: bool) -> bytes:
    """The file for conda: JSON, which is YAML as well. pip is called afterwards, in the same way for all."""
    wanted = [*packages]
    wanted += [
        name for name, is_needed in (("python", True), ("pip", needs_pip)) if is_needed and not _has(conda, name)
    ]
    document = {"channels": [*conda.channels], "dependencies": wanted} if conda.channels else {"dependencies": wanted}
    return json.dumps(document, indent=1).encode() + b"\n"


def _has(conda: Conda, name: str) -> bool:
    return conda.package(name, by=Installer.CONDA) is not None


def _script_input(conda: Conda, python: PythonRange, needs: list[str]) -> bytes:
    """Return the script's input, as a shell reads it. Names of files and images are not in it: they do not matter."""
    words = {
        "prefix": PREFIX,
        "python_text": python.text,
        "python_first": str(python.first),
        "python_end": str(python.end),
        "python_names": " ".join(python.names),
        "python_is_known": "yes" if python.is_understood else "",
        "only_conda_has": ", ".join(needs),
        "has_channels": "yes" if conda.channels else "",
    }
    return _lines(f"{name}={shlex.quote(word)}" for name, word in words.items())


def _lines(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")


def _digest(base: str, files: Mapping[str, bytes | Path]) -> str:
    """Of the base image and of every file's name and content, so that no other files give the same."""
    whole = hashlib.sha256(f"{VERSION} {base}\n".encode())
    for name in sorted(files):
        content = files[name]
        digest = hashlib.sha256(content).hexdigest() if isinstance(content, bytes) else _digest_of_file(content)
        whole.update(f"{digest} {len(name)} {name}\n".encode("utf-8", "surrogateescape"))
    return whole.hexdigest()


def _digest_of_file(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        note = f"`{file}`: {error.strerror}"
        raise Problem(Diagnostic(Code.FILE_UNREADABLE, "file cannot be read", note=note)) from error
