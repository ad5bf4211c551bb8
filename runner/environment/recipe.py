"""The recipe of an environment's image: its Python, Dockerfile and files, decided without an engine."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem, Severity
from gpuinfra.runner.environment.requirements import Requirements
from gpuinfra.runner.environment.secrets import expand, redactable, secrets_in, spellings
from gpuinfra.templates import read_template
from gpuinfra.workbench.conda import Conda, Installer, Package, read_conda

# 3.5.2 is 3005002. Python 3.3 is the first version with `venv`.
MIN_PYTHON, MAX_PYTHON = 3_003_000, 4_000_000
_PYTHON_STEPS = (1_000_000, 1_000, 1)
_NUMBER = r"(?P<number>[0-9]{1,2}(?:\.[0-9]{1,3}){0,2})"
# `=3.6`, `==3.6`, ` 3.6` and `=3.6.*`, each with or without a build.
_EXACT = re.compile(rf"={{0,2}}\s*{_NUMBER}(?:\.?\*)?(?:[= ]\S*)?")
_BOUND = re.compile(rf"(?P<sign>>=|<=|>|<)\s*{_NUMBER}")


@dataclass(frozen=True, slots=True)
class PythonRange:
    """The versions of Python from `first` up to, but not including, `end`."""

    text: str
    """The requirement in the file, for messages; empty if there is none."""
    first: int = MIN_PYTHON
    end: int = MAX_PYTHON
    is_understood: bool = True
    """Whether the requirement is a version or bounds. Only conda can evaluate others."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the program names that an image may have for it, the likeliest first."""
        major, minor = self.first // 1_000_000, self.first // 1_000 % 1_000
        is_one = self.end <= self.first // 1_000 * 1_000 + 1_000
        return ("python", "python3", f"python{major}.{minor}") if is_one else ("python", "python3")


def python_range(conda: Conda) -> PythonRange:
    """Return the versions of Python that a file requires."""
    package = conda.package("python", by=Installer.CONDA)
    if package is None or not package.version:
        return PythonRange("")
    if bounds := _bounds(package.version):
        return PythonRange(package.text, *bounds)
    return PythonRange(package.text, 0, MAX_PYTHON, is_understood=False)


def _bounds(version: str) -> tuple[int, int] | None:
    """Return the first and end number, or None if the text is not a version or bounds."""
    if exact := _EXACT.fullmatch(version.strip()):
        return _releases(exact["number"])
    first, end = MIN_PYTHON, MAX_PYTHON
    for part in version.split(","):
        bound = _BOUND.fullmatch(part.strip())
        if bound is None:
            return None
        # In conda and pip, `>3.6` and `<=3.6` refer to 3.6.0.
        number = _releases(bound["number"])[0]
        match bound["sign"]:
            case ">=":
                first = max(first, number)
            case ">":
                first = max(first, number + 1)
            case "<":
                end = min(end, number)
            case _:
                end = min(end, number + 1)
    return first, end


def _releases(number: str) -> tuple[int, int]:
    """Return the first and end number of a version's releases: 3.6 includes 3.6.0 to 3.6.999."""
    parts = [int(part) for part in number.split(".")]
    first = sum(part * step for part, step in zip(parts, _PYTHON_STEPS, strict=False))
    return first, first + _PYTHON_STEPS[len(parts) - 1]


