"""What was about to be done, written down before it is done."""

import json
import threading
from pathlib import Path
from typing import Any

from gpuinfra.models.resource import Kind
from gpuinfra.provision.journal import FILE, Journal
from tests.unit.provision_help import BUSY, GROUP, NAME, NOW, FakeCloud, Heard, applying, planned, ref


def entries(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / FILE).read_text("utf-8").splitlines()]


def test_a_line_an_event(tmp_path: Path) -> None:
    journal = Journal(tmp_path, NAME, "run-1", lambda: NOW)
    machine = ref(Kind.VM)
    journal.intend("creating", machine)
    journal.did("creating", machine)
    journal.failed("starting", machine, "AllocationFailed")
    same = {
        "time": "2026-11-16T08:00:00Z",
        "machine": NAME,
        "kind": "vm",
        "group": GROUP,
        "name": NAME,
        "correlationId": "run-1",
    }
    assert entries(tmp_path) == [
        {**same, "event": "intent", "doing": "creating"},
        {**same, "event": "done", "doing": "creating"},
        {**same, "event": "failed", "doing": "starting", "code": "AllocationFailed"},
    ]


def test_a_second_run_writes_behind_the_first(tmp_path: Path) -> None:
    for run in ("run-1", "run-2"):
        Journal(tmp_path, NAME, run).intend("creating", ref(Kind.VM))
    assert [entry["correlationId"] for entry in entries(tmp_path)] == ["run-1", "run-2"]


def test_without_a_folder_nothing_is_written() -> None:
    Journal(None, NAME, "run-1").intend("creating", ref(Kind.VM))


def test_lines_of_many_threads_stay_whole(tmp_path: Path) -> None:
    journal, together = Journal(tmp_path, NAME, "run-1"), threading.Barrier(8)

    def write() -> None:
        together.wait(10)
        for _ in range(20):
            journal.intend("creating", ref(Kind.VNET))

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(entries(tmp_path)) == 160


def test_an_intent_is_on_disk_before_azure_is_called_and_no_secret_ever_is(tmp_path: Path) -> None:
    cloud = FakeCloud()
    work = applying(cloud)
    work.journal = Journal(tmp_path, NAME, "run-1", cloud.now)
    intended: dict[str, int] = {}

    def look(call: str) -> None:
        if call.startswith("put "):
            known = [f"{entry['kind']} {entry['name']}" for entry in entries(tmp_path) if entry["event"] == "intent"]
            # The daily stop is set along with the machine, which is intended.
            assert call.removeprefix("put ") in known or call.startswith("put shutdown-schedule")
            intended[call] = len(known)

    cloud.on_call = look
    cloud.fail("put vnet", BUSY)
    work.apply(planned(cloud))
    assert isinstance(work.progress, Heard)
    assert len(intended) == 7
    assert "private half" not in (tmp_path / FILE).read_text("utf-8")
    assert {entry["event"] for entry in entries(tmp_path)} == {"intent", "done"}


def test_the_daily_stop_is_written_down_like_all_else(tmp_path: Path) -> None:
    cloud = FakeCloud()
    work = applying(cloud)
    work.journal = Journal(tmp_path, NAME, "run-1", cloud.now)
    work.apply(planned(cloud))
    assert "shutdown-schedule" in {entry["kind"] for entry in entries(tmp_path)}
