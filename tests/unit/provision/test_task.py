"""Intended actions are recorded before they are carried out."""

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuinfra.models.plan import Kind
from gpuinfra.provision.apply import PlanExecution
from gpuinfra.provision.task import FILE, Journal
from tests.unit.provision_help import BUSY, GROUP, NAME, NOW, FakeCloud, planned, ref, task


def entries(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / FILE).read_text("utf-8").splitlines()]


def test_journal_has_one_line_per_event(tmp_path: Path) -> None:
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


def test_second_run_appends_to_the_journal(tmp_path: Path) -> None:
    for run in ("run-1", "run-2"):
        Journal(tmp_path, NAME, run).intend("creating", ref(Kind.VM))
    assert [entry["correlationId"] for entry in entries(tmp_path)] == ["run-1", "run-2"]


def test_journal_without_a_folder_writes_nothing() -> None:
    Journal(None, NAME, "run-1").intend("creating", ref(Kind.VM))


def test_lines_of_concurrent_threads_do_not_mix(tmp_path: Path) -> None:
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


def test_intent_is_on_disk_before_the_call_and_contains_no_secret(tmp_path: Path) -> None:
    cloud = FakeCloud()
    work = PlanExecution(replace(task(cloud), journal=Journal(tmp_path, NAME, "run-1", cloud.now)))
    intended: dict[str, int] = {}

    def look(call: str) -> None:
        if call.startswith("put "):
            known = [f"{entry['kind']} {entry['name']}" for entry in entries(tmp_path) if entry["event"] == "intent"]
            # The schedule is set together with the machine, whose creation is intended.
            assert call.removeprefix("put ") in known or call.startswith("put shutdown-schedule")
            intended[call] = len(known)

    cloud.on_call = look
    cloud.fail("put vnet", BUSY)
    work.apply(planned(cloud))
    assert len(intended) == 7
    assert "private half" not in (tmp_path / FILE).read_text("utf-8")
    assert {entry["event"] for entry in entries(tmp_path)} == {"intent", "done"}


def test_schedule_is_recorded_too(tmp_path: Path) -> None:
    cloud = FakeCloud()
    work = PlanExecution(replace(task(cloud), journal=Journal(tmp_path, NAME, "run-1", cloud.now)))
    work.apply(planned(cloud))
    assert "shutdown-schedule" in {entry["kind"] for entry in entries(tmp_path)}
