"""Jobs on machines that fail: the engine goes, the disk is full, the connection breaks while the project is sent."""

import contextlib
import hashlib
import os
import re
import subprocess

import pytest

from tests.e2e.jobs import (
    ENDLESS,
    contents,
    ended,
    killed,
    last_run,
    outputs_of,
    reads,
    refused,
    shown,
    soon,
    spoken,
    started,
    submitted,
)
from tests.lab import REMOTE, REMOTEDOCKER, Lab
from tests.proxy import Proxy, holding

GREETING = "print('hello')\n"
# It fills the disk, says so, and ends as it wishes.
GREEDY = """
import errno, os, sys
open("outputs/first", "w").write("first")
with open("outputs/large", "wb", buffering=0) as file:
    try:
        while True:
            file.write(b"x" * 65536)
    except OSError as error:
        assert error.errno == errno.ENOSPC
print("full")
sys.exit(5)
"""
SIZE = 24 << 20
DIGEST = """
import hashlib
print(hashlib.sha256(open("large", "rb").read()).hexdigest())
"""


@pytest.mark.parametrize("how", ["restarted", "crashed"])
def test_an_engine_that_goes_and_comes_back(lab: Lab, how: str) -> None:
    user = lab.user()
    with started(user, "submit", "-c", REMOTEDOCKER, user.script(ENDLESS)) as client:
        reads(client, "begun\n")
        if how == "restarted":
            lab.engine.restart()
        else:
            lab.engine.kill()
            lab.engine.start()
        code, _, errors = ended(client)
    assert code not in {0, 255}, errors
    run = shown(user)
    assert run["state"] == "failed", run
    # An engine that is shutting down still answers, and then it looks as if someone had stopped the container.
    assert run["reason"] in {"the engine was stopped", *([""] if how == "restarted" else [])}
    assert run["outputs"]["complete"]
    assert contents(outputs_of(user, run["id"])) == {"partial": b"partial"}
    assert spoken(user, "logs", "last")[1] == b"begun\n"
    submitted(user, "-c", REMOTEDOCKER, user.script(GREETING))


def test_no_engine_at_all(lab: Lab) -> None:
    user = lab.user()
    script = user.script(GREETING)
    lab.engine.stop()
    try:
        for name in (REMOTEDOCKER, "docker"):
            refused(user, "-c", name, script, code="no-engine")
        submitted(user, "-c", REMOTE, script)
    finally:
        lab.engine.start()
    missing = "nowhere.invalid/no/such:image"
    user.compute(REMOTEDOCKER, "docker", baseDockerImage=missing)
    for name in (REMOTEDOCKER, "docker"):
        assert missing in str(refused(user, "-c", name, script, code="no-image"))
    assert last_run(user)["state"] == "failed"


@pytest.mark.parametrize("name", [REMOTEDOCKER, REMOTE])
def test_a_disk_that_is_too_small_for_the_project(lab: Lab, name: str) -> None:
    user = lab.user()
    script = user.script(GREETING)
    large = user.workspace / "large"
    large.write_bytes(os.urandom(8 << 20))
    with lab.small_disk(4):
        refused(user, "-c", name, script, code="disk-full")
        assert last_run(user)["state"] == "failed"
        large.unlink()
        submitted(user, "-c", name, script)


@pytest.mark.parametrize("name", [REMOTEDOCKER, REMOTE])
def test_a_job_that_fills_the_disk_loses_nothing_that_was_written(lab: Lab, name: str) -> None:
    user = lab.user()
    with lab.small_disk(6):
        code, out, errors = spoken(user, "submit", "-c", name, user.script(GREEDY))
        run = shown(user)
        assert (run["state"], run["exitCode"]) == ("failed", 5), errors
        assert code == 5
        assert run["outputs"]["complete"], run
        # The engine keeps what a container prints, on its own disk; what else cannot be kept is told.
        is_told = any("5 bytes of what it printed are lost" in each for each in run["warnings"])
        assert (out, is_told) == ((b"full\n", False) if name == REMOTEDOCKER else (b"", True))
        files = contents(outputs_of(user, run["id"]))
        assert files["first"] == b"first"
        assert len(files["large"]) > 4 << 20
        # What is here in full was removed there, so there is room again.
        submitted(user, "-c", name, user.script(GREETING))


def staged(lab: Lab) -> int:
    """How much of the large file is on the machine."""
    return sum(file.stat().st_size for file in lab.home.glob(".gpuinfra/projects/*/staging/*"))


def waits_halfway(lab: Lab, proxy: Proxy, client: "subprocess.Popen[str]") -> None:
    """Return when the machine has a quarter of the file at least, and can get no more than half of it."""
    soon(lambda: proxy.is_holding.is_set() or client.poll() is not None, "an upload that is held back")
    assert client.poll() is None, ended(client)
    soon(lambda: staged(lab) > SIZE // 4, "a quarter of the file")


def sent(errors: str) -> float:
    """What the last try had to send, as a part of the whole file."""
    return float(re.findall(r"upload: 100 %, \S+/(\S+) MiB", errors)[-1]) / (SIZE >> 20)


def test_a_disk_that_fills_up_while_the_project_is_sent(lab: Lab) -> None:
    filler = lab.home / ".gpuinfra" / "filler"
    with lab.small_disk(32), holding(lab.server.port, SIZE // 2) as proxy:
        user, content = lab.user(port=proxy.port), os.urandom(SIZE)
        (user.workspace / "large").write_bytes(content)
        words = ("submit", "-c", REMOTEDOCKER, user.script(DIGEST))
        with started(user, *words) as client:
            waits_halfway(lab, proxy, client)
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
                while True:
                    file.write(b"x" * 65536)
            proxy.open()
            code, _, errors = ended(client)
        assert code == 1, errors
        assert "disk is full" in errors
        filler.unlink()
        done = user(*words)
        assert (done.returncode, done.stdout) == (0, f"{hashlib.sha256(content).hexdigest()}\n"), done.stderr
        assert sent(done.stderr) < 0.8, done.stderr


@pytest.mark.parametrize("how", ["cut", "killed"])
def test_an_upload_that_breaks_off_goes_on_where_it_was(lab: Lab, how: str) -> None:
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(holding(lab.server.port, SIZE // 2))
        user, content = lab.user(port=proxy.port), os.urandom(SIZE)
        (user.workspace / "large").write_bytes(content)
        words = ("submit", "-c", REMOTEDOCKER, user.script(DIGEST))
        client = stack.enter_context(started(user, *words))
        waits_halfway(lab, proxy, client)
        if how == "cut":
            lab.server.cut()
            proxy.open()
            code, out, errors = ended(client)
            assert "trying again" in errors
        else:
            killed(client)
            proxy.open()
            run = last_run(user)
            assert run["state"] == "lost"
            done = user(*words)
            assert spoken(user, "logs", run["id"], "-f")[0] == 255
            assert shown(user, run["id"])["state"] == "lost"
            code, out, errors = done.returncode, done.stdout, done.stderr
    assert code == 0, errors
    assert out == f"{hashlib.sha256(content).hexdigest()}\n"
    assert 0 < sent(errors) < 0.8, errors
