"""`gpuinfra run` on the embedded Azure: one machine for one job. Afterwards it is off, or a warning is printed."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.azure import Azure
from tests.e2e.run_help import (
    MODEL,
    SECONDS,
    Start,
    guest_home,
    guest_root,
    is_off,
    project,
    run_job,
    runs_of,
    wait_for_job_end,
)
from tests.e2e.user import PARTS, PROGRAM, User, inherited
from tests.real import missing
from tests.variants import variant, variants

STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("begun", flush=True)
time.sleep(100)
"""


@pytest.fixture
def user(user: User) -> User:
    project(user)
    return user


def outputs(user: User, run: str) -> dict[str, str]:
    folder = user.workspace / ".gpuinfra" / "runs" / run / "outputs"
    return {path.name: path.read_text() for path in folder.iterdir()}


# Complete runs


@pytest.mark.parametrize("code", variants(7, 0))
def test_run_provisions_runs_and_deallocates(user: User, azure: Azure, code: int) -> None:
    told = run_job(user, "gpu.yaml", "quick.py", str(code), exit_code=code)
    run, receipt = told["run"], told["receipt"]
    assert (run["state"], run["exitCode"]) == ("failed" if code else "completed", code)
    assert outputs(user, run["id"]) == {"result.txt": "result"}
    assert (receipt["off"], receipt["verifiedBy"], receipt["left"]) == (True, "PowerState/deallocated", [])
    assert azure.everything() == PARTS
    assert is_off(azure)
    shown = user.does("runs", "show", run["id"])["run"]
    # Azure's log has whole seconds, and the sandbox can be faster than that.
    assert receipt["costUsd"] >= 0
    assert 0 <= shown["costUsd"] <= receipt["costUsd"], "the job's share of the time on"
    (billed,) = azure.bill()
    assert abs(billed["costUsd"] - receipt["costUsd"]) < 0.005


def test_run_deletes_the_machine_and_keeps_the_outputs(user: User, azure: Azure) -> None:
    project(user, afterRun="delete")
    told = run_job(user, "gpu.yaml", "quick.py")
    assert azure.everything() == []
    assert told["receipt"]["verifiedBy"] == "404"
    assert outputs(user, told["run"]["id"]) == {"result.txt": "result"}


def test_kept_machine_is_deleted_by_the_last_run(user: User, azure: Azure, start: Start) -> None:
    kept = user("run", "--after-run", "keep", "gpu.yaml", "quick.py")
    assert (kept.returncode, kept.stdout) == (0, "done\n")
    assert "my-dsvm is kept, as requested: it is billed until `gpuinfra down my-dsvm`" in kept.stderr
    assert azure.machine()["powerState"] == "PowerState/running"

    assert user("submit", "-c", "my_dsvm", "--detach", "waits.py").returncode == 0
    going = runs_of(user)[0]["id"]
    client = start("run", "--after-run", "delete", "gpu.yaml", "quick.py")
    assert client.end() == 0
    assert f"my-dsvm is kept for {going}" in client.err
    assert azure.machine()["powerState"] == "PowerState/running"

    # Its outputs were not requested since; they are fetched before the disk is deleted.
    (guest_home(azure) / "go").touch()
    wait_for_job_end(azure, going)
    told = run_job(user, "--after-run", "delete", "gpu.yaml", "quick.py")
    assert told["receipt"]["verifiedBy"] == "404"
    assert azure.everything() == []
    assert outputs(user, going) == {"early.txt": "early", "late.txt": "late"}


