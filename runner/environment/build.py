"""Find or build the image with a project's environment on the target's Docker Engine, and read the build's output."""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import os
import re
import tarfile
import tempfile
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from gpuinfra.diagnostics import Code
from gpuinfra.runner.connection.port import CHUNK
from gpuinfra.runner.docker.client import Engine
from gpuinfra.runner.docker.images import find_image, note_use
from gpuinfra.runner.docker.stream import MessageReader
from gpuinfra.runner.environment.recipe import (
    BUILDING_LABEL,
    CONTEXT,
    IMAGES,
    ITEMS_LABEL,
    KIND_LABEL,
    PYTHON,
    Base,
    Recipe,
    make_recipe,
)
from gpuinfra.runner.environment.secrets import redact
from gpuinfra.runner.errors import ConnectError, JobError
from gpuinfra.runner.progress import Progress
from gpuinfra.workbench.conda import Conda

LAST_LINES = 20
MAX_LINE = 4096
STEP_MARK, REFUSAL_MARK, HELP_MARK = "gpuinfra: ", "gpuinfra-refusal: ", "gpuinfra-help: "
# The engine's lines about stages and layers, and the colours that it adds to standard error.
_ENGINE_LINE = re.compile(r"Step \d+/\d+ : | ---> |(?:Removing intermediate|Successfully (?:built|tagged)) ")
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class BuildOutput:
    """Reads an engine's report of a build as it arrives."""

    def __init__(self, output: Callable[[str], None], step: Callable[[str], None], secrets: tuple[str, ...]) -> None:
        self._output, self._step, self._secrets = output, step, secrets
        self._reader, self._text = MessageReader(), ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.last: deque[str] = deque(maxlen=LAST_LINES)
        self.error: str | None = None
        """The engine's error."""
        self.refusal: str | None = None
        """The error of the installation script."""
        self.help: str | None = None
        self.image: str | None = None
        """The ID of the last image that was built: at the end, the requested one."""

    def add(self, data: bytes) -> None:
        """Read the next part of the report."""
        for message in self._reader.add(data):
            self._message(message)

    def end(self) -> None:
        """Read the last message, after all parts."""
        self._message(self._reader.rest)
        self._line(self._text)
        self._text = ""

    def _message(self, message: bytes) -> None:
        try:
            found: Any = json.loads(message or b"{}")
        except (ValueError, RecursionError):
            found = {"stream": message.decode("utf-8", "replace") + "\n"}
        if not isinstance(found, dict):
            return
        detail = found.get("errorDetail")
        if error := (detail.get("message") if isinstance(detail, dict) else None) or found.get("error"):
            self.error = redact(self._secrets, str(error))
        if isinstance(aux := found.get("aux"), dict) and aux.get("ID"):
            self.image = str(aux["ID"])
        self._add(str(found.get("stream") or ""))

    def add_text(self, data: bytes) -> None:
        """Read the next part of an installer's output, if no engine wraps it in messages."""
        self._add(self._decoder.decode(data))

    def _add(self, text: str) -> None:
        *lines, self._text = (self._text + text).split("\n")
        for line in lines:
            self._line(line)
        if len(self._text) > 2 * MAX_LINE:
            self._shorten()

    def _shorten(self) -> None:
        """Print the first parts of a very long line, to limit its size in memory. No secret is split between parts."""
        self._text = redact(self._secrets, self._text)
        while len(self._text) > 2 * MAX_LINE:
            self._line(self._text[:MAX_LINE])
            self._text = self._text[MAX_LINE:]

    def _line(self, line: str) -> None:
        # Of a progress bar that overwrites itself, only the last state is shown.
        line = _COLOUR.sub("", line).rstrip("\r ").rpartition("\r")[2]
        if not line or _ENGINE_LINE.match(line):
            return
        line = redact(self._secrets, line)
        if line.startswith(REFUSAL_MARK):
            self.refusal = line.removeprefix(REFUSAL_MARK)
        elif line.startswith(HELP_MARK):
            self.help = line.removeprefix(HELP_MARK)
        else:
            if line.startswith(STEP_MARK):
                self._step(line.removeprefix(STEP_MARK))
            self.last.append(line)
            self._output(line)


# Starts the first Python on the image's PATH, if the image is the environment.
FIND_PYTHON = (
    "found=$(command -v python || command -v python3) || "
    '{ echo "gpuinfra: the image has no Python" >&2; exit 127; }; exec "$found" "$@"'
)


@dataclass(frozen=True, slots=True)
class Environment:
    """The image that a job runs in."""

    image: str
    """Its ID."""
    tag: str
    """Its name, or the base image's name if nothing had to be installed."""
    built: bool
    """Whether this call built it."""
    python: str | None
    """The environment's interpreter, or None to use the image's own: see `python_of`."""
    seconds: float


