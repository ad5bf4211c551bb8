"""Short-lived containers: a question to an image, and what only root can do with files that a job wrote."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence

from gpuinfra.diagnostics import Code
from gpuinfra.runner.connection.port import Completed
from gpuinfra.runner.docker.client import Engine
from gpuinfra.runner.errors import ConnectError, JobError, TimedOut
from gpuinfra.runner.job_spec import Gpus, StartRequest
from gpuinfra.runner.jobs.container import PROJECT_LABEL, RUN_LABEL, ContainerJob, start_container
from gpuinfra.runner.jobs.job import STDERR, STDOUT

MOST_OUTPUT = 1 << 20
SCRUB_SECONDS = 600.0
PLACE = "/gpuinfra-scrub"
LABEL = "gpuinfra.helper"
# No helper takes that long, whatever clock it is by.
OLD_SECONDS = 3600.0
ROOT = "0:0"
# For an image that has Python and little else.
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
    """Run it to its end as a job would run, and leave nothing behind. Of what it says, the first MiB is kept.

    Raises TimedOut if it takes longer, and JobError where it cannot begin: `no-gpu` where no GPU is given.
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
        stdout, stderr = _output(job)
        with engine.understood():
            return Completed(int(ended["StatusCode"]), stdout, stderr)
    finally:
        # What went wrong before counts more than what goes wrong now.
        with contextlib.suppress(ConnectError, JobError):
            job.remove()


def _name() -> str:
    return f"helper-{uuid.uuid4().hex[:12]}"


def remove_old(engine: Engine, seconds: float = OLD_SECONDS) -> None:
    """Remove helpers whose client was killed before it could. Failures are ignored."""
    with contextlib.suppress(ConnectError, JobError), engine.translated("looking for containers of killed clients"):
        for found in engine.api.containers(all=True, filters={"label": LABEL}):
            if time.time() - float(found["Created"]) > seconds:
                engine.api.remove_container(found["Id"], v=True, force=True)


def remove_forgotten(engine: Engine, project: str, known: Callable[[], Collection[str]]) -> None:
    """Remove containers of a project's jobs that have ended, and whose runs the target no longer knows."""
    wanted = {"label": f"{PROJECT_LABEL}={project}", "status": ["exited", "dead"]}
    with engine.translated("looking for containers of forgotten runs"):
        ended = engine.api.containers(all=True, filters=wanted)
    runs = known() if ended else ()  # only now: a run that has begun meanwhile is known
    with engine.translated("removing containers of forgotten runs"):
        for each in ended:
            if each["Labels"].get(RUN_LABEL) not in runs:
                engine.api.remove_container(each["Id"], v=True)


def scrub(engine: Engine, image: str, folder: str, user: int, group: int) -> None:
    """Make a user the owner of everything in a folder of the target, with any program that the image has for it."""
    owner = f"{user}:{group}"
    ways = (
        ("chown", "-hR", owner, PLACE),
        ("python3", "-c", CHOWN, str(user), str(group), PLACE),
        ("python", "-c", CHOWN, str(user), str(group), PLACE),
        ("busybox", "chown", "-hR", owner, PLACE),
    )
    said = ""
    for way in ways:
        try:
            request = StartRequest(_name(), way, "/", image=image, mounts=((folder, PLACE),), labels={LABEL: "1"})
            done = _run(engine, request, SCRUB_SECONDS, ROOT)
        except JobError as error:
            if error.code != Code.JOB_FAILED:
                raise
            said = said or str(error)  # that the image has no such program
            continue
        if done.exit_code == 0:
            return
        said = done.stderr.strip() or said
    raise JobError(
        "the job's files stay root's",
        f"{folder}: {' '.join(said.split())[:300]}",
        f"on the target: `sudo chown -R {owner} {folder}`",
        Code.JOB_FAILED,
    )


def _output(job: ContainerJob) -> tuple[str, str]:
    streams: dict[int, bytearray] = {}
    size = 0
    with contextlib.closing(job.printed()) as frames:
        for frame in frames:
            taken = frame.data[: MOST_OUTPUT - size]
            streams.setdefault(frame.stream, bytearray()).extend(taken)
            size += len(taken)
            if size >= MOST_OUTPUT:
                break
    stdout, stderr = (streams.get(stream, bytearray()).decode("utf-8", "replace") for stream in (STDOUT, STDERR))
    return stdout, stderr
