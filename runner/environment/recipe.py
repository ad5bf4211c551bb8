"""The recipe of an environment's image: its Dockerfile and files, decided without an engine."""

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
from gpuinfra.runner.environment.python_range import PythonRange, python_range
from gpuinfra.runner.environment.requirements import Requirements
from gpuinfra.runner.environment.secrets import expand, redactable, secrets_in, spellings
from gpuinfra.templates import read_template
from gpuinfra.workbench.conda import Conda, Installer, Package, read_conda

# Increase this for a change of what is installed, except in the script: images are found by the digest of both.
VERSION = 1
PREFIX = "/opt/gpuinfra/environment"
PYTHON = f"{PREFIX}/bin/python"
SCRIPT = "environment.sh"
CONTEXT, INSIDE = "context", "/opt/gpuinfra-build"
LABEL, BUILDING_LABEL = "gpuinfra.environment", "gpuinfra.building"
# A file that the script reads.
SETTINGS = "settings"
# pip can install these itself.
_TOOLS = frozenset({"pip", "setuptools", "wheel"})
_TOOL_VERSION = re.compile(r"(?P<sign>={1,2}|>=|<=|>|<)\s*(?P<number>[0-9]+(?:\.[0-9]+)*)(?P<any>\.\*)?")


class Base(Protocol):
    """The image that an environment is built on."""

    @property
    def id(self) -> str:
        """`sha256:…`"""

    @property
    def name(self) -> str:
        """The name that the user gave."""


@dataclass(frozen=True)
class Recipe:
    """The files of a build, and the tag by which its image is found again."""

    base: str
    """The ID of the base image."""
    tag: str
    files: Mapping[str, bytes | Path] = field(repr=False)
    """By name. Bytes may contain passwords, and are never in the image."""
    secrets: tuple[str, ...] = field(repr=False)
    """Values that must not be printed."""

    def dockerfile(self, build_id: str) -> str:
        """Return the Dockerfile of a build. The label with the build's ID is used to remove its first stage.

        There are two stages, because copied files stay in an image forever, and may contain passwords.
        """
        return f"""\
FROM {self.base} AS made
LABEL {BUILDING_LABEL}={build_id}
USER 0
COPY {CONTEXT}/ {INSIDE}/
RUN ["/bin/sh", "{INSIDE}/{SCRIPT}"]
FROM {self.base}
LABEL {LABEL}={self.tag.rpartition("/")[2]}
COPY --from=made {PREFIX}/ {PREFIX}/
ENV PATH={PREFIX}/bin:$PATH PYSPARK_PYTHON={PYTHON} PYSPARK_DRIVER_PYTHON={PYTHON}
"""


def make_recipe(
    base: Base, conda: Conda | None, project: Path, build_secrets: Mapping[str, str] | None = None
) -> Recipe | None:
    """Return the recipe, or None if nothing has to be installed. Invalid requirements raise a Problem.

    `build_secrets` replace `${NAME}` in pip's lines, so that the password of an index need not be in a file. Another
    name is an error, because a project's files must not read your environment.
    """
    if conda is None:
        return None
    secrets_by_name = build_secrets or {}
    requirements, pip, packages = _requirements(conda, project, secrets_by_name)
    python = python_range(conda)
    if not pip and not python.text and all(each.name == "python" for each in conda.packages):
        return None
    expanded = [expand(line, secrets_by_name) for line in pip]
    tools, needs = _tools(conda)
    script_files = {
        SCRIPT: read_template(SCRIPT).encode(),
        "environment.yml": _environment(conda, packages, needs_pip=bool(pip)),
        "tools.txt": _lines(tools),
        SETTINGS: _script_settings(conda, python, needs),
    }
    secrets = set().union(*(secrets_in(each) for each in (*expanded, *conda.channels, *packages)))
    secrets |= {each for value in secrets_by_name.values() for each in spellings(value)}
    files: dict[str, bytes | Path] = {
        **script_files,
        **requirements.files,
        "requirements.txt": _lines(expanded),
        "secrets": _lines(redactable(secrets)),
    }
    # The digest uses the names of variables, not their values: another password does not change the environment.
    digest = _digest(base.id, {**script_files, **requirements.files, "requirements.txt": _lines(pip)})
    return Recipe(base.id, f"gpuinfra/{digest[:16]}", files, redactable(secrets))


def check_requirements(conda: Conda, project: Path, build_secrets: Collection[str]) -> None:
    """Raise a Problem for each line that cannot be installed, or that uses a variable that is not a build secret."""
    _requirements(conda, project, build_secrets)


def _requirements(
    conda: Conda, project: Path, build_secrets: Collection[str]
) -> tuple[Requirements, list[str], list[str]]:
    """Return the requirements, with their lines for pip and for conda."""
    requirements = Requirements(conda, project, frozenset(build_secrets))
    pip, packages = requirements.pip_lines(), requirements.conda_lines()
    _check(conda, requirements)
    return requirements, pip, packages


def _check(conda: Conda, requirements: Requirements) -> None:
    # A line that could not be parsed is not among the packages, so it must be reported here.
    _, diagnostics = read_conda(conda.path, conda.document)
    found: list[Diagnostic] = [*diagnostics, *requirements.diagnostics]
    if errors := [each for each in found if each.severity is Severity.ERROR]:
        raise Problem(*dict.fromkeys(errors), exit_code=Exit.USAGE)


def _tools(conda: Conda) -> tuple[list[str], list[str]]:
    """Return the lines that pip installs first, and the packages that only conda can install."""
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
    """Return a conda package in pip's syntax, where conda's `=9.0` is `==9.0.*`, or None if that is not possible."""
    if not package.version:
        return package.name
    found = _TOOL_VERSION.fullmatch(package.version)
    if found is None:
        return None
    is_prefix = found["sign"] == "=" or (found["any"] and found["sign"] == "==")
    return f"{package.name}{'==' if is_prefix else found['sign']}{found['number']}{'.*' if is_prefix else ''}"


def _environment(conda: Conda, packages: list[str], *, needs_pip: bool) -> bytes:
    """Return the file for conda, as JSON, which is valid YAML. pip's packages are installed separately."""
    wanted = [*packages]
    wanted += [
        name for name, is_needed in (("python", True), ("pip", needs_pip)) if is_needed and not _has(conda, name)
    ]
    document = {"channels": [*conda.channels], "dependencies": wanted} if conda.channels else {"dependencies": wanted}
    return json.dumps(document, indent=1).encode() + b"\n"


def _has(conda: Conda, name: str) -> bool:
    return conda.package(name, by=Installer.CONDA) is not None


def _script_settings(conda: Conda, python: PythonRange, needs: list[str]) -> bytes:
    """Return the script's settings in shell syntax, without names of files and images, which do not matter."""
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
    """Return the digest of the base image and of every file's name and content."""
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
