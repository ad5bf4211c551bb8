"""A job in a container, which the Docker Engine runs without a client."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from gpuinfra.diagnostics import Code
from gpuinfra.models.run import STDERR, STDOUT, Frame
from gpuinfra.remote.run_folder import container_name
from gpuinfra.runner.connection.port import CHUNK
from gpuinfra.runner.connection.remote_client import RemoteClient
from gpuinfra.runner.container_log import Parser, new_frames, restore_line_ends
from gpuinfra.runner.docker.client import Engine
from gpuinfra.runner.errors import Broken, JobError, TimedOut
from gpuinfra.runner.job import JobEnd, Position, StopReason
from gpuinfra.runner.job_spec import Gpus, StartRequest
from gpuinfra.runner.process import read_frames

RUN_LABEL = "gpuinfra.run"
PROJECT_LABEL = "gpuinfra.project"
TIMEOUT_LABEL = "gpuinfra.timeout"
MAX_EXIT_CODE = 255
# PyTorch's data loaders pass batches through shared memory, and the engine's default of 64 MiB is too small.
GPU_SHM_SIZE = 1 << 30
# The driver `json-file` loses bytes that are not UTF-8. An engine's default options may drop lines when a file is full
# or output is fast, so set all of them; the size is larger than any disk.
LOG_CONFIG = {
    "Type": "local",
    "Config": {"max-size": "1000t", "max-file": "1", "compress": "false", "mode": "blocking"},
}
LOOPBACK = "127.0.0.1"
NO_GPU = {"NVIDIA_VISIBLE_DEVICES": "void"}


def container_config(request: StartRequest, *, user: str | None = None, init: bool = True) -> dict[str, Any]:
    """Return the configuration to create the container. Secrets are variables in it: no process list shows them, and
    they are deleted with the container."""
    environment = {**request.environment, **request.secrets, **({} if request.gpus else NO_GPU)}
    labels = {**request.labels, RUN_LABEL: request.run}
    if request.timeout is not None:
        labels[TIMEOUT_LABEL] = repr(request.timeout)
    return {
        "Image": request.image,
        # Empty, not absent: an entrypoint of the image would receive our command as its arguments.
        "Entrypoint": [],
        "Cmd": list(request.command),
        "WorkingDir": request.folder,
        "Env": [f"{name}={value}" for name, value in environment.items()],
        "Labels": labels,
        **({} if user is None else {"User": user}),
        **({"ExposedPorts": {_protocol_port(port): {} for port in request.ports}} if request.ports else {}),
        "Tty": False,
        "StopSignal": "SIGTERM",
        "HostConfig": _host_config(request, init=init),
    }


def _host_config(request: StartRequest, *, init: bool) -> dict[str, Any]:
    host: dict[str, Any] = {
        # Mounts, not binds: for a missing bind, the engine would create a folder that root owns.
        "Mounts": [{"Type": "bind", "Source": source, "Target": target} for source, target in request.mounts],
        "LogConfig": LOG_CONFIG,
        "RestartPolicy": {"Name": "no"},
        # An init process reaps children, and lets signals end a job that does not handle them.
        "Init": init,
    }
    if request.gpus:
        host["DeviceRequests"] = [_device_request(request.gpus)]
    if request.ports:
        # Only on the machine's loopback interface, at ports that the engine chooses.
        host["PortBindings"] = {_protocol_port(port): [{"HostIp": LOOPBACK, "HostPort": ""}] for port in request.ports}
    if request.memory is not None:
        host["Memory"] = host["MemorySwap"] = request.memory
    shm_size = request.shm_size or (GPU_SHM_SIZE if request.gpus else None)
    if shm_size:
        host["ShmSize"] = shm_size
    return host


def _protocol_port(port: int) -> str:
    return f"{port}/tcp"


def _device_request(gpus: Gpus) -> dict[str, Any]:
    # No driver name, as with `docker run --gpus`: the engine chooses its own.
    request: dict[str, Any] = {"Driver": "", "Capabilities": [["gpu"]]}
    if gpus.ids:
        request["DeviceIDs"] = list(gpus.ids)
    else:
        request["Count"] = -1 if gpus.count is None else gpus.count
    return request


# After this long without output, check whether the job runs: the engine may hang.
SILENCE_SECONDS = 120.0
# The timeout for starting and stopping a container, which takes longer than other requests.
WORK_SECONDS = 120.0
CREATED = "created"
GONE = 404
CONFLICT = 409
NO_INIT = "docker-init"
# Exit codes of a job that was stopped from outside: SIGKILL, SIGTERM, and unknown to the engine.
STOPPED_FROM_OUTSIDE = (137, 143, 255)
# The longest part of a line in an engine's log.
MAX_PART = 1 << 14
# How many events an engine keeps.
MAX_EVENTS = 256


def start_container(
    engine: Engine,
    request: StartRequest,
    user: str | None = None,
    before_start: Callable[[ContainerJob], None] = lambda _: None,
) -> ContainerJob:
    """Start the job as the image's default user, or as `user`. `start_watcher` enforces its time limit.

    If an earlier attempt has started the container of the same run, return that one. `before_start` gets the created
    container.
    """
    try:
        return _start_once(engine, request, container_config(request, user=user), before_start)
    except JobError as error:
        if NO_INIT not in error.note:
            raise
    # The engine has no init program, so the job is the first process.
    return _start_once(engine, request, container_config(request, user=user, init=False), before_start)


def _start_once(
    engine: Engine, request: StartRequest, config: dict[str, Any], before_start: Callable[[ContainerJob], None]
) -> ContainerJob:
    job = _create(engine, request, config)
    if job is None:
        found = _inspect_earlier(engine, request)
        job = ContainerJob(engine, _id_of(engine, found))
        with engine.understood():
            was_started = found["State"]["Status"] != CREATED
        if was_started:
            return job  # it may have ended: starting it would run it again
    before_start(job)
    _start(engine, job)
    return job


def _create(engine: Engine, request: StartRequest, config: dict[str, Any]) -> ContainerJob | None:
    """Return the created container, or None if one with its name exists."""
    name = container_name(request.run)
    with engine.translated(f"creating the container {name}"):
        try:
            created = engine.api.create_container_from_config(config, name)
        except Exception as error:
            if _status(error) != CONFLICT:
                raise
            return None
    return ContainerJob(engine, _id_of(engine, created))


def _id_of(engine: Engine, answer: dict[str, Any]) -> str:
    """Return the id in a reply of the engine, which must be a string that is not empty."""
    with engine.understood():
        found = answer["Id"]
        if not isinstance(found, str) or not found:
            raise ValueError(f"Id: {found!r}")
    return found


def _inspect_earlier(engine: Engine, request: StartRequest) -> dict[str, Any]:
    """Return the container of an earlier attempt for the same run."""
    name = container_name(request.run)
    with engine.translated(f"inspecting the container {name}"):
        found: dict[str, Any] = engine.api.inspect_container(name)
    with engine.understood():
        owner = (found["Config"].get("Labels") or {}).get(RUN_LABEL)
    if owner != request.run:
        raise JobError(
            "the container's name is taken",
            f"{name} on {engine.where} belongs to another run",
            f"remove it on the target: `docker rm {name}`",
            Code.JOB_FAILED,
        )
    return found


def _start(engine: Engine, job: ContainerJob) -> None:
    try:
        with engine.translated("starting the container"):
            # The SDK's call with a longer timeout: a GPU's driver may have to start first. A container that already
            # runs is fine.
            api = engine.api
            url = api._url("/containers/{0}/start", job.id)
            api._raise_for_status(api._post(url, timeout=WORK_SECONDS))
    except JobError:
        # It never ran, and would block the next attempt.
        with contextlib.suppress(JobError):
            job.remove()
        raise


class ContainerJob:
    """A started container. Implements `Job`."""

    def __init__(self, engine: Engine, container_id: str, *, remote: RemoteClient | None = None, run: str = "") -> None:
        """With `remote`, the target may have recorded the output of `run`."""
        self._engine, self.id = engine, container_id
        self._remote, self._run = remote, run

    def frames(self, after: Position) -> Iterator[Frame]:
        position, tails = after, {STDOUT: b"", STDERR: b""}
        if self._remote:
            for frame in read_frames(self._remote, "container-frames", self._run, after.size):
                position = position.after(frame)
                tails[frame.stream] = (tails[frame.stream] + frame.data[-MAX_PART:])[-MAX_PART:]
                yield frame
            if self._has_ended_with(tails):
                return
        yield from self._engine_frames(position)

    def _has_ended_with(self, tails: dict[int, bytes]) -> bool:
        """Return whether the container has ended, and these are certainly the last bytes of its streams."""
        found = self._inspect()
        with self._engine.understood():
            if found is None or found["State"]["Running"]:
                return False
            may_be_cut = found["State"]["ExitCode"] in STOPPED_FROM_OUTSIDE
        if may_be_cut and self._ended_with_engine():
            return False
        last = list(self._read(tail="1"))
        return all(tails[frame.stream].endswith(frame.data) for frame in last)

    def _engine_frames(self, after: Position) -> Iterator[Frame]:
        """Yield what the engine's log has after a position. A line appears there when it ends."""
        position, last = after, None
        while True:
            try:
                for frame in self._new_frames(position, follow=True):
                    position, last = position.after(frame), frame
                    yield frame
            except TimedOut:
                if self._is_running():
                    continue
            else:
                if self._is_running():
                    raise Broken(f"the engine of {self._engine.where} no longer sends the output of the job")
            break
        if not self._is_last(last):
            yield from self._new_frames(position, follow=False)

    def printed(self) -> Generator[Frame, None, None]:
        """Yield the output so far, from the beginning."""
        return self._new_frames(Position(), follow=False)

    def ended(self) -> JobEnd | None:
        """Return how the job ended, or None while it runs. A container that the engine no longer knows is lost."""
        found = self._inspect()
        if found is None:
            return JobEnd(-1, StopReason.LOST, None, f"{self._engine.where}: the engine no longer knows the container")
        with self._engine.understood():
            state = found["State"]
            if state["Running"]:
                return None
            if state["Status"] == CREATED:
                return JobEnd(-1, StopReason.LOST, None, "the container was created but never started")
            at, code = _moment(state["FinishedAt"]), _exit_code(state["ExitCode"])
            detail = str(state.get("Error") or "")
            return JobEnd(code, self._stop_reason(found, at, code), at, detail, _moment(state["StartedAt"]))

    def cancel(self, grace: float) -> None:
        with self._engine.translated("stopping the job"), _unless_gone():
            api = self._engine.api
            url = api._url("/containers/{0}/stop", self.id)
            answer = api._post(url, params={"t": max(0, round(grace))}, timeout=grace + WORK_SECONDS)
            api._raise_for_status(answer)

    def remove(self) -> None:
        """Stop and delete the container. Does nothing if it does not exist."""
        with self._engine.translated("removing the container"), _unless_gone():
            self._engine.api.remove_container(self.id, v=True, force=True)

    def time_limit(self) -> float | None:
        """Return the time limit that was set at the start, or None."""
        limit = self.label(TIMEOUT_LABEL)
        with self._engine.understood():
            return float(limit) if limit else None

    def published_port(self, port: int) -> int | None:
        """Return the machine's port that leads to a port of the container, or None without one."""
        found = self._inspect()
        with self._engine.understood():
            bindings = found["NetworkSettings"]["Ports"].get(_protocol_port(port)) if found else None
            return int(bindings[0]["HostPort"]) if bindings else None

    def label(self, name: str) -> str | None:
        """Return the value of a label, or None."""
        found = self._inspect()
        with self._engine.understood():
            return found["Config"]["Labels"].get(name) if found else None

    def _inspect(self) -> dict[str, Any] | None:
        """Return the container, or None if the engine does not know it."""
        with self._engine.translated("inspecting the job"):
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
        yield from new_frames(restore_line_ends(self._read(follow=follow)), after)

    def _is_last(self, frame: Frame | None) -> bool:
        """Return whether the log ends with this frame: engines sometimes stop sending a little earlier."""
        # Parts of a long line have the same time and may have the same content, so only the end of a line is certain.
        return frame is not None and frame.data.endswith(b"\n") and list(self._read(tail="1")) == [frame]

    def _read(self, *, follow: bool = False, tail: str = "all") -> Iterator[Frame]:
        """Yield the engine's frames from the beginning, or the last ones."""
        engine, parser = self._engine, Parser()
        params = {"stdout": 1, "stderr": 1, "timestamps": 1, "follow": int(follow), "tail": tail}
        with engine.translated("reading the job's log"), contextlib.ExitStack() as stack:
            api = engine.api
            url = api._url("/containers/{0}/logs", self.id)
            answer = api._get(url, params=params, stream=True, timeout=SILENCE_SECONDS)
            stack.callback(answer.close)
            if answer.status_code == GONE:
                return  # it was removed with its log; `ended` reports it as lost
            api._raise_for_status(answer)
            while data := answer.raw.read1(CHUNK):
                yield from parser.feed(data)
        if not parser.is_whole:
            raise Broken(f"the connection to the engine of {engine.where} was lost in the middle of a line")

    def _stop_reason(self, found: dict[str, Any], at: datetime, code: int) -> StopReason:
        if found["State"].get("OOMKilled"):
            return StopReason.OUT_OF_MEMORY
        limit = found["Config"]["Labels"].get(TIMEOUT_LABEL)
        if limit and at - _moment(found["State"]["StartedAt"]) >= timedelta(seconds=float(limit)):
            return StopReason.TIMED_OUT
        if code in STOPPED_FROM_OUTSIDE and self._ended_with_engine():
            return StopReason.ENGINE_STOPPED
        return StopReason.EXITED

    def _ended_with_engine(self) -> bool:
        """Return whether the engine ended with the job: the events since its restart do not have the job's end."""
        with self._engine.translated("reading the engine's events"):
            api = self._engine.api
            info = api.info()
            # By the engine's clock, because it would wait for a time in the future.
            now = f"{_moment(info['SystemTime']).timestamp():.6f}"
            events = list(api.events(since=0, until=now, decode=True))
        seen = {event.get("status") for event in events if event.get("id") == self.id}
        survives = bool(info.get("LiveRestoreEnabled"))
        return len(events) < MAX_EVENTS and ("die" not in seen or ("start" not in seen and not survives))


def _status(error: Exception) -> int | None:
    return getattr(error, "status_code", None)


@contextlib.contextmanager
def _unless_gone() -> Iterator[None]:
    """Ignore errors for a container that does not exist or is being removed."""
    try:
        yield
    except Exception as error:
        is_going = _status(error) == CONFLICT and "already in progress" in str(error)
        if _status(error) != GONE and not is_going:
            raise


def _moment(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"a time without a zone: {text}")
    return found.astimezone(UTC)


def _exit_code(value: object) -> int:
    if type(value) is not int or not -1 <= value <= MAX_EXIT_CODE:
        raise ValueError(f"ExitCode: {value!r}")
    return value
