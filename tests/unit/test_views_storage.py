"""How `prune TARGET` lists what a machine has, and what it prints after a deletion."""

import json
from datetime import UTC, datetime

import pytest

from gpuinfra.models.storage import StoredItem
from gpuinfra.views import storage

USED = datetime(2026, 10, 1, tzinfo=UTC)
COPY = StoredItem("copy", "demo-1a2b3c4d/slot-1", 3 << 20, USED)
IMAGE = StoredItem("image", "gpuinfra/0123456789abcdef", 5 << 20, USED)
RUN = StoredItem("run", "evil\x1b[2J", 1 << 10, None, "its outputs were not fetched")


def test_largest_items_come_first_and_those_that_stay_last(capsys: pytest.CaptureFixture[str]) -> None:
    storage.show_found([COPY, RUN, IMAGE])
    assert capsys.readouterr().out.splitlines() == [
        "KIND      SIZE  LAST USED   NAME",
        "image  5.0 MiB  2026-10-01  gpuinfra/0123456789abcdef",
        "copy   3.0 MiB  2026-10-01  demo-1a2b3c4d/slot-1",
        "2 in all: 8.0 MiB",
        "",
        "these stay: 1 item with 1.0 KiB",
        "  its outputs were not fetched",
        "    run  1.0 KiB  -  evil\N{REPLACEMENT CHARACTER}[2J",
    ]


def test_what_stays_after_all_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    late = StoredItem(IMAGE.kind, IMAGE.name, IMAGE.size, USED, "a container uses it")
    storage.show_removed("lab", [COPY, RUN, IMAGE], [COPY, late], json=False)
    assert capsys.readouterr().err.splitlines() == [
        "image gpuinfra/0123456789abcdef stays: a container uses it",
        "deleted 1 item with 3.0 MiB",
    ]
    storage.show_removed("lab", [COPY, RUN, IMAGE], [COPY, late], json=True)
    found = json.loads(capsys.readouterr().out)
    assert [each["kept"] for each in found["items"]] == [None, RUN.kept, late.kept]
    assert (found["size"], found["deleted"]) == (3 << 20, True)