def python_of(environment: Environment) -> tuple[str, ...]:
    """Return the command that starts a job's interpreter. Its exit code is 127 if the image has no Python."""
    return (environment.python,) if environment.python else ("/bin/sh", "-c", FIND_PYTHON, "python")


STEP = "environment"
# conda and compilers may print nothing for a long time.
IDLE_SECONDS = 3600.0
CLEAN_SECONDS = 10.0
# First stages of builds that are older than this were left behind by lost connections.
ABANDONED = "1h"


def ensure_environment(  # noqa: PLR0913
    engine: Engine,
    base: Base,
    conda: Conda | None,
    project: Path,
    progress: Progress,
    output: Callable[[str], None],
    *,
    fresh: bool = False,
    may_build: bool = True,
    build_secrets: Mapping[str, str] | None = None,
) -> Environment:
    """Return the image for a project's jobs. Build it if the engine does not have it, or if `fresh` is set.

    The base image must be on the engine. Invalid requirements raise a Problem with their places in the file. A failed
    build raises a JobError, and so does a necessary build without `may_build`. `output` receives the build's lines.
    """
    began = time.monotonic()
    recipe = make_recipe(base, conda, project, build_secrets)
    if recipe is None:
        return Environment(base.id, base.name, built=False, python=None, seconds=time.monotonic() - began)
    existing = find_image(engine, recipe.tag)
    if existing and not fresh:
        note_use(engine, existing)
        return Environment(existing.id, recipe.tag, built=False, python=PYTHON, seconds=time.monotonic() - began)
    check_may_build(may_build=may_build)
    with building(progress, base.name):
        start = None if fresh else _find_start(engine, recipe)
        image = _build(engine, recipe, progress, output, start)
    if existing and existing.id != image:
        _remove(engine, existing.id)
    return Environment(image, recipe.tag, built=True, python=PYTHON, seconds=time.monotonic() - began)


def check_may_build(*, may_build: bool) -> None:
    """Raise JobError if a necessary build is not permitted."""
    if not may_build:
        note = "the target does not have it, and `PrepareEnvironment` is not `true` in the run configuration"
        raise JobError(
            "the environment is not prepared", note, "`gpuinfra prepare -c NAME` builds it", Code.BUILD_FAILED
        )


@contextlib.contextmanager
def building(progress: Progress, base: str) -> Iterator[None]:
    """Report the start, the end and the failure of a build."""
    began = time.monotonic()
    progress.begin(STEP, f"building on {base}")
    try:
        yield
    except JobError as error:
        progress.fail(STEP, error.summary)
        raise
    except ConnectError as error:
        progress.fail(STEP, str(error))
        raise
    progress.end(STEP, f"built in {time.monotonic() - began:.0f} s")


def _find_start(engine: Engine, recipe: Recipe) -> str | None:
    """Return the image with the most of the recipe's packages and no others, so that only the rest is installed."""
    if not recipe.kind:
        return None
    with engine.translated("looking for similar environments"):
        found = engine.api.images(filters={"label": f"{KIND_LABEL}={recipe.kind}"})
    with engine.understood():
        # The first stage of another build has the label of the image that it began with, and more packages. Others can
        # also put these labels on any image, but only those that gpuinfra made have its name.
        ours = (each for each in found if any(str(tag).startswith(IMAGES) for tag in each["RepoTags"] or ()))
        whole = [each for each in ours if BUILDING_LABEL not in each["Labels"]]
        sets = {str(each["Id"]): frozenset(str(each["Labels"][ITEMS_LABEL]).split(",")) for each in whole}
    fitting = {image: items for image, items in sets.items() if items <= recipe.items}
    return max(fitting, key=lambda image: (len(fitting[image]), image), default=None)


def _build(engine: Engine, recipe: Recipe, progress: Progress, output: Callable[[str], None], start: str | None) -> str:
    build_id = uuid.uuid4().hex
    report = BuildOutput(output, lambda doing: progress.begin(STEP, doing), recipe.secrets)
    with tempfile.TemporaryFile() as context:
        try:
            _pack(recipe, build_id, start, context)
        except OSError as error:
            note = f"{error.filename or 'temporary files'}: {error.strerror or error}"
            raise JobError("the environment's files cannot be read", note, code=Code.FILE_UNREADABLE) from error
        with _cleaned_up(engine, build_id), engine.translated("building the environment"):
            post_build(engine.api, recipe.tag, ContextUpload(context, progress), proxies_for(engine, progress), report)
    if report.error is not None or report.image is None:
        raise build_error(report, "the lines above are from the installer; the requirements are in the job's file")
    return report.image


