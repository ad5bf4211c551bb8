"""The folders that a run writes its outputs to. They are in its copy of the project, where a job can remove and create
them like any others. When another run gets that copy, they are moved to the folder of their run.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence

from gpuinfra.remote import home, run_folder, slots
from gpuinfra.remote.run_folder import OUTPUTS
from gpuinfra.remote.wire import RefusedError


def give(slot: slots.Slot, run: str, names: Sequence[str]) -> None:
    """Create empty folders in a locked slot's tree for the outputs of a run, and keep those of the run before it."""
    with _locked(slot.folder):
        _move(slot.folder)
        for name in names:
            # What an earlier job wrote there was not declared as output.
            _remove(os.path.join(slot.tree, name))
        os.makedirs(home.run_folder(run), exist_ok=True)
        project = os.path.basename(os.path.dirname(slot.folder))
        home.replace(os.path.join(home.run_folder(run), run_folder.SLOT), f"{project}/{slot.name}")
        slot.record_outputs(run, names)
        for name in names:
            os.mkdir(os.path.join(slot.tree, name), 0o777)


def check_held(run: str) -> None:
    """Raise RefusedError if another run got the run's copy of the project: they would mix their files and outputs.

    It may, if the client of a run that has not started was away for long, such as on a computer that slept.
    """
    slot = _slot_of(run)
    if slot is not None and slots.holder(slot) != run:
        raise RefusedError("copy-lost", f"nothing was heard of run {run} for too long before its job started")


def release(run: str) -> str | None:
    """Move a run's outputs to its folder, so that they can be removed with it.

    Return the tree that root must give to this user first, because a container's root created a folder in it.
    """
    slot = _slot_of(run)
    if slot is None:
        return None
    with _locked(slot):
        try:
            if slots.outputs_of(slot)[0] == run:
                _move(slot)
        except PermissionError:
            return os.path.join(slot, "tree")
    return None


@contextlib.contextmanager
def located(run: str) -> Iterator[list[tuple[str, str, str]]]:
    """Yield the folders with a run's outputs. During the block, they are not moved.

    Each has its place among the outputs, its name in the project, and its path. It may not exist, or be no folder.
    """
    own = os.path.join(home.run_folder(run), OUTPUTS)
    slot = _slot_of(run)
    with contextlib.ExitStack() as stack:
        found = [("", OUTPUTS, own)]
        if slot is not None:
            stack.enter_context(_locked(slot))
            owner, names = slots.outputs_of(slot)
            if owner == run:
                tree = os.path.join(slot, "tree")
                tops = [own, os.path.join(tree, OUTPUTS)]
                for name in names:
                    place = "" if name == OUTPUTS else unused_name(tops, name)
                    found.append((place, name, os.path.join(tree, name)))
        yield found + _links(run)


def has_outputs(run: str) -> bool:
    """Return whether a run has outputs on this machine. A folder that is empty may be one that the job did not use."""
    with located(run) as folders:
        return any(has_content(path) for _, _, path in folders)


def _links(run: str) -> list[tuple[str, str, str]]:
    """Return the links with which a job replaced its folders: what it wrote there is unknown, and was not fetched."""
    links = os.path.join(home.run_folder(run), run_folder.LINKS)
    with contextlib.suppress(FileNotFoundError):
        names = sorted(os.listdir(links))
        return [("" if name == OUTPUTS else name, name, os.path.join(links, name)) for name in names]
    return []


def unused_name(tops: Sequence[str], name: str) -> str:
    """Return this name, or a numbered one if one of the folders has something of that name. An empty folder counts as
    nothing."""
    number, found = 1, name
    while any(_is_used(os.path.join(top, found)) for top in tops):
        number += 1
        found = f"{name}-{number}"
    return found


def _is_used(path: str) -> bool:
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return False  # the folder above it may also be a file by now, or closed: then no other name is better
    try:
        return not stat.S_ISDIR(mode) or bool(os.listdir(path))
    except OSError:
        return True


def has_content(folder: str) -> bool:
    """Return whether a folder for outputs may have some."""
    if os.path.islink(folder):
        return True  # its outputs are elsewhere
    try:
        with os.scandir(folder) as found:
            return any(not each.is_dir(follow_symlinks=False) or os.listdir(each.path) for each in found)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # it cannot be read, or is a file, so it may have some


def _slot_of(run: str) -> str | None:
    """Return the folder of the slot that a run wrote its outputs to, or None."""
    try:
        with open(os.path.join(home.run_folder(run), run_folder.SLOT)) as file:
            project, _, name = file.read().partition("/")
        folder = home.named("projects", project, name)
    except (OSError, ValueError, RefusedError):
        return None
    return folder if os.path.isdir(folder) else None


@contextlib.contextmanager
def _locked(slot: str) -> Iterator[None]:
    """Lock the outputs in a slot. It is held for moments, unlike the slot's own lock."""
    lock = slots.Lock(os.path.join(slot, "outputs-lock"))
    try:
        if not lock.wait(slots.LOCK_SECONDS):
            raise RefusedError("busy", "another process moves the outputs of this project")
        yield
    finally:
        lock.close()


def _move(slot: str) -> None:
    """Move the outputs in a slot to the folder of the run that wrote them. Raise PermissionError if root owns one."""
    run, names = slots.outputs_of(slot)
    if not run:
        return
    own = os.path.join(home.run_folder(run), OUTPUTS)
    for name in names:
        place = os.path.join(slot, "tree", name)
        try:
            mode = os.lstat(place).st_mode
        except FileNotFoundError:
            continue
        if stat.S_ISLNK(mode):
            _keep_link(run, name, place)
            continue
        with contextlib.suppress(OSError):
            os.rmdir(place)  # it is empty
            continue
        if stat.S_ISDIR(mode) and mode & 0o300 != 0o300:
            os.chmod(place, mode | 0o300)  # a folder that cannot be written cannot be moved
        os.makedirs(own, exist_ok=True)
        is_main = name == OUTPUTS and stat.S_ISDIR(mode) and not _is_used(own)
        os.rename(place, own if is_main else os.path.join(own, unused_name([own], name)))


def _keep_link(run: str, name: str, place: str) -> None:
    """Move a link that a job put in place of a folder for outputs. Its run stays incomplete."""
    links = os.path.join(home.run_folder(run), run_folder.LINKS)
    os.makedirs(links, exist_ok=True)
    os.symlink(
        os.path.join(os.path.dirname(place), os.readlink(place)), os.path.join(links, unused_name([links], name))
    )
    os.unlink(place)


def _remove(path: str) -> None:
    """Remove what has this path. Raise PermissionError if that is not possible, because root owns it."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISDIR(os.lstat(path).st_mode):
            home.remove_tree(path)
        else:
            os.unlink(path)
    if os.path.lexists(path):
        raise PermissionError(path)
