"""A job in a container: the Docker Engine owns it, and it runs without a client."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from datetime import datetime, timedelta
from typing import Any

from gpuinfra.diagnostics import Code
from gpuinfra.remote.run_folder import container_name
from gpuinfra.runner.connection.port import CHUNK
from gpuinfra.runner.docker.client import Engine
from gpuinfra.runner.errors import Broken, JobError, TimedOut
from gpuinfra.runner.job_spec import Gpus, StartRequest
from gpuinfra.runner.jobs.container_log import (
    MisplacedError,
    Parser,
    advanced,
    beginning,
    since,
    unseen,
    with_line_ends,
)
from gpuinfra.runner.jobs.job import Ended, Frame, Position, StopReason

RUN_LABEL = "gpuinfra.run"
PROJECT_LABEL = "gpuinfra.project"
TIMEOUT_LABEL = "gpuinfra.timeout"
# Data loaders of PyTorch hand batches on by shared memory, and the engine's own 64 MiB is too little for one.
GPU_SHM_SIZE = 1 << 30
# `json-file` keeps no bytes that are not UTF-8. What an engine has as defaults may lose lines, from full files and
# from fast output, so all is said; the size is more than any disk's.
LOG = {
    "Type": "local",
    "Config": {"max-size": "1000t", "max-file": "1", "compress": "false", "mode": "blocking"},
}
NO_GPU = {"NVIDIA_VISIBLE_DEVICES": "void"}


def body_of(request: StartRequest, *, user: str | None = None, init: bool = True) -> dict[str, Any]:
    """What the engine is sent. Secrets are variables in it: they are in no list of processes, and gone with the
    container."""
    environment = {**request.environment, **request.secrets, **({} if request.gpus else NO_GPU)}
    labels = {**request.labels, RUN_LABEL: request.run}
    if request.timeout is not None:
        labels[TIMEOUT_LABEL] = repr(request.timeout)
    return {
        "Image": request.image,
        # Empty, and not left out: an image's own would take our command for its arguments.
        "Entrypoint": [],
        "Cmd": list(request.command),
        "WorkingDir": request.folder,
        "Env": [f"{name}={value}" for name, value in environment.items()],
        "Labels": labels,
        **({} if user is None else {"User": user}),
        "Tty": False,
        "StopSignal": "SIGTERM",
        "HostConfig": _host(request, init=init),
    }


def _host(request: StartRequest, *, init: bool) -> dict[str, Any]:
    host: dict[str, Any] = {
        # As mounts and not as binds: of a bind that is missing, the engine would make a folder that is root's.
        "Mounts": [{"Type": "bind", "Source": source, "Target": target} for source, target in request.mounts],
        "LogConfig": LOG,
        "RestartPolicy": {"Name": "no"},
        # A first process that collects children, and lets signals end a job that does not handle them.
        "Init": init,
    }
    if request.gpus:
        host["DeviceRequests"] = [_device_request(request.gpus)]
    if request.memory is not None:
        host["Memory"] = host["MemorySwap"] = request.memory
    shm_size = request.shm_size or (GPU_SHM_SIZE if request.gpus else None)
    if shm_size:
        host["ShmSize"] = shm_size
    return host


def _device_request(gpus: Gpus) -> dict[str, Any]:
    # No driver by name, as `docker run --gpus` has it: the engine takes the one that it has.
    request: dict[str, Any] = {"Driver": "", "Capabilities": [["gpu"]]}
    if gpus.ids:
        request["DeviceIDs"] = list(gpus.ids)
    else:
        request["Count"] = -1 if gpus.count is None else gpus.count
    return request


# A job that prints nothing for so long is asked for: what is silent may be an engine that hangs.
SILENCE_SECONDS = 120.0
# For the engine to do what takes it longer than an answer.
WORK_SECONDS = 120.0
CREATED = "created"
GONE = 404
CONFLICT = 409
NO_INIT = "docker-init"
# Exit codes of a job that was ended from outside: SIGKILL, SIGTERM, and an engine that lost sight of it.
FROM_OUTSIDE = (137, 143, 255)
# How many events an engine remembers of its own life.
MOST_EVENTS = 256


def start_container(engine: Engine, request: StartRequest, user: str | None = None) -> ContainerJob:
    """Begin the job, as the image's own user or as `user`. Its watcher (`start_watch`) stops it in time.

    One that an earlier try of the same run has begun, whose answer was lost, is taken as it is.
    """
    try:
        return _begin(engine, request, body_of(request, user=user))
    except JobError as error:
        if NO_INIT not in error.note:
            raise
    # The engine has no program to be the first process; then the job is it.
    return _begin(engine, request, body_of(request, user=user, init=False))


def _begin(engine: Engine, request: StartRequest, body: dict[str, Any]) -> ContainerJob:
    job = _create(engine, request, body)
    if job is None:
        found = _earlier(engine, request)
        job = ContainerJob(engine, _id_of(engine, found))
        with engine.understood():
            is_new = found["State"]["Status"] == CREATED
        if not is_new:
            return job  # it has begun, and may have ended: to start it would be to run it again
    _start(engine, job)
    return job


def _create(engine: Engine, request: StartRequest, body: dict[str, Any]) -> ContainerJob | None:
    """None where there is one of its name."""
    name = container_name(request.run)
    with engine.translated(f"making the container {name}"):
        try:
            made = engine.api.create_container_from_config(body, name)
        except Exception as error:
            if _status(error) != CONFLICT:
                raise
            return None
    return ContainerJob(engine, _id_of(engine, made))


def _id_of(engine: Engine, answer: dict[str, Any]) -> str:
    """The id in an engine's answer, which has to be a text with something in it."""
    with engine.understood():
        found = answer["Id"]
        if not isinstance(found, str) or not found:
            raise ValueError(f"Id: {found!r}")
    return found


