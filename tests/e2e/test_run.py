"""`gpuinfra run` on the embedded Azure: a machine for one job, off again whatever comes of the job; or it says so."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.azure import Azure
from tests.e2e.run_help import (
    MODEL,
    PAUSE,
    SECONDS,
    Start,
    guest_home,
    guest_root,
    is_off,
    project,
    ran,
    runs_of,
)
from tests.e2e.user import PARTS, PROGRAM, User, inherited
from tests.real import missing

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


# To the end


@pytest.mark.parametrize("code", [0, 7])
def test_up_the_job_and_off_again(user: User, azure: Azure, code: int) -> None:
    told = ran(user, "gpu.yaml", "quick.py", str(code), exit_code=code)
    run, receipt = told["run"], told["receipt"]
    assert (run["state"], run["exitCode"]) == ("failed" if code else "completed", code)
    assert outputs(user, run["id"]) == {"result.txt": "result"}
    assert (receipt["off"], receipt["verifiedBy"], receipt["left"]) == (True, "PowerState/deallocated", [])
    assert azure.everything() == PARTS
    assert is_off(azure)
    shown = user.does("runs", "show", run["id"])["run"]
    # Azure's log has whole seconds, and the sandbox can be quicker than one.
    assert receipt["costUsd"] >= 0
    assert 0 <= shown["costUsd"] <= receipt["costUsd"], "its job's part of the time that the machine was on"
    (billed,) = azure.bill()
    assert abs(billed["costUsd"] - receipt["costUsd"]) < 0.005


def test_deleted_afterwards_with_the_outputs_here(user: User, azure: Azure) -> None:
    project(user, afterRun="delete")
    told = ran(user, "gpu.yaml", "quick.py")
    assert azure.everything() == []
    assert told["receipt"]["verifiedBy"] == "404"
    assert outputs(user, told["run"]["id"]) == {"result.txt": "result"}


def test_kept_for_others_and_ended_by_the_last(user: User, azure: Azure, start: Start) -> None:
    kept = user("run", "--after-run", "keep", "gpu.yaml", "quick.py")
    assert (kept.returncode, kept.stdout) == (0, "done\n")
    assert "my-dsvm is kept, as was asked: it is billed until `gpuinfra down my-dsvm`" in kept.stderr
    assert azure.machine()["powerState"] == "PowerState/running"

    assert user("submit", "-c", "my_dsvm", "--detach", "waits.py").returncode == 0
    going = runs_of(user)[0]["id"]
    client = start("run", "--after-run", "delete", "gpu.yaml", "quick.py")
    assert client.end() == 0
    assert f"my-dsvm is kept for {going}" in client.err
    assert azure.machine()["powerState"] == "PowerState/running"

    # Nobody has asked after it since; what it wrote is here before the disk goes.
    (guest_home(azure) / "go").touch()
    until_over(azure, going)
    told = ran(user, "--after-run", "delete", "gpu.yaml", "quick.py")
    assert told["receipt"]["verifiedBy"] == "404"
    assert azure.everything() == []
    assert outputs(user, going) == {"early.txt": "early", "late.txt": "late"}


def until_over(azure: Azure, run: str) -> None:
    state, ends = guest_home(azure) / ".gpuinfra" / "runs" / run / "state.json", time.monotonic() + SECONDS
    while "ended" not in json.loads(state.read_text()):
        assert time.monotonic() < ends, "the job does not end"
        time.sleep(PAUSE)


def test_a_reader_that_has_enough_does_not_leave_it_on(user: User, azure: Azure) -> None:
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


def test_interrupted_before_there_is_a_machine(user: User, azure: Azure, start: Start) -> None:
    azure.fault("hold-before", method="PUT", type="virtualMachines")
    client = start("run", "gpu.yaml", "quick.py")
    client.until_held()
    client.send(signal.SIGINT)
    azure.clear_faults()
    assert client.end() == 130
    assert "virtualMachines/my-dsvm" not in azure.everything()
    assert "Azure says 404" in client.out
    assert not azure.is_billed()


def test_interrupted_while_it_waits_for_ssh(user: User, azure: Azure, start: Start) -> None:
    azure.fault("ssh-refuses")
    client = start("run", "gpu.yaml", "quick.py")
    client.until_says("waiting for SSH")
    client.send(signal.SIGINT)
    assert client.end() == 130
    assert "Azure says PowerState/deallocated" in client.out
    assert is_off(azure)


def test_interrupted_while_the_project_is_sent(user: User, azure: Azure, start: Start) -> None:
    (user.workspace / "data.bin").write_bytes(os.urandom(MODEL))
    client = start("run", "gpu.yaml", "quick.py")
    client.until_says("upload: sending")
    client.send(signal.SIGINT)
    assert client.end() == 130
    assert is_off(azure)
    assert [run["state"] for run in runs_of(user)] == ["cancelled"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_while_the_job_runs(user: User, azure: Azure, start: Start, number: signal.Signals) -> None:
    client = start("run", "gpu.yaml", "waits.py")
    client.until_says("begun")
    client.send(number)
    assert client.end() in {130, 143}
    (run,) = runs_of(user)
    assert (run["state"], run["outputs"]["complete"]) == ("cancelled", True)
    assert outputs(user, run["id"]) == {"early.txt": "early"}
    assert is_off(azure)


def test_interrupted_while_outputs_are_fetched(user: User, azure: Azure, start: Start) -> None:
    client = start("run", "gpu.yaml", "writes.py")
    client.until_says("outputs: fetching")
    client.send(signal.SIGINT)
    assert client.end() in {0, 130}
    (run,) = runs_of(user)
    assert (run["state"], run["exitCode"], run["outputs"]["complete"]) == ("completed", 0, True)
    assert is_off(azure)


def test_interrupted_while_it_is_switched_off(user: User, azure: Azure, start: Start) -> None:
    azure.fault("hold-before", method="POST", type="virtualMachines")
    client = start("run", "gpu.yaml", "quick.py")
    client.until_held()
    client.send(signal.SIGINT)
    assert client.end() == 130
    assert "my-dsvm is switched off first" in client.err
    assert is_off(azure)


def test_interrupted_twice_it_leaves_at_once_and_says_what_there_is(user: User, azure: Azure, start: Start) -> None:
    (user.workspace / "stubborn.py").write_text(STUBBORN)
    client = start("run", "gpu.yaml", "stubborn.py")
    client.until_says("begun")
    client.send(signal.SIGINT)
    client.until_says("cancelling")
    client.send(signal.SIGINT)
    assert client.end() == 130
    assert "my-dsvm is left as it is: it is billed until `gpuinfra down my-dsvm`" in client.err
    assert "in Azure there is now: " in client.err
    assert "Azure's own schedule stops it at" in client.err
    azure.control("POST", "clock", {"advance": 3 * 3600})
    assert is_off(azure)

    # Nobody has asked what it wrote. Whoever deletes that wants to; then nobody asks any more.
    (run,) = runs_of(user)
    assert run["id"] in user.fails("down", "--delete", "my-dsvm", code="needs-consent", exit_code=2)["note"]
    assert azure.everything() == PARTS
    assert user.down("--delete", "--yes", "my-dsvm")["verifiedBy"] == "404"
    (run,) = runs_of(user)
    assert (run["state"], run["machine"]) == ("lost", "")
    assert user.down("--delete", "my-dsvm")["verifiedBy"] == "404"


# What goes wrong


def refused(user: User, *words: str, code: str, exit_code: int = 2) -> dict[str, Any]:
    """Before anything was asked of Azure that changes something."""
    done = user("run", "--json", *words)
    assert done.returncode == exit_code, done.stdout + done.stderr
    (diagnostic,) = json.loads(done.stdout)["diagnostics"]
    assert diagnostic["code"] == code, diagnostic
    assert diagnostic["help"]
    assert user.azure.writes() == []
    assert runs_of(user) == []
    return dict(diagnostic)


def test_what_is_known_before_a_machine_is_billed(user: User, azure: Azure) -> None:
    refused(user, "gpu.yaml", "nope.py", code="no-script")
    assert "put it first" in refused(user, "gpu.yaml", "quick.py", "--sandbox", code="usage")["help"]
    assert "options stand before the spec" in refused(user, "gpu.yaml", "--sandbox", "quick.py", code="usage")["help"]
    refused(user, "--after-run", "burn", "gpu.yaml", "quick.py", code="usage")
    user.spec(power="deallocated")
    refused(user, "gpu.yaml", "quick.py", code="machine-is-off")


def test_a_package_for_the_cpu_is_found_before_a_machine_is_billed(user: User, azure: Azure) -> None:
    user.spec()
    folder = user.workspace / "aml_config"
    folder.mkdir()
    (folder / "conda_dependencies.yml").write_text("dependencies:\n  - python=3.11\n  - pip:\n    - tensorflow-cpu\n")
    problem = refused(user, "gpu.yaml", "quick.py", code="cpu-only-package", exit_code=1)
    assert problem["file"].endswith("conda_dependencies.yml")


def ended(user: User, *words: str, exit_code: int) -> tuple[str, dict[str, Any]]:
    """A run that fails with one problem: its code, and the whole object."""
    told = ran(user, *words, exit_code=exit_code)
    (diagnostic,) = told["diagnostics"]
    assert diagnostic["help"]
    return str(diagnostic["code"]), told


def test_a_gpu_that_is_gone_when_the_job_is_to_begin(user: User, azure: Azure) -> None:
    user.up()
    tool = guest_root(azure) / "bin" / "nvidia-smi"
    real = tool.rename(tool.with_name("nvidia-smi-before"))
    shutil.copy(tool.with_name("nvidia-smi.json"), tool.with_name("nvidia-smi-before.json"))
    # It answers once, to `up`; the guest agent asks for nothing but how busy it is.
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
    """A machine that is up, with room for 1 MiB."""
    if os.geteuid() != 0 or not shutil.which("mount"):
        missing("a small disk needs root")
    user.up()
    folder = guest_home(azure) / ".gpuinfra"
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)], check=True, timeout=20)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True, timeout=20)


def test_a_disk_that_is_full_ends_the_machine_too(user: User, azure: Azure, small_disk: Path) -> None:
    (user.workspace / "data.bin").write_bytes(os.urandom(4 << 20))
    code, told = ended(user, "gpu.yaml", "quick.py", exit_code=1)
    assert code == "disk-full"
    assert told["run"]["state"] == "failed"
    assert is_off(azure)


def test_a_machine_that_cannot_be_switched_off_is_told(user: User, azure: Azure) -> None:
    azure.fault("AuthorizationFailed", method="POST", type="virtualMachines", count=0)
    shown = user("run", "gpu.yaml", "quick.py")
    assert shown.returncode == 4
    assert "NOT VERIFIED: my-dsvm may still be on, and billed" in shown.stderr
    assert "gpuinfra down my-dsvm" in shown.stderr
    assert azure.is_billed()
    (run,) = runs_of(user)
    assert (run["state"], run["outputs"]["complete"]) == ("completed", True)


def test_an_azure_that_refuses_everything_at_the_end_is_told(user: User, azure: Azure, start: Start) -> None:
    client = start("run", "--json", "gpu.yaml", "waits.py")
    client.until_says("begun")
    azure.fault("AuthorizationFailed", count=0)
    home = next((azure.folder / "guests").iterdir()) / "home" / "azureuser"
    (home / "go").touch()
    assert client.end() == 4
    told = json.loads(client.out)
    assert told["run"]["outputs"]["complete"] is True
    (diagnostic,) = told["diagnostics"]
    assert "my-dsvm may be on, and billed until `gpuinfra down my-dsvm`" in diagnostic["note"]
    assert "receipt" not in told


def test_what_could_not_be_fetched_is_not_deleted(user: User, azure: Azure, start: Start) -> None:
    client = start("run", "--after-run", "delete", "gpu.yaml", "waits.py")
    client.until_says("begun")
    (run,) = runs_of(user)
    # There is no room for them here.
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
