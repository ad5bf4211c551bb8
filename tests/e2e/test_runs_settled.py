"""Runs without a client get their state from their machine if it is on, and from Azure if it is not."""

import json
import signal
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.azure import Azure, change_power
from tests.e2e.run_help import Start, guest_home, hide_machine, make_other_user, project, runs_of, state_of_job
from tests.e2e.user import User
from tests.sshd import eventually
from tests.variants import variant, variants

MACHINE = "Microsoft.Compute/virtualMachines"
DISK = "Microsoft.Compute/disks"
SECONDS = 60.0


@pytest.fixture
def user(user: User) -> User:
    project(user, idle="5h")  # longer than a test advances the clock: the agent must not act first
    user.up()
    # For the answers of machine and Azure; on a busy computer, they come after the eight seconds that users wait.
    user.patch = {"gpuinfra.app.settlement.SECONDS": SECONDS}
    return user


def submit_detached(user: User, script: str) -> str:
    done = user("submit", "-c", "my_dsvm", "--detach", script)
    assert done.returncode == 0, done.stderr
    return str(runs_of(user)[0]["id"])


def listed(user: User) -> dict[str, Any]:
    (run,) = user.does("runs")["runs"]
    return dict(run)


def cost_of(user: User, run: str) -> dict[str, Any] | None:
    rows = user.does("cost", "--by", "run")["cost"]["rows"]
    return next((row for row in rows if row["label"] == run), None)


def wait_for_end(azure: Azure, run: str) -> dict[str, Any]:
    assert eventually(lambda: "ended" in (state_of_job(azure, run) or {}), SECONDS)
    state = state_of_job(azure, run)
    assert state
    return state


@pytest.mark.parametrize("code", variants(7, 0))
def test_runs_shows_how_a_detached_job_ended(user: User, azure: Azure, code: int) -> None:
    (user.workspace / "ends.py").write_text(f"import sys\nprint('done')\nsys.exit({code})\n")
    run = submit_detached(user, "ends.py")
    state = wait_for_end(azure, run)
    found = listed(user)
    assert (found["state"], found["exitCode"]) == ("failed" if code else "completed", code)
    assert datetime.fromisoformat(found["ended"]).timestamp() == pytest.approx(state["ended"], abs=0.01)

    # Its log and its outputs are still on the machine, and are fetched on request.
    assert f"gpuinfra logs {run} -f" in user("logs", run).stderr
    followed = user("logs", "-f", run)
    assert (followed.returncode, followed.stdout) == (code, "done\n")
    assert listed(user)["outputs"]["complete"]


@variant
def test_cost_by_run_counts_a_detached_job_until_its_end(user: User, azure: Azure) -> None:
    run = submit_detached(user, "quick.py")
    wait_for_end(azure, run)
    azure.control("POST", "clock", {"advance": 1800})
    row = cost_of(user, run)
    found = listed(user)
    assert row
    started, ended = (datetime.fromisoformat(found[name]) for name in ("started", "ended"))
    assert row["onSeconds"] <= (ended - started).total_seconds() + 0.01


def test_run_ends_when_a_user_deallocates_its_machine(user: User, azure: Azure) -> None:
    run = submit_detached(user, "waits.py")
    assert eventually(lambda: bool(list(guest_home(azure).rglob("early.txt"))), SECONDS)
    change_power(azure, "deallocate")
    done = user("runs")
    assert " lost" in done.stdout
    steps = f"`gpuinfra up gpu.yaml`, then `gpuinfra outputs {run}`"
    assert steps in done.stderr
    found = runs_of(user)[0]
    assert found["reason"].startswith("my-dsvm was deallocated")
    assert found["ended"]
    assert steps in user("logs", run).stderr
    assert steps in user.fails("logs", "-f", run, code="machine-is-off", exit_code=255)["help"]
    (problem,) = json.loads(user("outputs", run, "--json").stdout)["diagnostics"]
    assert (problem["code"], problem["help"]) == ("machine-is-off", f"{steps} fetches what it wrote")

    user.up()
    azure.control("POST", "clock", {"advance": 1800})
    row = cost_of(user, run)
    assert row is None or row["onSeconds"] < 600
    user.does("outputs", run)
    found = runs_of(user)[0]
    assert (found["state"], found["outputs"]["complete"]) == ("lost", True)
    assert (user.workspace / ".gpuinfra" / "runs" / run / "outputs" / "early.txt").read_text() == "early"


@pytest.mark.parametrize("command", variants(["status"], ["logs", "-f"], ["outputs"]))
def test_every_command_that_finds_the_machine_off_settles_the_run(user: User, azure: Azure, command: list[str]) -> None:
    run = submit_detached(user, "waits.py")
    change_power(azure, "deallocate")
    done = user(*command, *([] if command == ["status"] else [run]))
    assert command == ["status"] or f"`gpuinfra up gpu.yaml`, then `gpuinfra outputs {run}`" in done.stderr
    assert runs_of(user)[0]["state"] == "lost"


def test_run_ends_when_its_machine_is_restarted(user: User, azure: Azure) -> None:
    submit_detached(user, "waits.py")
    change_power(azure, "deallocate")
    change_power(azure, "start")
    on_again = azure.control("GET", "clock")["now"]
    azure.control("POST", "clock", {"advance": 1800})
    assert eventually(lambda: listed(user)["state"] == "lost", SECONDS)
    found = listed(user)
    assert "restarted" in found["reason"]
    assert datetime.fromisoformat(found["ended"]).timestamp() <= on_again + 600


