"""The image with a project's environment: found on the target's Docker Engine, or built there."""

from __future__ import annotations

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
from typing import IO, Any, Protocol

from gpuinfra.diagnostics import Code
from gpuinfra.runner.connection.port import CHUNK
from gpuinfra.runner.docker.limits import MessageReader
from gpuinfra.runner.environment.recipe import BUILDING_LABEL, CONTEXT, PYTHON, Base, Recipe, recipe
from gpuinfra.runner.environment.secrets import without
from gpuinfra.runner.errors import ConnectError, JobError
from gpuinfra.runner.progress import Progress
from gpuinfra.workbench.conda import Conda

# The first Python on the image's PATH, for those whose environment is the image itself.
FIND_PYTHON = (
    "found=$(command -v python || command -v python3) || "
    '{ echo "gpuinfra: the image has no Python" >&2; exit 127; }; exec "$found" "$@"'
)


@dataclass(frozen=True, slots=True)
class Environment:
    """The image that a job runs in."""

    image: str
    """Its id."""
    tag: str
    """Its name: the base image's own where there was nothing to install."""
    built: bool
    """Whether it was made just now."""
    python: str | None
    """The environment's interpreter; None where the image has its own, if any: `python_of` finds it."""
    seconds: float


def python_of(environment: Environment) -> tuple[str, ...]:
    """The words that start a job's interpreter: its arguments follow. One that is missing is exit code 127."""
    return (environment.python,) if environment.python else ("/bin/sh", "-c", FIND_PYTHON, "python")


LAST_LINES = 20
LONGEST_LINE = 4096
STEP_MARK, REFUSAL_MARK, HELP_MARK = "gpuinfra: ", "gpuinfra-refusal: ", "gpuinfra-help: "
# The engine's own words about stages and layers, and the colours that it gives to what is said on standard error.
_ENGINES_OWN = re.compile(r"Step \d+/\d+ : | ---> |(?:Removing intermediate|Successfully (?:built|tagged)) ")
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class BuildOutput:
    """Takes an engine's answer as it comes, in whatever pieces."""

    def __init__(self, output: Callable[[str], None], step: Callable[[str], None], secrets: tuple[str, ...]) -> None:
        self._output, self._step, self._secrets = output, step, secrets
        self._reader, self._text = MessageReader(), ""
        self.last: deque[str] = deque(maxlen=LAST_LINES)
        self.error: str | None = None
        """Why the engine gave up."""
        self.refusal: str | None = None
        """Why our script did."""
        self.help: str | None = None
        self.image: str | None = None
        """The id of the last image that was built: at the end, the requested one."""

    def hear(self, data: bytes) -> None:
        """Some more of the answer."""
        for message in self._reader.add(data):
            self._message(message)

    def end(self) -> None:
        """There is no more."""
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
            self.error = without(self._secrets, str(error))
        if isinstance(aux := found.get("aux"), dict) and aux.get("ID"):
            self.image = str(aux["ID"])
        *lines, self._text = (self._text + str(found.get("stream") or "")).split("\n")
        for line in lines:
            self._line(line)
        if len(self._text) > 2 * LONGEST_LINE:
            self._shorten()

    def _shorten(self) -> None:
        """A line without end is shown in parts: it must not fill the memory. No secret may be cut in two by that."""
        self._text = without(self._secrets, self._text)
        while len(self._text) > 2 * LONGEST_LINE:
            self._line(self._text[:LONGEST_LINE])
            self._text = self._text[LONGEST_LINE:]

    def _line(self, line: str) -> None:
        # A bar that is drawn over itself is shown as it was left.
        line = _COLOUR.sub("", line).rstrip("\r ").rpartition("\r")[2]
        if not line or _ENGINES_OWN.match(line):
            return
        line = without(self._secrets, line)
        if line.startswith(REFUSAL_MARK):
            self.refusal = line.removeprefix(REFUSAL_MARK)
        elif line.startswith(HELP_MARK):
            self.help = line.removeprefix(HELP_MARK)
        else:
            if line.startswith(STEP_MARK):
                self._step(line.removeprefix(STEP_MARK))
            self.last.append(line)
            self._output(line)


STEP = "environment"
# conda may think, and a compiler work, for long without a word.
SILENCE_SECONDS = 3600.0
CLEAN_SECONDS = 10.0
FORGOTTEN = "1h"


