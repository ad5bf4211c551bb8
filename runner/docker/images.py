"""Find and pull images on a target."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gpuinfra.diagnostics import Code
from gpuinfra.runner.connection.port import CHUNK
from gpuinfra.runner.docker.client import Engine
from gpuinfra.runner.docker.registry_login import explain_refusal, log_in
from gpuinfra.runner.docker.stream import MessageReader
from gpuinfra.runner.errors import ConnectError, JobError
from gpuinfra.runner.progress import Progress

STEP = "image"
# An engine reports downloads continuously, but not while it waits for a registry or verifies a large layer.
IDLE_SECONDS = 600.0
# Less than the time in which `prune` removes nothing that was used.
NOTE_SECONDS = 3600.0
# The states of a layer that is completely downloaded.
DOWNLOADED = frozenset({"Already exists", "Download complete", "Verifying Checksum", "Extracting", "Pull complete"})


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """An image on a target."""

    name: str
    """The requested name."""
    id: str
    """The digest of its content."""
    platform: str
    """`linux/amd64`."""
    environment: dict[str, str]
    """Its variables, including PATH."""
    used: float = 0.0
    """When it was named last, in seconds since 1970; 0 if that is unknown. See `note_use`."""


@dataclass(slots=True)
class Layers:
    """The download progress of an image, from the engine's report about each layer."""

    _layers: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add(self, event: dict[str, Any]) -> None:
        """Add a line of the engine's report."""
        layer, status, detail = str(event.get("id") or ""), event.get("status"), event.get("progressDetail") or {}
        done, total = self._layers.get(layer, (0, 0))
        if status == "Downloading":
            done = int(detail.get("current") or 0)
            self._layers[layer] = (done, max(done, int(detail.get("total") or total)))
        elif status in DOWNLOADED and layer in self._layers:
            self._layers[layer] = (max(done, total), max(done, total))

    @property
    def done(self) -> int:
        """Return the downloaded bytes."""
        return sum(done for done, _ in self._layers.values())

    @property
    def total(self) -> int | None:
        """Return the total bytes of the layers that the engine has reported, or None before the first."""
        return sum(total for _, total in self._layers.values()) or None


def find_image(engine: Engine, name: str) -> ImageFacts | None:
    """Return the image with this name or ID, or None if it is not on the target."""
    with engine.translated(f"looking for the image {name}"):
        try:
            found = engine.api.inspect_image(name)
        except Exception as error:
            if getattr(error, "status_code", None) != 404:
                raise
            return None
    with engine.understood():
        return facts_of(name, found)


def note_use(engine: Engine, image: ImageFacts) -> None:
    """Let the engine record that a job uses an image, at most once an hour, so that `prune` knows it.

    Engines record only when an image was named, so name it again. Failures are ignored.
    """
    if image.used and time.time() - image.used > NOTE_SECONDS:
        with contextlib.suppress(ConnectError, JobError), engine.translated("naming the image"):
            engine.api.tag(image.id, image.name)


def ensure_image(engine: Engine, name: str, progress: Progress) -> ImageFacts:
    """Return the image. Pull it if it is missing."""
    return find_image(engine, name) or pull(engine, name, progress)


def pull(engine: Engine, name: str, progress: Progress) -> ImageFacts:
    """Pull an image on the target, with the login that `log_in` chooses."""
    progress.begin(STEP, f"pulling {name}")
    try:
        _download(engine, name, progress)
        found = _find_pulled(engine, name)
    except Exception as error:
        progress.fail(STEP, str(error))
        raise
    _note_platform(engine, name, found, progress)
    progress.end(STEP, f"pulled {name}")
    return found


def _download(engine: Engine, name: str, progress: Progress) -> None:
    from docker.utils import parse_repository_tag  # type: ignore[import-untyped]

    with engine.translated(f"pulling {name}"):
        repository, tag = parse_repository_tag(name)
        login = log_in(engine, repository, progress)
    layers = Layers()
    try:
        for event in _events(engine, name, {"fromImage": repository, "tag": tag or "latest"}, login.headers):
            with engine.understood():
                layers.add(event)
            progress.amount(STEP, layers.done, layers.total)
    except JobError as error:
        raise explain_refusal(error, login, engine.where) from error


def _find_pulled(engine: Engine, name: str) -> ImageFacts:
    found = find_image(engine, name)
    if found is None:
        raise JobError("no such image", f"{name} was pulled, but does not exist on the target", None, Code.NO_IMAGE)
    return found


def facts_of(name: str, found: dict[str, Any]) -> ImageFacts:
    """Return the facts in an engine's description of an image."""
    config = found.get("Config") or {}
    pairs = (line.partition("=") for line in config.get("Env") or ())
    return ImageFacts(
        name=name,
        id=_text(found["Id"]),
        platform=f"{found.get('Os')}/{found.get('Architecture')}",
        environment={key: value for key, _, value in pairs},
        used=_seconds((found.get("Metadata") or {}).get("LastTagTime")) or _seconds(found.get("Created")),
    )


def _seconds(text: object) -> float:
    try:
        return max(0.0, datetime.fromisoformat(str(text)).timestamp())
    except (ValueError, OverflowError):
        return 0.0


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(f"not a text: {value!r}")
    return value


def _events(engine: Engine, name: str, params: dict[str, str], headers: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the engine's report of a pull. The SDK's `pull` is not used because it has no timeout."""
    from gpuinfra.runner.docker.errors import refusal

    doing = f"pulling {name}"
    with contextlib.ExitStack() as stack:
        with engine.translated(doing):
            api = engine.api
            answer = api._post(
                api._url("/images/create"),
                params=params,
                headers=headers,
                stream=True,
                timeout=IDLE_SECONDS,
            )
            stack.callback(answer.close)
            api._raise_for_status(answer)
            events = _read_events(answer)
        while True:
            with engine.translated(doing), engine.understood():
                event = next(events, None)
            if event is None:
                return
            if "error" in event:
                raise refusal(str(event["error"]), doing)
            yield event


def _read_events(answer: Any) -> Iterator[dict[str, Any]]:
    # The SDK would read a message of any length.
    reader = MessageReader()
    for data in answer.iter_content(CHUNK):
        for message in reader.add(data):
            if isinstance(event := json.loads(message.strip() or b"null"), dict):
                yield event


def _note_platform(engine: Engine, name: str, image: ImageFacts, progress: Progress) -> None:
    with engine.translated("reading the engine's platform"):
        version = engine.api.version()
    own = f"{version.get('Os')}/{version.get('Arch')}"
    if own != image.platform:
        progress.note(f"{name} is for {image.platform}, but {engine.where} is {own}")
