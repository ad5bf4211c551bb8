"""The guest agent as one file for the machine: an archive of its modules that Python runs."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from importlib.resources import files

_REMOTE = "gpuinfra.remote"
_SHARED = ("run_folder.py",)
"""What the agent imports from the rest of `remote`."""
_MAIN = f"import sys\n\nfrom {_REMOTE}.agent.main import main\n\nsys.exit(main())\n"


def agent_archive() -> bytes:
    """Return the archive; the same bytes for the same modules.

    It is not compressed: cloud-init's own compression of the whole file makes it smaller.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, text in sorted(_contents()):
            # Without a time, owner and mode of its own.
            entry = zipfile.ZipInfo(name)
            entry.create_system, entry.external_attr = 3, 0o100644 << 16
            archive.writestr(entry, text)
    return buffer.getvalue()


def _contents() -> Iterator[tuple[str, str]]:
    yield "__main__.py", _MAIN
    root, folder = files(_REMOTE), _REMOTE.replace(".", "/")
    yield "gpuinfra/__init__.py", ""
    yield f"{folder}/__init__.py", ""
    for name in _SHARED:
        yield f"{folder}/{name}", root.joinpath(name).read_text("utf-8")
    for file in root.joinpath("agent").iterdir():
        if file.name.endswith(".py"):
            yield f"{folder}/agent/{file.name}", file.read_text("utf-8")
