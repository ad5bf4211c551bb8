"""List what gpuinfra keeps on a target, and remove what nothing needs: files by code on the target, then images."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from gpuinfra.diagnostics import Code
from gpuinfra.models.storage import IMAGE, StoredItem
from gpuinfra.remote.storage import CACHE, COPY, ENVIRONMENT, LEFTOVER, RUN
from gpuinfra.remote.wire import JSON
from gpuinfra.runner.errors import JobError, job_errors
from gpuinfra.runner.helper_containers import take_ownership
from gpuinfra.runner.link import Link
from gpuinfra.runner.remote_runs import UNEXPECTED_REPLY
from gpuinfra.runner.stored_images import list_images, remove_image, remove_job_container, usable_images

KINDS = frozenset({RUN, COPY, ENVIRONMENT, CACHE, LEFTOVER})
# While it works, the target sends an empty message every few seconds.
IDLE_SECONDS = 120.0
# Take the ownership of files with one of so many images: some have no program for it.
MAX_IMAGES = 3


@dataclass
class Storage:
    """What gpuinfra keeps on the target of a link. Raises ConnectError and JobError."""

    link: Link
    seconds: float
    """Only what was not used for longer can be removed."""
    fetched: Collection[str]
    """The runs that this client has fetched completely."""
    unfetched: Collection[str]
    """This client's other runs."""
    no_engine: str = field(default="", init=False)
    """Why there are no images, if the target's engine does not answer."""

    def items(self) -> list[StoredItem]:
        """Return everything with its size, also what stays."""
        *found, last = self._call("storage-list")
        items = [_item(each) for each in found]
        try:
            items += list_images(self.link.engine, self.seconds, is_preparing=last["preparing"] is not False)
        except JobError as error:
            if error.code != Code.NO_ENGINE:
                raise
            self.no_engine = str(error)
        return items

    def remove(self, items: Sequence[StoredItem]) -> list[StoredItem]:
        """Remove these items, unless something needs them by now. Return them, with the reason for each that stays."""
        kept = self._remove_files([(each.kind, each.name) for each in items if each.kind != IMAGE])
        # Images last: those of jobs have programs to change the owner of files.
        if images := [each.name for each in items if each.kind == IMAGE]:
            is_preparing = self._call("storage-remove", items=[])[-1]["preparing"] is not False
            for name in images:
                kept[IMAGE, name] = remove_image(self.link.engine, name, self.seconds, is_preparing=is_preparing)
        return [replace(each, kept=kept.get((each.kind, each.name), "")) for each in items]

    def _remove_files(self, items: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
        """Return why each item stays, or an empty text. An item that no longer exists is absent."""
        kept: dict[tuple[str, str], str] = {}
        owned: dict[tuple[str, str], tuple[str, str]] = {}
        for each in self._call("storage-remove", items=items)[:-1] if items else ():
            key = _key(each)
            kept[key] = str(each["kept"])
            if "left" in each and self._take_ownership(str(each["left"])):
                owned[str(each["againKind"]), str(each["againName"])] = key
        for each in self._call("storage-remove", items=list(owned))[:-1] if owned else ():
            kept[owned.get(_key(each), _key(each))] = str(each["kept"])
        for kind, name in items:
            if kind == RUN and not kept.get((kind, name)):
                with contextlib.suppress(JobError):
                    remove_job_container(self.link.engine, name)
        return kept

    def _take_ownership(self, folder: str) -> bool:
        """Make the user the owner of files that root created in a container. Return whether that succeeded."""
        with contextlib.suppress(JobError):
            user = self.link.remote.ask("hello")
            for image in usable_images(self.link.engine)[:MAX_IMAGES]:
                with contextlib.suppress(JobError):
                    take_ownership(self.link.engine, image, folder, int(user["user"]), int(user["group"]))
                    return True
        return False

    def _call(self, verb: str, **request: Any) -> list[dict[str, Any]]:
        """Return the objects that the target sends. The last one ends them."""
        terms = {"seconds": self.seconds, "fetched": [*self.fetched], "unfetched": [*self.unfetched]}
        found: list[dict[str, Any]] = []
        with (
            job_errors("the target's files cannot be listed"),
            self.link.remote.call(verb, {**terms, **request}, idle=IDLE_SECONDS) as call,
        ):
            while not found or "kind" in found[-1]:
                kind, data = call.receive()
                if kind == JSON:
                    found.append(call.read_object(data))
        return found


def _key(found: dict[str, Any]) -> tuple[str, str]:
    return str(found["kind"]), str(found["name"])


def _item(found: dict[str, Any]) -> StoredItem:
    if found.get("kind") not in KINDS:
        raise JobError(UNEXPECTED_REPLY, "what it keeps: an unknown kind")
    try:
        used = datetime.fromtimestamp(found["used"], UTC) if found["used"] else None
        return StoredItem(str(found["kind"]), str(found["name"]), int(found["size"]), used, str(found["kept"]))
    except (TypeError, ValueError, OverflowError, OSError) as error:
        raise JobError(UNEXPECTED_REPLY, f"what it keeps: {error}") from error