def _earlier(engine: Engine, request: StartRequest) -> dict[str, Any]:
    """The container of an earlier try of the same run."""
    name = container_name(request.run)
    with engine.translated(f"looking at the container {name}"):
        found: dict[str, Any] = engine.api.inspect_container(name)
    with engine.understood():
        owner = (found["Config"].get("Labels") or {}).get(RUN_LABEL)
    if owner != request.run:
        raise JobError(
            "the container's name is taken",
            f"{name} on {engine.where} is not of this run",
            f"remove it there: `docker rm {name}`",
            Code.JOB_FAILED,
        )
    return found


def _start(engine: Engine, job: ContainerJob) -> None:
    try:
        with engine.translated("starting the container"):
            # The SDK's own call, with more time: a GPU's driver may have to wake up. One that runs already is fine.
            api = engine.api
            url = api._url("/containers/{0}/start", job.id)
            api._raise_for_status(api._post(url, timeout=WORK_SECONDS))
    except JobError:
        # It never ran, and would be in the way of the next try.
        with contextlib.suppress(JobError):
            job.remove()
        raise


class ContainerJob:
    """A container that was started."""

    def __init__(self, engine: Engine, container_id: str) -> None:
        self._engine, self.id = engine, container_id

    def frames(self, after: Position) -> Iterator[Frame]:
        """What it prints from there on, until it has ended and all was given."""
        place, last = after, None
        while True:
            try:
                for frame in self._new_frames(place, follow=True):
                    place, last = advanced(place, frame), frame
                    yield frame
            except TimedOut:
                if self._is_running():
                    continue
            else:
                if self._is_running():
                    raise Broken(f"the engine of {self._engine.where} has stopped to tell what the job prints")
            break
        if not self._is_last(last):
            yield from self._new_frames(place, follow=False)

    def printed(self) -> Generator[Frame, None, None]:
        """What it has printed up to now, from the beginning."""
        return self._new_frames(Position(), follow=False)

    def ended(self) -> Ended | None:
        """How it ended; None while it runs. One that the engine no longer knows is lost."""
        found = self._inspect()
        if found is None:
            return Ended(-1, StopReason.LOST, None, f"the engine of {self._engine.where} no longer knows the container")
        with self._engine.understood():
            state = found["State"]
            if state["Running"]:
                return None
            if state["Status"] == CREATED:
                return Ended(-1, StopReason.LOST, None, "the container was made, and never started")
            at, code = _moment(state["FinishedAt"]), int(state["ExitCode"])
            detail = str(state.get("Error") or "")
            return Ended(code, self._how(found, at, code), at, detail, _moment(state["StartedAt"]))

    def cancel(self, grace: float) -> None:
        """Ask it to end, and kill it after the grace period."""
        with self._engine.translated("stopping the job"), _unless_gone():
            api = self._engine.api
            url = api._url("/containers/{0}/stop", self.id)
            answer = api._post(url, params={"t": max(0, round(grace))}, timeout=grace + WORK_SECONDS)
            api._raise_for_status(answer)

    def remove(self) -> None:
        """Forget it, and end it where it runs. Absent is done."""
        with self._engine.translated("removing the container"), _unless_gone():
            self._engine.api.remove_container(self.id, v=True, force=True)

    def time_limit(self) -> float | None:
        """How long it may run, as was said when it was begun."""
        limit = self.label(TIMEOUT_LABEL)
        return float(limit) if limit else None

    def label(self, name: str) -> str | None:
        """The value of one of its labels."""
        found = self._inspect()
        with self._engine.understood():
            return found["Config"]["Labels"].get(name) if found else None

    def _inspect(self) -> dict[str, Any] | None:
        """None where the engine does not know it."""
        with self._engine.translated("looking at the job"):
            try:
                found: dict[str, Any] = self._engine.api.inspect_container(self.id)
            except Exception as error:
                if _status(error) != GONE:
                    raise
                return None
        with self._engine.understood():
            return {**found}

    def _is_running(self) -> bool:
        found = self._inspect()
        with self._engine.understood():
            return found is not None and bool(found["State"]["Running"])

    def _new_frames(self, after: Position, *, follow: bool) -> Generator[Frame, None, None]:
        try:
            yield from unseen(with_line_ends(self._read(beginning(after), follow=follow)), after)
        except MisplacedError:
            # The target's clock was set back. From its beginning, the log tells it all; nothing was given yet.
            yield from unseen(with_line_ends(self._read(0, follow=follow)), after)

    def _is_last(self, frame: Frame | None) -> bool:
        """Whether nothing comes after it: engines are known to end the telling a little before the end."""
        # All parts of a long line have one time, and may be the same: only a line's end tells.
        return frame is not None and frame.data.endswith(b"\n") and list(self._read(0, tail="1")) == [frame]

    def _read(self, start: int, *, follow: bool = False, tail: str = "all") -> Iterator[Frame]:
        """The engine's own frames from a time on."""
        engine, parser = self._engine, Parser()
        asked = {"stdout": 1, "stderr": 1, "timestamps": 1, "follow": int(follow), "since": since(start), "tail": tail}
        with engine.translated("reading the job's log"), contextlib.ExitStack() as stack:
            api = engine.api
            url = api._url("/containers/{0}/logs", self.id)
            answer = api._get(url, params=asked, stream=True, timeout=SILENCE_SECONDS)
            stack.callback(answer.close)
            if answer.status_code == GONE:
                return  # it was removed, and its log with it; `ended` says that it is lost
            api._raise_for_status(answer)
            while data := answer.raw.read1(CHUNK):
                yield from parser.feed(data)
        if not parser.is_whole:
            raise Broken(f"the connection to the engine of {engine.where} is lost in the middle of a line")

    def _how(self, found: dict[str, Any], at: datetime, code: int) -> StopReason:
        if found["State"].get("OOMKilled"):
            return StopReason.OUT_OF_MEMORY
        limit = found["Config"]["Labels"].get(TIMEOUT_LABEL)
        if limit and at - _moment(found["State"]["StartedAt"]) >= timedelta(seconds=float(limit)):
            return StopReason.TIMED_OUT
        if code in FROM_OUTSIDE and self._died_with_the_engine():
            return StopReason.ENGINE_STOPPED
        return StopReason.EXITED

    def _died_with_the_engine(self) -> bool:
        """Whether the engine, which remembers what happened since it was started, did not see it begin or end."""
        with self._engine.translated("asking for the job's end"):
            api = self._engine.api
            info = api.info()
            # By the engine's own clock: it would wait for a time that is to come.
            now = f"{_moment(info['SystemTime']).timestamp():.6f}"
            events = list(api.events(since=0, until=now, decode=True))
        seen = {event.get("status") for event in events if event.get("id") == self.id}
        survives = bool(info.get("LiveRestoreEnabled"))
        return len(events) < MOST_EVENTS and ("die" not in seen or ("start" not in seen and not survives))


def _status(error: Exception) -> int | None:
    return getattr(error, "status_code", None)


@contextlib.contextmanager
def _unless_gone() -> Iterator[None]:
    """What is about a container that is not there, or about to be gone, is done."""
    try:
        yield
    except Exception as error:
        is_going = _status(error) == CONFLICT and "already in progress" in str(error)
        if _status(error) != GONE and not is_going:
            raise


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)