def _pack(recipe: Recipe, build_id: str, start: str | None, into: IO[bytes]) -> None:
    """Write the build's files, uncompressed: large ones are wheels, which are already compressed."""
    with tarfile.open(fileobj=into, mode="w") as archive:
        add_content(archive, "Dockerfile", recipe.dockerfile(build_id, start).encode())
        for name, content in recipe.files.items():
            add_content(archive, f"{CONTEXT}/{name}", content)
    into.seek(0)


def add_content(archive: tarfile.TarFile, name: str, content: bytes | Path) -> None:
    """Add a file to a build."""
    entry = tarfile.TarInfo(name)
    with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as stream:
        entry.size = len(content) if isinstance(content, bytes) else os.fstat(stream.fileno()).st_size
        archive.addfile(entry, stream)


class ContextUpload:
    """The content of a request to the engine, which reports its progress."""

    def __init__(self, stream: IO[bytes], progress: Progress) -> None:
        self._stream, self._progress = stream, progress
        self._size, self._done = os.fstat(stream.fileno()).st_size, 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        return iter(lambda: self.read(1 << 16), b"")

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._done += len(data)
        self._progress.amount(STEP, self._done, self._size)
        return data


def proxies_for(engine: Engine, progress: Progress) -> dict[str, str]:
    """Return the proxies in the user's Docker settings, without those with a password if the engine may not have it."""
    proxies = dict(engine.api._proxy_configs.get_environment() or {})
    if engine.shares_credentials:
        return proxies
    without_password = {name: value for name, value in proxies.items() if "@" not in value}
    if without_password != proxies:
        progress.note(engine.withheld("proxies with a password in your Docker settings are"))
    return without_password


def post_build(
    api: Any, tag: str, context: ContextUpload, proxies: dict[str, str], report: BuildOutput, **more: str
) -> None:
    """Send the build request. The SDK's `build` is not used: its response cannot be closed, which stops a build."""
    options = {"t": tag, "rm": "1", "forcerm": "1", **more}
    # Like `docker build`, pass the proxies in the user's Docker settings. Engines do not store them in images.
    if proxies:
        options["buildargs"] = json.dumps(proxies)
    headers = {"Content-Type": "application/x-tar"}
    address = f"{api.base_url}/v{api.api_version}/build"
    with api.post(
        address, params=options, data=context, headers=headers, stream=True, timeout=IDLE_SECONDS
    ) as response:
        api._raise_for_status(response)
        for data in response.iter_content(CHUNK):
            report.add(data)
    report.end()


@contextlib.contextmanager
def _cleaned_up(engine: Engine, build_id: str) -> Iterator[None]:
    """Remove the first stage, which contains all files of the build, and first stages that lost connections left."""
    try:
        yield
    finally:
        # An error here must not hide the build's result; a later build removes what stays.
        with contextlib.suppress(ConnectError, JobError), engine.translated("removing temporary images of the build"):
            _clean(engine.api, f"{BUILDING_LABEL}={build_id}")
            engine.api.prune_images({"dangling": True, "label": [BUILDING_LABEL], "until": ABANDONED})


def _clean(api: Any, label: str) -> None:
    """Remove the containers and images of a build. A stopped build still has a container for a while."""
    from docker.errors import APIError  # type: ignore[import-untyped]

    ends = time.monotonic() + CLEAN_SECONDS
    while True:
        for container in api.containers(all=True, filters={"label": label}):
            with contextlib.suppress(APIError):  # the engine may be removing it already
                api.remove_container(container["Id"], force=True, v=True)
        with contextlib.suppress(APIError):  # the engine allows only one prune at a time
            api.prune_images({"dangling": True, "label": [label]})
        if not api.images(all=True, quiet=True, filters={"label": label}) or time.monotonic() >= ends:
            return
        time.sleep(0.1)


def _remove(engine: Engine, image: str) -> None:
    """Remove an image that was replaced by a newer one, unless a job uses it."""
    with contextlib.suppress(ConnectError, JobError), engine.translated("removing the replaced image"):
        engine.api.remove_image(image)


def build_error(report: BuildOutput, help_line: str) -> JobError:
    """Return the error of a failed build. `help_line` is for errors whose cause only the output shows."""
    summary, lines = "the environment cannot be built", "\n".join(report.last)
    if report.refusal:
        return JobError(summary, report.refusal, report.help, Code.BUILD_FAILED)
    if "no space left on device" in f"{lines}\n{report.error}".lower():
        help_line = "remove unused images there with `docker image prune`, or use a larger disk"
        return JobError("the target's disk is full", lines, help_line, Code.DISK_FULL)
    reason = report.error or "the engine's response ended too early"
    return JobError(summary, f"{lines}\n{reason}" if lines else reason, help_line, Code.BUILD_FAILED)