@variant
def test_run_is_lost_when_its_machine_was_deleted(user: User, azure: Azure) -> None:
    submit_detached(user, "waits.py")
    assert azure.send("DELETE", azure.id(MACHINE, "my-dsvm"))[0] in {200, 202, 204}
    azure.send("DELETE", azure.id(DISK, "my-dsvm-disk"))
    done = user("runs")
    assert " lost" in done.stdout
    assert "gpuinfra up" not in done.stderr
    found = runs_of(user)[0]
    assert (found["reason"], found["machine"]) == ("my-dsvm was deleted", "")


def test_run_is_lost_when_another_machine_has_the_name_of_its_machine(user: User, azure: Azure) -> None:
    submit_detached(user, "waits.py")
    assert azure.send("DELETE", azure.id(MACHINE, "my-dsvm"))[0] in {200, 202, 204}
    azure.send("DELETE", azure.id(DISK, "my-dsvm-disk"))
    user.up()
    found = listed(user)
    assert (found["state"], "it was replaced" in found["reason"]) == ("lost", True), found["reason"]


def test_runs_shows_what_is_known_when_the_machine_does_not_answer(user: User, azure: Azure) -> None:
    run = submit_detached(user, "waits.py")
    hide_machine(user, azure)
    done = user("runs")
    assert done.returncode == 0
    assert " running" in done.stdout
    assert f"{run} was running at last contact" in done.stderr
    azure.control("POST", "clock", {"advance": 60})
    row = cost_of(user, run)
    assert row
    assert row["sure"] == "estimated"


def test_run_whose_client_was_killed_before_the_job_began_is_lost(user: User, azure: Azure, start: Start) -> None:
    hide_machine(user, azure)
    client = start("submit", "-c", "my_dsvm", "quick.py")
    client.until(lambda: runs_of(user))
    client.send(signal.SIGKILL)
    client.process.wait(SECONDS)
    found = listed(user)
    assert (found["state"], found["reason"]) == ("lost", "it was interrupted before the job began")
    followed = user("logs", "-f", "last")
    assert "it was interrupted before the job began" in followed.stderr


@variant
def test_run_is_lost_when_another_vm_takes_the_name_of_its_machine(user: User, azure: Azure, tmp_path: Path) -> None:
    submit_detached(user, "waits.py")
    assert eventually(lambda: bool(list(guest_home(azure).rglob("early.txt"))), SECONDS)
    before = azure.machine()["properties"]["vmId"]
    delete_machine(azure)
    make_other_user(user, tmp_path).up()
    assert azure.machine()["properties"]["vmId"] != before

    done = user("runs")
    assert " lost" in done.stdout
    assert "gpuinfra up" not in done.stderr
    assert runs_of(user)[0]["reason"] == "my-dsvm was deleted, and another VM has its name"


def test_run_of_a_deleted_vm_does_not_hold_up_the_deletion_of_another_one(
    user: User, azure: Azure, tmp_path: Path
) -> None:
    submit_detached(user, "waits.py")
    delete_machine(azure)
    make_other_user(user, tmp_path).up()
    assert user.down("my-dsvm", "--delete")["verifiedBy"] == "404"


def delete_machine(azure: Azure) -> None:
    """Delete the VM with its disk, as in the portal."""
    for kind, name in ((MACHINE, "my-dsvm"), (DISK, "my-dsvm-disk")):
        status, answer = azure.send("DELETE", azure.id(kind, name))
        assert status in {200, 202, 204}, answer


def test_run_whose_vm_was_deleted_names_its_disk_and_a_command_that_attaches_it(user: User, azure: Azure) -> None:
    run = submit_detached(user, "waits.py")
    held = azure.machine()["properties"]["storageProfile"]["osDisk"]
    kept_disk = {"properties": {"storageProfile": {"osDisk": {**held, "deleteOption": "Detach"}}}}
    for method, body in (("PATCH", kept_disk), ("DELETE", None)):
        status, answer = azure.send(method, azure.id(MACHINE, "my-dsvm"), body)
        assert status in {200, 202, 204}, answer
    disk = azure.part(DISK, "my-dsvm-disk")["id"]
    command = f"`az vm disk attach --resource-group GROUP --vm-name VM --name {azure.id(DISK, 'my-dsvm-disk')}`"
    assert disk.casefold() in command.casefold()
    kept = "the VM my-dsvm was deleted, and its disk my-dsvm-disk is kept"
    for words in (["runs"], ["runs", "show", run], ["logs", run]):
        done = user(*words)
        assert f"{kept}; {command}" in done.stdout + done.stderr, words
        assert "gpuinfra up" not in done.stdout + done.stderr, words
    for words, exit_code in ((["up", "gpu.yaml"], 2), (["down", "my-dsvm", "--delete"], 2)):
        refused = user.fails(*words, code="needs-consent", exit_code=exit_code)
        assert run in refused["note"]
        assert refused["help"].startswith(f"{kept}; {command}")
        assert "gpuinfra outputs" not in refused["help"]
