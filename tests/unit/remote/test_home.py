"""The folder that jobs on a machine share."""

import os
from pathlib import Path
from typing import Any

import pytest

from gpuinfra.remote import home
from gpuinfra.remote.wire import RefusedError


class FakeWire:
    """A wire that stores the last answer."""

    def send_json(self, value: dict[str, Any]) -> None:
        self.value = value


def folder(path: Path, below: Path) -> str:
    wire = FakeWire()
    home.folder(wire, {"path": str(path), "below": str(below)})  # type: ignore[arg-type]
    return str(wire.value["path"])


def test_path_of_a_shared_folder_has_no_links(tmp_path: Path) -> None:
    base = tmp_path.resolve() / "share"
    (base / "real").mkdir(parents=True)
    (base / "link").symlink_to("real")
    found = folder(base / "link" / "team", base)
    (base / "link").unlink()
    (base / "link").symlink_to("/etc")  # a job can do that between the check and the use
    assert found == str(base / "real" / "team")
    assert os.path.isdir(found)  # noqa: PTH112


def test_link_created_during_the_call_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = tmp_path.resolve() / "share"
    base.mkdir()

    def swap(path: str, *, exist_ok: bool) -> None:
        assert exist_ok
        Path(path).symlink_to("/etc")

    monkeypatch.setattr(os, "makedirs", swap)
    with pytest.raises(RefusedError, match="leads out of its folder"):
        folder(base / "team", base)
