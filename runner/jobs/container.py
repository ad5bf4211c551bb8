"""A job in a container: the engine owns it, and it goes on without us."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from datetime import datetime, timedelta
from typing import Any

from gpuinfra.diagnostics import Code
from gpuinfra.runner.engine.body import RUN_LABEL, TIMEOUT_LABEL, body_of, name_of
from gpuinfra.runner.engine.client import Engine
from gpuinfra.runner.engine.logs import MisplacedError, Parser, advanced, beginning, mended, since, unseen
from gpuinfra.runner.jobs.order import Order
from gpuinfra.runner.jobs.port import Ended, Frame, JobError, Position, StopReason
from gpuinfra.runner.machine.connection import CHUNK, Broken, TimedOut

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


def start_container(engine: Engine, order: Order, user: str | None = None) -> ContainerJob:
    """Begin the job, as the image's own user or as the one who is named. `runner.watch` ends it in time.

    One that an earlier try of the same run has begun, whose answer was lost, is taken as it is.
    """
    try:
        return _begin(engine, order, body_of(order, user=user))
    except JobError as error:
        if NO_INIT not in error.note:
            raise
    # The engine has no program to be the first process; then the job is it.
    return _begin(engine, order, body_of(order, user=user, init=False))


def _begin(engine: Engine, order: Order, body: dict[str, Any]) -> ContainerJob:
    job = _create(engine, order, body)
    if job is None:
        found = _earlier(engine, order)
        job = ContainerJob(engine, _id_of(engine, found))
        with engine.understood():
            is_new = found["State"]["Status"] == CREATED
        if not is_new:
            return job  # it has begun, and may have ended: to start it would be to run it again
    _start(engine, job)
    return job


def _create(engine: Engine, order: Order, body: dict[str, Any]) -> ContainerJob | None:
    """None where there is one of its name."""
    name = name_of(order.run)
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


def _earlier(engine: Engine, order: Order) -> dict[str, Any]:
    """The container of an earlier try of the same run."""
    name = name_of(order.run)
    with engine.translated(f"looking at the container {name}"):
        found: dict[str, Any] = engine.api.inspect_container(name)
    with engine.understood():
        owner = (found["Config"].get("Labels") or {}).get(RUN_LABEL)
    if owner != order.run:
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
            # The SDK's own call, with more time: a GPU's driver may have to wake up. One that runs is no error.
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
        """How it ended; None while it runs. One that the engine does not know any more is lost."""
        found = self._inspect()
        if found is None:
            return Ended(
                -1, StopReason.LOST, None, f"the engine of {self._engine.where} does not know the container any more"
            )
        with self._engine.understood():
            state = found["State"]
            if state["Running"]:
                return None
            if state["Status"] == CREATED:
                return Ended(-1, StopReason.LOST, None, "the container was made, and never started")
            at, code = _moment(state["FinishedAt"]), int(state["ExitCode"])
            detail = str(state.get("Error") or "")
            return Ended(code, self._how(found, at, code), at, detail)

    def cancel(self, grace: float) -> None:
        """Ask it to end, and after so many seconds make it."""
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
            yield from unseen(mended(self._read(beginning(after), follow=follow)), after)
        except MisplacedError:
            # The target's clock was set back. From its beginning, the log tells it all; nothing was given yet.
            yield from unseen(mended(self._read(0, follow=follow)), after)

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
                return  # whoever removed it took its log along; `ended` says that it is lost
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