class Engine(Protocol):
    """What is needed of `runner.docker.client.Engine`."""

    @property
    def api(self) -> Any:
        """A `docker.APIClient`."""

    @property
    def shares_credentials(self) -> bool:
        """Whether it may have the user's passwords for registries and proxies."""

    def withheld(self, what: str) -> str:
        """The line that says which credentials it does not get."""

    def translated(self, doing: str) -> contextlib.AbstractContextManager[None]:
        """Foreign exceptions become ours."""


@dataclass(frozen=True, slots=True)
class _Base:
    id: str
    name: str


def ensure_environment(  # noqa: PLR0913 each is another thing
    engine: Engine,
    base: Base | str,
    conda: Conda | None,
    project: Path,
    progress: Progress,
    output: Callable[[str], None],
    *,
    fresh: bool = False,
    may_build: bool = True,
    build_secrets: Mapping[str, str] | None = None,
) -> Environment:
    """The image for a project's jobs: built if the engine does not have it, or if it is to be `fresh`.

    The base image has to be there. What the file asks for and cannot be raises a Problem, with its places; a build
    that fails, or that is needed and must not be, a JobError. `output` hears each line of it, without secrets.
    """
    began = time.monotonic()
    on = _found(engine, base) if isinstance(base, str) else base
    wanted = recipe(on, conda, project, build_secrets)
    if wanted is None:
        return Environment(on.id, on.name, built=False, python=None, seconds=time.monotonic() - began)
    there = _inspect(engine, wanted.tag)
    if there is not None and not fresh:
        return Environment(there, wanted.tag, built=False, python=PYTHON, seconds=time.monotonic() - began)
    if not may_build:
        note = "the target does not have it, and `PrepareEnvironment` is not `true` in the run configuration"
        raise JobError(
            "the environment is not prepared", note, "`gpuinfra prepare -c NAME` makes it", Code.BUILD_FAILED
        )
    progress.begin(STEP, f"building on {on.name}")
    try:
        image = _build(engine, wanted, progress, output)
    except JobError as error:
        progress.fail(STEP, error.summary)
        raise
    except ConnectError as error:
        progress.fail(STEP, str(error))
        raise
    if there not in {None, image}:
        _remove(engine, str(there))
    seconds = time.monotonic() - began
    progress.end(STEP, f"built in {seconds:.0f} s")
    return Environment(image, wanted.tag, built=True, python=PYTHON, seconds=seconds)


def _found(engine: Engine, name: str) -> Base:
    if (found := _inspect(engine, name)) is None:
        raise JobError("no such image", f"`{name}` is not on the target", "pull it first", Code.NO_IMAGE)
    return _Base(found, name)


def _inspect(engine: Engine, name: str) -> str | None:
    """An image's id; None where it is not there."""
    from docker.errors import ImageNotFound  # type: ignore[import-untyped]

    with engine.translated(f"looking for the image {name}"):
        try:
            return str(engine.api.inspect_image(name)["Id"])
        except ImageNotFound:
            return None


def _build(engine: Engine, wanted: Recipe, progress: Progress, output: Callable[[str], None]) -> str:
    building = uuid.uuid4().hex
    heard = BuildOutput(output, lambda doing: progress.begin(STEP, doing), wanted.secrets)
    with tempfile.TemporaryFile() as context:
        try:
            _pack(wanted, building, context)
        except OSError as error:
            note = f"{error.filename or 'the files on the way'}: {error.strerror or error}"
            raise JobError("the environment's files cannot be read", note, code=Code.FILE_UNREADABLE) from error
        with _cleaned_up(engine, building), engine.translated("building the environment"):
            _post(engine.api, wanted.tag, _Sent(context, progress), proxies_for(engine, progress), heard)
    if heard.error is not None or heard.image is None:
        raise _failed(heard)
    return heard.image


def _pack(wanted: Recipe, building: str, into: IO[bytes]) -> None:
    """The build's files. Not compressed: what is large are wheels, which are so already."""
    with tarfile.open(fileobj=into, mode="w") as archive:
        _add(archive, "Dockerfile", wanted.dockerfile(building).encode())
        for name, content in wanted.files.items():
            _add(archive, f"{CONTEXT}/{name}", content)
    into.seek(0)


