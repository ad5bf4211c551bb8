"""The images on a target that gpuinfra built: which can be removed, and their removal."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any

from gpuinfra.models.storage import IMAGE, StoredItem
from gpuinfra.remote.run_folder import container_name
from gpuinfra.remote.storage import reason_to_keep
from gpuinfra.runner.container import RUN_LABEL
from gpuinfra.runner.docker.client import Engine
from gpuinfra.runner.docker.images import ImageFacts, find_image
from gpuinfra.runner.environment.recipe import IMAGES, LABEL

# An engine reads all layers to tell the size of images.
USAGE_SECONDS = 600.0
CONFLICT, GONE = 409, 404
LATEST = ":latest"


def list_images(engine: Engine, seconds: float, *, is_preparing: bool) -> list[StoredItem]:
    """Return the images that gpuinfra built, also those that stay."""
    with engine.translated("listing images"):
        api = engine.api
        answer = api._get(api._url("/system/df"), params={"type": "image"}, timeout=USAGE_SECONDS)
        found = api._result(answer, json=True)
    with engine.understood():
        ours = [each for each in found["Images"] or () if is_ours(each)]
        sizes = {str(each["RepoTags"][0]): int(each["Size"]) - max(0, int(each["SharedSize"])) for each in ours}
    in_use = _in_use(engine) if ours else frozenset()
    items = []
    for tag, size in sizes.items():
        if image := find_image(engine, tag):
            kept = _kept(image, in_use, seconds, is_preparing=is_preparing)
            used = datetime.fromtimestamp(image.used, UTC) if image.used else None
            items.append(StoredItem(IMAGE, tag.removesuffix(LATEST), max(0, size), used, kept))
    return items


def is_ours(image: Mapping[str, Any]) -> bool:
    """Return whether gpuinfra built this image. Those that others build from it inherit its label, but not its name."""
    label = (image.get("Labels") or {}).get(LABEL)
    return bool(label) and list(image.get("RepoTags") or ()) == [f"{IMAGES}{label}{LATEST}"]


def _kept(image: ImageFacts, in_use: Collection[str], seconds: float, *, is_preparing: bool) -> str:
    needed = "a container uses it" if image.id in in_use else "a job is being prepared" if is_preparing else ""
    return reason_to_keep(needed, time.time() - image.used, seconds, linked=False)


def _in_use(engine: Engine) -> frozenset[str]:
    """Return the images of all containers, also of ended ones."""
    with engine.translated("listing containers"):
        found = engine.api.containers(all=True)
    with engine.understood():
        return frozenset(str(each["ImageID"]) for each in found)


def remove_image(engine: Engine, name: str, seconds: float, *, is_preparing: bool) -> str:
    """Remove an image unless something needs it by now. Return why it stays, or an empty text."""
    image = find_image(engine, f"{name}{LATEST}")
    if image is None:
        return ""
    if kept := _kept(image, _in_use(engine), seconds, is_preparing=is_preparing):
        return kept
    with engine.translated(f"removing the image {name}"):
        try:
            # By its ID and without force: the engine refuses if anything uses it by now.
            engine.api.remove_image(image.id)
        except Exception as error:
            status = getattr(error, "status_code", None)
            if status not in {CONFLICT, GONE}:
                raise
            return "a container, a name or an image of others uses it" if status == CONFLICT else ""
    return ""


def remove_job_container(engine: Engine, run: str) -> None:
    """Remove the ended container of a run that was removed."""
    with engine.translated("removing the run's container"):
        for each in engine.api.containers(all=True, filters={"label": f"{RUN_LABEL}={run}"}):
            if f"/{container_name(run)}" in each["Names"]:
                engine.api.remove_container(each["Id"], v=True)


def usable_images(engine: Engine) -> list[str]:
    """Return images that may have programs, those that gpuinfra built first."""
    with engine.translated("listing images"):
        found = engine.api.images()
    with engine.understood():
        return [str(each["Id"]) for each in sorted(found, key=is_ours, reverse=True)]
