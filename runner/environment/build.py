"""Find or build the image with a project's environment on the target's Docker Engine."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tarfile
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from gpuinfra.diagnostics import Code
from gpuinfra.runner.connection.port import CHUNK
from gpuinfra.runner.docker.client import Engine
from gpuinfra.runner.docker.images import find_image
from gpuinfra.runner.environment.build_output import BuildOutput
from gpuinfra.runner.environment.recipe import BUILDING_LABEL, CONTEXT, PYTHON, Base, Recipe, make_recipe
from gpuinfra.runner.errors import ConnectError, JobError
from gpuinfra.runner.progress import Progress
from gpuinfra.workbench.conda import Conda

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
        return Environment(existing.id, recipe.tag, built=False, python=PYTHON, seconds=time.monotonic() - began)
    if not may_build:
        note = "the target does not have it, and `PrepareEnvironment` is not `true` in the run configuration"
        raise JobError(
            "the environment is not prepared", note, "`gpuinfra prepare -c NAME` builds it", Code.BUILD_FAILED
        )
    progress.begin(STEP, f"building on {base.name}")
    try:
        image = _build(engine, recipe, progress, output)
    except JobError as error:
        progress.fail(STEP, error.summary)
        raise
    except ConnectError as error:
        progress.fail(STEP, str(error))
        raise
    if existing and existing.id != image:
        _remove(engine, existing.id)
    seconds = time.monotonic() - began
    progress.end(STEP, f"built in {seconds:.0f} s")
    return Environment(image, recipe.tag, built=True, python=PYTHON, seconds=seconds)


def _build(engine: Engine, recipe: Recipe, progress: Progress, output: Callable[[str], None]) -> str:
    build_id = uuid.uuid4().hex
    report = BuildOutput(output, lambda doing: progress.begin(STEP, doing), recipe.secrets)
    with tempfile.TemporaryFile() as context:
        try:
            _pack(recipe, build_id, context)
        except OSError as error:
            note = f"{error.filename or 'temporary files'}: {error.strerror or error}"
            raise JobError("the environment's files cannot be read", note, code=Code.FILE_UNREADABLE) from error
        with _cleaned_up(engine, build_id), engine.translated("building the environment"):
            _post(engine.api, recipe.tag, _Upload(context, progress), proxies_for(engine, progress), report)
    if report.error is not None or report.image is None:
        raise _build_error(report)
    return report.image


def _pack(recipe: Recipe, build_id: str, into: IO[bytes]) -> None:
    """Write the build's files, uncompressed: large ones are wheels, which are already compressed."""
    with tarfile.open(fileobj=into, mode="w") as archive:
        _add(archive, "Dockerfile", recipe.dockerfile(build_id).encode())
        for name, content in recipe.files.items():
            _add(archive, f"{CONTEXT}/{name}", content)
    into.seek(0)


def _add(archive: tarfile.TarFile, name: str, content: bytes | Path) -> None:
    entry = tarfile.TarInfo(name)
    with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as stream:
        entry.size = len(content) if isinstance(content, bytes) else os.fstat(stream.fileno()).st_size
        archive.addfile(entry, stream)


class _Upload:
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


def _post(api: Any, tag: str, context: _Upload, proxies: dict[str, str], report: BuildOutput) -> None:
    """Send the build request. The SDK's `build` is not used: its response cannot be closed, which stops a build."""
    options = {"t": tag, "rm": "1", "forcerm": "1"}
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


def _build_error(report: BuildOutput) -> JobError:
    summary, lines = "the environment cannot be built", "\n".join(report.last)
    if report.refusal:
        return JobError(summary, report.refusal, report.help, Code.BUILD_FAILED)
    if "no space left on device" in f"{lines}\n{report.error}".lower():
        help_line = "remove unused images there with `docker image prune`, or use a larger disk"
        return JobError("the target's disk is full", lines, help_line, Code.DISK_FULL)
    reason = report.error or "the engine's response ended too early"
    help_line = "the lines above are from the installer; the requirements are in the conda file"
    return JobError(summary, f"{lines}\n{reason}" if lines else reason, help_line, Code.BUILD_FAILED)