def _add(archive: tarfile.TarFile, name: str, content: bytes | Path) -> None:
    entry = tarfile.TarInfo(name)
    with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as stream:
        entry.size = len(content) if isinstance(content, bytes) else os.fstat(stream.fileno()).st_size
        archive.addfile(entry, stream)


class _Sent:
    """A file on its way to the engine, as requests asks for it; it reports how far it is."""

    def __init__(self, stream: IO[bytes], progress: Progress) -> None:
        self._stream, self._progress = stream, progress
        self._size, self._done = os.fstat(stream.fileno()).st_size, 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        return iter(lambda: self.read(1 << 16), b"")

    def read(self, most: int = -1) -> bytes:
        """The next part."""
        data = self._stream.read(most)
        self._done += len(data)
        self._progress.amount(STEP, self._done, self._size)
        return data


def proxies_for(engine: Engine, progress: Progress) -> dict[str, str]:
    """Return the proxies that the user's Docker settings name, without those that have a password if it is withheld."""
    proxies = dict(engine.api._proxy_configs.get_environment() or {})
    if engine.shares_credentials:
        return proxies
    open_ones = {name: value for name, value in proxies.items() if "@" not in value}
    if open_ones != proxies:
        progress.note(engine.withheld("proxies with a password in your Docker settings are"))
    return open_ones


def _post(api: Any, tag: str, context: _Sent, proxies: dict[str, str], heard: BuildOutput) -> None:
    """Have it built. Not by the SDK's own `build`, whose answer cannot be closed: that is what stops an engine."""
    options = {"t": tag, "rm": "1", "forcerm": "1"}
    # As `docker build` has it: the user's Docker settings say which proxies containers use. Engines keep them out of
    # images and their history.
    if proxies:
        options["buildargs"] = json.dumps(proxies)
    headers = {"Content-Type": "application/x-tar"}
    address = f"{api.base_url}/v{api.api_version}/build"
    with api.post(
        address, params=options, data=context, headers=headers, stream=True, timeout=SILENCE_SECONDS
    ) as response:
        api._raise_for_status(response)
        for data in response.iter_content(CHUNK):
            heard.hear(data)
    heard.end()


@contextlib.contextmanager
def _cleaned_up(engine: Engine, building: str) -> Iterator[None]:
    """Remove the first stage, which has all files of the build in it, and those that a lost connection left behind."""
    try:
        yield
    finally:
        # What comes of the build matters more; what stays now is removed by a later one.
        with contextlib.suppress(ConnectError, JobError), engine.translated("removing what the build left"):
            _clean(engine.api, f"{BUILDING_LABEL}={building}")
            engine.api.prune_images({"dangling": True, "label": [BUILDING_LABEL], "until": FORGOTTEN})


def _clean(api: Any, label: str) -> None:
    """A build that was stopped has a container for a while yet: what that is made of cannot go before it."""
    from docker.errors import APIError

    ends = time.monotonic() + CLEAN_SECONDS
    while True:
        for container in api.containers(all=True, filters={"label": label}):
            with contextlib.suppress(APIError):  # the engine may be at it already
                api.remove_container(container["Id"], force=True, v=True)
        with contextlib.suppress(APIError):  # the engine prunes for one at a time
            api.prune_images({"dangling": True, "label": [label]})
        if not api.images(all=True, quiet=True, filters={"label": label}) or time.monotonic() >= ends:
            return
        time.sleep(0.1)


def _remove(engine: Engine, image: str) -> None:
    """One that has lost its tag to a newer one. While a job uses it, it stays."""
    with contextlib.suppress(ConnectError, JobError), engine.translated("removing the image before"):
        engine.api.remove_image(image)


def _failed(heard: BuildOutput) -> JobError:
    summary, lines = "the environment cannot be built", "\n".join(heard.last)
    if heard.refusal:
        return JobError(summary, heard.refusal, heard.help, Code.BUILD_FAILED)
    if "no space left on device" in f"{lines}\n{heard.error}".lower():
        help_line = "remove unused images, with `docker image prune` there, or take a larger disk"
        return JobError("the target's disk is full", lines, help_line, Code.DISK_FULL)
    reason = heard.error or "the engine ended its answer too early"
    help_line = "the lines above are the installer's own; what it asks for is in the file"
    return JobError(summary, f"{lines}\n{reason}" if lines else reason, help_line, Code.BUILD_FAILED)