# Increase this for a change of what is installed, except in the script: images are found by the digest of both.
VERSION = 1
PREFIX = "/opt/gpuinfra/environment"
PYTHON = f"{PREFIX}/bin/python"
SCRIPT = "environment.sh"
CONTEXT, INSIDE = "context", "/opt/gpuinfra-build"
# The names of the images that gpuinfra builds begin with it.
IMAGES = "gpuinfra/"
LABEL, BUILDING_LABEL = "gpuinfra.environment", "gpuinfra.building"
KIND_LABEL, ITEMS_LABEL = "gpuinfra.environment.kind", "gpuinfra.environment.items"
_ITEM_LETTERS = 16
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
    kind: str = ""
    """What two environments must share for one to be made from the other, as a digest; empty for conda files."""
    items: frozenset[str] = frozenset()
    """Digests of its requirements and of their files."""

    def dockerfile(self, build_id: str, start: str | None = None) -> str:
        """Return the Dockerfile of a build. The label with the build's ID is used to remove its first stage.

        There are two stages, because copied files stay in an image forever, and may contain passwords. `start` is an
        image that has some of the packages.
        """
        # Also without a value: images inherit labels, and those of the base image are not ours.
        items = ",".join(sorted(self.items))
        labels = f'{LABEL}={self.tag.rpartition("/")[2]} {KIND_LABEL}="{self.kind}" {ITEMS_LABEL}="{items}"'
        return f"""\
FROM {start or self.base} AS made
LABEL {BUILDING_LABEL}={build_id}
USER 0
COPY {CONTEXT}/ {INSIDE}/
RUN ["/bin/sh", "{INSIDE}/{SCRIPT}"]
FROM {self.base}
LABEL {labels}
COPY --from=made {PREFIX}/ {PREFIX}/
ENV PATH={PREFIX}/bin:$PATH PYSPARK_PYTHON={PYTHON} PYSPARK_DRIVER_PYTHON={PYTHON}
"""


def make_recipe(
    base: Base,
    conda: Conda | None,
    project: Path,
    build_secrets: Mapping[str, str] | None = None,
    *,
    in_image: bool = True,
) -> Recipe | None:
    """Return the recipe, or None if nothing has to be installed. Invalid requirements raise a Problem.

    `build_secrets` replace `${NAME}` in pip's lines, so that the password of an index need not be in a file. Another
    name is an error, because a project's files must not read your environment. An environment in an image includes the
    image's packages; another one is isolated, and the target decides its folder.
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
    script_files: dict[str, bytes] = {
        SCRIPT: read_template(SCRIPT).encode(),
        "environment.yml": _environment(conda, packages, needs_pip=bool(pip)),
        "tools.txt": _lines(tools),
        SETTINGS: _script_settings(conda, python, needs, in_image=in_image),
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
    recipe = Recipe(base.id, f"{IMAGES}{digest[:16]}", files, redactable(secrets))
    return recipe if conda.is_conda else _with_items(recipe, script_files, requirements.files, pip)


def _with_items(
    recipe: Recipe, script_files: Mapping[str, bytes], project_files: Mapping[str, Path], lines: list[str]
) -> Recipe:
    """Return the recipe with what decides from which other environments its own can be made: those with less."""
    options = [line for line in lines if line.startswith("-")]
    kind = _digest(recipe.base, {**script_files, "options": _lines(options)})[:_ITEM_LETTERS]
    items = {_digest("", {"line": line.encode()})[:_ITEM_LETTERS] for line in lines}
    items |= {_digest("", {name: path})[:_ITEM_LETTERS] for name, path in project_files.items()}
    return replace(recipe, kind=kind, items=frozenset(items))


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
    _, diagnostics = read_conda(conda.path, conda.document) if conda.is_conda else (conda, [])
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


def _script_settings(conda: Conda, python: PythonRange, needs: list[str], *, in_image: bool) -> bytes:
    """Return the script's settings in shell syntax, without names of files and images, which do not matter."""
    settings = {
        **({"prefix": PREFIX} if in_image else {"isolated": "yes"}),
        "python_text": python.text,
        "python_first": str(python.first),
        "python_end": str(python.end),
        "python_names": " ".join(python.names),
        "python_is_known": "yes" if python.is_understood else "",
        "only_conda_has": ", ".join(needs),
        "has_channels": "yes" if conda.channels else "",
    }
    return _lines(f"{name}={shlex.quote(word)}" for name, word in settings.items())


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
