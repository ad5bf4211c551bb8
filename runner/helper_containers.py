"""Short-lived containers: run a command in an image, and take over files that a job wrote as root."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence

from gpuinfra.diagnostics import Code
from gpuinfra.models.run import STDERR, STDOUT
from gpuinfra.runner.connection.port import Completed
from gpuinfra.runner.container import PROJECT_LABEL, RUN_LABEL, ContainerJob, start_container
from gpuinfra.runner.docker.client import Engine
from gpuinfra.runner.errors import ConnectError, JobError, TimedOut
from gpuinfra.runner.job_spec import Gpus, StartRequest

MAX_OUTPUT = 1 << 20
CHOWN_SECONDS = 600.0
MOUNT = "/gpuinfra-chown"
LABEL = "gpuinfra.helper"
# Longer than any helper runs, even if the clocks differ.
OLD_SECONDS = 3600.0
ROOT = "0:0"
# For images that have Python but no `chown`.
CHOWN = (
    "import os,sys\n"
    "user,group,top=int(sys.argv[1]),int(sys.argv[2]),sys.argv[3]\n"
    "os.lchown(top,user,group)\n"
    "for folder,folders,files in os.walk(top):\n"
    " for name in folders+files:os.lchown(os.path.join(folder,name),user,group)\n"
)


def run_once(
    engine: Engine,
    image: str,
    command: Sequence[str],
    *,
    mounts: Sequence[tuple[str, str]] = (),
    gpus: Gpus | None = None,
    timeout: float = 60.0,
    environment: Mapping[str, str] | None = None,
) -> Completed:
    """Run a command in a container as a job would run, remove the container, and return the first MiB of its output.

    Raise TimedOut if it takes too long, and JobError if it cannot start: `no-gpu` if the engine provides no GPU.
    """
    variables = dict(environment or {})
    request = StartRequest(
        _name(), tuple(command), "/", variables, gpus=gpus, image=image, mounts=tuple(mounts), labels={LABEL: "1"}
    )
    return _run(engine, request, timeout)


def _run(engine: Engine, request: StartRequest, timeout: float, user: str | None = None) -> Completed:
    job = start_container(engine, request, user)
    try:
        try:
            with engine.translated(f"running `{request.command[0]}` in the image"):
                ended = engine.api.wait(job.id, timeout=timeout)
        except TimedOut as error:
            raise TimedOut(f"`{request.command[0]}` in the image did not end within {timeout:g} s") from error
        stdout, stderr = _read_output(job)
        with engine.understood():
            return Completed(int(ended["StatusCode"]), stdout, stderr)
    finally:
        # An earlier error is more important than a failure here.
        with contextlib.suppress(ConnectError, JobError):
            job.remove()


def _name() -> str:
    return f"helper-{uuid.uuid4().hex[:12]}"


def remove_old(engine: Engine, seconds: float = OLD_SECONDS) -> None:
    """Remove helpers that killed clients left. Failures are ignored."""
    with contextlib.suppress(ConnectError, JobError), engine.translated("listing containers of killed clients"):
        for found in engine.api.containers(all=True, filters={"label": LABEL}):
            if time.time() - float(found["Created"]) > seconds:
                engine.api.remove_container(found["Id"], v=True, force=True)


def remove_forgotten(engine: Engine, project: str, known: Callable[[], Collection[str]]) -> None:
    """Remove ended containers of a project's jobs whose runs the target no longer knows."""
    filters = {"label": f"{PROJECT_LABEL}={project}", "status": ["exited", "dead"]}
    with engine.translated("listing containers of forgotten runs"):
        ended = engine.api.containers(all=True, filters=filters)
    runs = known() if ended else ()  # after the listing, so that no new run is missed
    with engine.translated("removing containers of forgotten runs"):
        for each in ended:
            if each["Labels"].get(RUN_LABEL) not in runs:
                engine.api.remove_container(each["Id"], v=True)


def take_ownership(engine: Engine, image: str, folder: str, user: int, group: int) -> None:
    """Make a user the owner of everything in a folder of the target, with any program of the image that can do so."""
    owner = f"{user}:{group}"
    commands = (
        ("chown", "-hR", owner, MOUNT),
        ("python3", "-c", CHOWN, str(user), str(group), MOUNT),
        ("python", "-c", CHOWN, str(user), str(group), MOUNT),
        ("busybox", "chown", "-hR", owner, MOUNT),
    )
    reason = ""
    for command in commands:
        try:
            request = StartRequest(_name(), command, "/", image=image, mounts=((folder, MOUNT),), labels={LABEL: "1"})
            completed = _run(engine, request, CHOWN_SECONDS, ROOT)
        except JobError as error:
            if error.code != Code.JOB_FAILED:
                raise
            reason = reason or str(error)  # the image has no such program
            continue
        if completed.exit_code == 0:
            return
        reason = completed.stderr.strip() or reason
    raise JobError(
        "root still owns the job's files",
        f"{folder}: {' '.join(reason.split())[:300]}",
        f"run on the target: `sudo chown -R {owner} {folder}`",
        Code.JOB_FAILED,
    )


def _read_output(job: ContainerJob) -> tuple[str, str]:
    streams: dict[int, bytearray] = {}
    size = 0
    with contextlib.closing(job.printed()) as frames:
        for frame in frames:
            data = frame.data[: MAX_OUTPUT - size]
            streams.setdefault(frame.stream, bytearray()).extend(data)
            size += len(data)
            if size >= MAX_OUTPUT:
                break
    stdout, stderr = (streams.get(stream, bytearray()).decode("utf-8", "replace") for stream in (STDOUT, STDERR))
    return stdout, stderr