@variant
def test_closed_pipe_does_not_keep_the_machine_on(user: User, azure: Azure) -> None:
    with subprocess.Popen(
        [PROGRAM, "run", "gpu.yaml", "waits.py"],
        cwd=user.workspace,
        env={**inherited(), **user.variables, "GPUINFRA_CLOUD": "sandbox"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as program:
        assert program.stdout
        assert program.stdout.readline() == b"begun\n"
        program.stdout.close()
        (guest_home(azure) / "go").touch()
        assert program.wait(SECONDS) == 0
    assert is_off(azure)
    assert outputs(user, runs_of(user)[0]["id"]) == {"early.txt": "early", "late.txt": "late"}
    assert user("logs", "last").stdout == "begun\nended\n"


# Ctrl-C


def test_interrupt_before_the_machine_exists_leaves_nothing(user: User, azure: Azure, start: Start) -> None:
    azure.fault("hold-before", method="PUT", type="virtualMachines")
    client = start("run", "gpu.yaml", "quick.py")
    client.until_held()
    client.send(signal.SIGINT)
    azure.clear_faults()
    assert client.end() == 130
    assert "virtualMachines/my-dsvm" not in azure.everything()
    assert "Azure reports 404" in client.out
    assert not azure.is_billed()


def test_interrupt_while_waiting_for_ssh_deallocates_the_machine(user: User, azure: Azure, start: Start) -> None:
    azure.fault("ssh-refuses")
    client = start("run", "gpu.yaml", "quick.py")
    client.until_says("waiting for SSH")
    client.send(signal.SIGINT)
    assert client.end() == 130
    assert "Azure reports PowerState/deallocated" in client.out
    assert is_off(azure)


@variant
def test_interrupt_during_the_upload_deallocates_the_machine(user: User, azure: Azure, start: Start) -> None:
    (user.workspace / "data.bin").write_bytes(os.urandom(MODEL))
    client = start("run", "gpu.yaml", "quick.py")
    client.until_says("upload: sending")
    client.send(signal.SIGINT)
    assert client.end() == 130
    assert is_off(azure)
    assert [run["state"] for run in runs_of(user)] == ["cancelled"]


@pytest.mark.parametrize("number", variants(signal.SIGINT, signal.SIGTERM))
def test_interrupt_during_the_job_cancels_it_and_deallocates_the_machine(
    user: User, azure: Azure, start: Start, number: signal.Signals
) -> None:
    client = start("run", "gpu.yaml", "waits.py")
    client.until_says("begun")
    client.send(number)
    assert client.end() in {130, 143}
    (run,) = runs_of(user)
    assert (run["state"], run["outputs"]["complete"]) == ("cancelled", True)
    assert outputs(user, run["id"]) == {"early.txt": "early"}
    assert is_off(azure)


def test_interrupt_during_the_download_completes_it_first(user: User, azure: Azure, start: Start) -> None:
    client = start("run", "gpu.yaml", "writes.py")
    client.until_says("outputs: fetching")
    client.send(signal.SIGINT)
    assert client.end() in {0, 130}
    (run,) = runs_of(user)
    assert (run["state"], run["exitCode"], run["outputs"]["complete"]) == ("completed", 0, True)
    assert is_off(azure)


def test_interrupt_during_the_deallocation_completes_it_first(user: User, azure: Azure, start: Start) -> None:
    azure.fault("hold-before", method="POST", type="virtualMachines")
    client = start("run", "gpu.yaml", "quick.py")
    client.until_held()
    client.send(signal.SIGINT)
    assert client.end() == 130
    assert "my-dsvm is switched off first" in client.err
    assert is_off(azure)


def test_second_interrupt_exits_at_once_and_names_what_exists(user: User, azure: Azure, start: Start) -> None:
    (user.workspace / "stubborn.py").write_text(STUBBORN)
    client = start("run", "gpu.yaml", "stubborn.py")
    client.until_says("begun")
    client.send(signal.SIGINT)
    client.until_says("cancelling")
    client.send(signal.SIGINT)
    assert client.end() == 130
    assert "my-dsvm is left as it is: it is billed until `gpuinfra down my-dsvm`" in client.err
    assert "in Azure exists: " in client.err
    assert "Azure's schedule stops it at" in client.err
    azure.control("POST", "clock", {"advance": 3 * 3600})
    assert is_off(azure)

    # Its outputs were never fetched; deleting the machine is an explicit choice, after which they are gone.
    (run,) = runs_of(user)
    assert run["id"] in user.fails("down", "--delete", "my-dsvm", code="needs-consent", exit_code=2)["note"]
    assert azure.everything() == PARTS
    assert user.down("--delete", "--yes", "my-dsvm")["verifiedBy"] == "404"
    (run,) = runs_of(user)
    assert (run["state"], run["machine"]) == ("lost", "")
    assert user.down("--delete", "my-dsvm")["verifiedBy"] == "404"


# Failures


def refused(user: User, *words: str, code: str, exit_code: int = 2) -> dict[str, Any]:
    """Check that `run` fails before any write to Azure."""
    done = user("run", "--json", *words)
    assert done.returncode == exit_code, done.stdout + done.stderr
    (diagnostic,) = json.loads(done.stdout)["diagnostics"]
    assert diagnostic["code"] == code, diagnostic
    assert diagnostic["help"]
    assert user.azure.writes() == []
    assert runs_of(user) == []
    return dict(diagnostic)


def test_usage_errors_are_found_before_a_machine_is_billed(user: User, azure: Azure) -> None:
    refused(user, "gpu.yaml", "nope.py", code="no-script")
    assert "put it first" in refused(user, "gpu.yaml", "quick.py", "--sandbox", code="usage")["help"]
    assert "put options before the spec" in refused(user, "gpu.yaml", "--sandbox", "quick.py", code="usage")["help"]
    refused(user, "--after-run", "burn", "gpu.yaml", "quick.py", code="usage")
    user.spec(power="deallocated")
    refused(user, "gpu.yaml", "quick.py", code="machine-is-off")


def test_cpu_package_is_found_before_a_machine_is_billed(user: User, azure: Azure) -> None:
    user.spec()
    folder = user.workspace / "aml_config"
    folder.mkdir()
    (folder / "conda_dependencies.yml").write_text("dependencies:\n  - python=3.11\n  - pip:\n    - tensorflow-cpu\n")
    problem = refused(user, "gpu.yaml", "quick.py", code="cpu-only-package", exit_code=1)
    assert problem["file"].endswith("conda_dependencies.yml")


def ended(user: User, *words: str, exit_code: int) -> tuple[str, dict[str, Any]]:
    """Check that a run fails with one problem, and return its code and the whole object."""
    told = run_job(user, *words, exit_code=exit_code)
    (diagnostic,) = told["diagnostics"]
    assert diagnostic["help"]
    return str(diagnostic["code"]), told


def test_machine_is_deallocated_when_its_gpu_is_missing_at_job_start(user: User, azure: Azure) -> None:
    user.up()
    tool = guest_root(azure) / "bin" / "nvidia-smi"
    real = tool.rename(tool.with_name("nvidia-smi-before"))
    # It answers once, to `up`; the guest agent only asks for the utilization.
    gone = 'case "$*" in --query-gpu=utilization.gpu*) ;; *) touch "$GPUINFRA_GUEST_ROOT/run/gpu-gone" ;; esac'
    tool.write_text(f'#!/bin/sh\n"{real}" "$@"\ncode=$?\n{gone}\nexit $code\n')
    tool.chmod(0o755)
    code, told = ended(user, "gpu.yaml", "quick.py", exit_code=1)
    assert code == "no-gpu"
    assert (told["run"]["state"], told["run"]["started"]) == ("failed", None)
    assert told["receipt"]["off"] is True
    assert is_off(azure)


@pytest.fixture
def small_disk(user: User, azure: Azure) -> Iterator[Path]:
    """A running machine with 1 MiB of free space."""
    if os.geteuid() != 0 or not shutil.which("mount"):
        missing("a small disk needs root")
    user.up()
    folder = guest_home(azure) / ".gpuinfra"
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)], check=True, timeout=20)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True, timeout=20)


