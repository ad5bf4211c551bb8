"""Find or make the Python environment of a job without a container, on the target or on this computer."""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gpuinfra.diagnostics import Code
from gpuinfra.remote.wire import JSON
from gpuinfra.runner.connection.remote_client import Call, RemoteClient
from gpuinfra.runner.environment.build import (
    IDLE_SECONDS,
    STEP,
    BuildOutput,
    add_content,
    build_error,
    building,
    check_may_build,
)
from gpuinfra.runner.environment.recipe import Recipe, make_recipe
from gpuinfra.runner.errors import JobError, job_errors
from gpuinfra.runner.progress import Progress
from gpuinfra.workbench.conda import Conda

CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class PythonEnvironment:
    """A Python environment on the target."""

    folder: str
    tag: str
    built: bool
    """Whether this call made it."""

    @property
    def python(self) -> str:
        """The path of its interpreter."""
        return f"{self.folder}/bin/python"


class Target:
    """What an environment without an image is made on: the machine's own Python programs."""

    id, name = "python", "the machine"


def ensure_venv(  # noqa: PLR0913
    remote: RemoteClient,
    packages: Conda,
    project: Path,
    progress: Progress,
    output: Callable[[str], None],
    *,
    fresh: bool = False,
    may_build: bool = True,
    build_secrets: Mapping[str, str] | None = None,
) -> PythonEnvironment | None:
    """Return the environment with these packages, or None if there is nothing to install. Make it if it is missing.

    Invalid requirements raise a Problem with their places in the file, and a failed installation a JobError.
    """
    recipe = make_recipe(Target(), packages, project, build_secrets, in_image=False)
    if recipe is None:
        return None
    digest = recipe.tag.rpartition("/")[2]
    folder = None
    if not fresh:
        with job_errors("the target's environments cannot be read"):
            folder = remote.ask("environment-find", digest=digest)["folder"]
    if folder:
        return PythonEnvironment(str(folder), recipe.tag, built=False)
    check_may_build(may_build=may_build)
    with building(progress, Target.name):
        made = _make(remote, recipe, digest, progress, output, fresh=fresh)
    return PythonEnvironment(made, recipe.tag, built=True)


def _make(
    remote: RemoteClient,
    recipe: Recipe,
    digest: str,
    progress: Progress,
    output: Callable[[str], None],
    *,
    fresh: bool,
) -> str:
    report = BuildOutput(output, lambda doing: progress.begin(STEP, doing), recipe.secrets)
    request = {"digest": digest, "fresh": fresh}
    with tempfile.TemporaryFile() as context:
        _pack(recipe, context)
        with (
            job_errors("the environment cannot be made"),
            remote.call("environment-make", request, idle=IDLE_SECONDS) as call,
        ):
            _send(call, context)
            while True:
                kind, data = call.receive()
                if kind == JSON:
                    found = call.read_object(data)
                    break
                report.add_text(data)
    report.end()
    if found["code"] or not found["folder"]:
        report.error = report.error or f"the installer ended with exit code {found['code']}"
        raise build_error(report, "the lines above are from the installer; the requirements are in the job's file")
    return str(found["folder"])


def _pack(recipe: Recipe, context: IO[bytes]) -> None:
    try:
        with tarfile.open(fileobj=context, mode="w") as archive:
            for name, content in recipe.files.items():
                add_content(archive, name, content)
    except OSError as error:
        note = f"{error.filename or 'temporary files'}: {error.strerror or error}"
        raise JobError("the environment's files cannot be read", note, code=Code.FILE_UNREADABLE) from error
    context.seek(0)


def _send(call: Call, context: IO[bytes]) -> None:
    while data := context.read(CHUNK):
        call.send(data)
    call.send(b"")
