"""Where a symbolic link may lead: nothing outside the project is sent, and nothing is pointed at."""

from __future__ import annotations

import os


def inside(root: bytes, folder: bytes, target: bytes) -> bytes | None:
    """A link's target as it is sent, relative to the folder that the link is in; None where it leads out.

    `root` and `folder` are whole paths, without links in them.
    """
    place = os.path.join(folder, target)
    if not _is_below(root, os.path.realpath(place)):
        return None
    direct = os.path.normpath(place)
    if not os.path.isabs(target) and _never_leaves(root, folder, target):
        return target
    # By another way in, as through a link to the project: then by where that ends.
    kept = direct if _is_below(root, direct) else os.path.realpath(place)
    return os.path.relpath(kept, folder)


def _is_below(root: bytes, path: bytes) -> bool:
    return path == root or path.startswith(root.rstrip(b"/") + b"/")


def _never_leaves(root: bytes, folder: bytes, target: bytes) -> bool:
    """Whether the way stays inside at each step: the project has another name on the target."""
    depth = len(os.path.relpath(folder, root).split(b"/")) if folder != root else 0
    for part in target.split(b"/"):
        depth += -1 if part == b".." else part not in {b"", b"."}
        if depth < 0:
            return False
    return True