@variant
def test_machine_is_deallocated_when_its_disk_is_full(user: User, azure: Azure, small_disk: Path) -> None:
    (user.workspace / "data.bin").write_bytes(os.urandom(4 << 20))
    code, told = ended(user, "gpu.yaml", "quick.py", exit_code=1)
    assert code == "disk-full"
    assert told["run"]["state"] == "failed"
    assert is_off(azure)


def test_machine_that_cannot_be_deallocated_is_reported(user: User, azure: Azure) -> None:
    azure.fault("AuthorizationFailed", method="POST", type="virtualMachines", count=0)
    shown = user("run", "gpu.yaml", "quick.py")
    assert shown.returncode == 4
    assert "NOT VERIFIED: my-dsvm may still be on and billed" in shown.stderr
    assert "gpuinfra down my-dsvm" in shown.stderr
    assert azure.is_billed()
    (run,) = runs_of(user)
    assert (run["state"], run["outputs"]["complete"]) == ("completed", True)


@variant
def test_unverified_machine_is_reported_when_azure_refuses_everything(user: User, azure: Azure, start: Start) -> None:
    client = start("run", "--json", "gpu.yaml", "waits.py")
    client.until_says("begun")
    home = guest_home(azure)
    azure.fault("AuthorizationFailed", count=0)
    (home / "go").touch()
    assert client.end() == 4
    told = json.loads(client.out)
    assert told["run"]["outputs"]["complete"] is True
    (diagnostic,) = told["diagnostics"]
    assert "my-dsvm may be on, and billed until `gpuinfra down my-dsvm`" in diagnostic["note"]
    assert "receipt" not in told


def test_machine_with_unfetched_outputs_is_not_deleted(user: User, azure: Azure, start: Start) -> None:
    client = start("run", "--after-run", "delete", "gpu.yaml", "waits.py")
    client.until_says("begun")
    (run,) = runs_of(user)
    # A file is in the way, so the outputs cannot be stored.
    shutil.rmtree(folder := user.workspace / ".gpuinfra" / "runs" / run["id"] / "outputs", ignore_errors=True)
    folder.write_text("in the way")
    (guest_home(azure) / "go").touch()
    assert client.end() == 1, client.said
    assert "outputs" in client.err
    assert is_off(azure)
    assert azure.everything() == PARTS, "the disk is kept"

    assert run["id"] in user.fails("down", "--delete", "my-dsvm", code="needs-consent", exit_code=2)["note"]
    assert azure.everything() == PARTS
    folder.unlink()
    user.up()
    assert [each["name"] for each in user.does("outputs", run["id"])["files"]] == ["early.txt", "late.txt"]
    assert user.down("--delete", "my-dsvm")["verifiedBy"] == "404"
    assert azure.everything() == []
