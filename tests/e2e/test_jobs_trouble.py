"""Jobs on failing machines: the engine stops, the disk is full, the connection breaks during the upload."""

import contextlib
import hashlib
import os
import re
import subprocess

import pytest

from tests.e2e import jobs
from tests.lab import REMOTE, REMOTEDOCKER, Lab
from tests.proxy import Proxy, holding
from tests.variants import variant, variants

GREETING = "print('hello')\n"
# It fills the disk, reports it, and exits with its own code.
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


@pytest.mark.parametrize("how", variants("crashed", "restarted"))
def test_job_is_fetched_after_the_engine_restarted(lab: Lab, how: str) -> None:
    user = lab.user()
    with jobs.start_program(user, "submit", "-c", REMOTEDOCKER, user.script(jobs.ENDLESS)) as client:
        jobs.expect_line(client, "begun\n")
        if how == "restarted":
            lab.engine.restart()
        else:
            lab.engine.kill()
            lab.engine.start()
        code, _, errors = jobs.wait_for_exit(client)
    assert code not in {0, 255}, errors
    run = jobs.show_run(user)
    assert run["state"] == "failed", run
    # An engine that shuts down still answers, and reports the container as stopped.
    assert run["reason"] in {"the engine was stopped", *([""] if how == "restarted" else [])}
    assert run["outputs"]["complete"]
    assert jobs.read_tree(jobs.outputs_of(user, run["id"])) == {"partial": b"partial"}
    assert jobs.run_for_bytes(user, "logs", "last")[1] == b"begun\n"
    jobs.submit_job(user, "-c", REMOTEDOCKER, user.script(GREETING))


def test_missing_engine_and_missing_image_are_reported(lab: Lab) -> None:
    user = lab.user()
    script = user.script(GREETING)
    lab.engine.stop()
    try:
        for name in (REMOTEDOCKER, "docker"):
            jobs.submit_refused(user, "-c", name, script, code="no-engine")
        jobs.submit_job(user, "-c", REMOTE, script)
    finally:
        lab.engine.start()
    missing = "nowhere.invalid/no/such:image"
    user.compute(REMOTEDOCKER, "docker", baseDockerImage=missing)
    for name in (REMOTEDOCKER, "docker"):
        assert missing in str(jobs.submit_refused(user, "-c", name, script, code="no-image"))
    assert jobs.last_run(user)["state"] == "failed"


@variant
@pytest.mark.parametrize("name", variants(REMOTEDOCKER, REMOTE))
def test_disk_too_small_for_the_project_is_reported(lab: Lab, name: str) -> None:
    user = lab.user()
    script = user.script(GREETING)
    large = user.workspace / "large"
    large.write_bytes(os.urandom(8 << 20))
    with lab.small_disk(4):
        jobs.submit_refused(user, "-c", name, script, code="disk-full")
        assert jobs.last_run(user)["state"] == "failed"
        large.unlink()
        jobs.submit_job(user, "-c", name, script)


@pytest.mark.parametrize("name", variants(REMOTEDOCKER, REMOTE))
def test_job_that_fills_the_disk_keeps_its_outputs(lab: Lab, name: str) -> None:
    user = lab.user()
    with lab.small_disk(6):
        code, out, errors = jobs.run_for_bytes(user, "submit", "-c", name, user.script(GREEDY))
        run = jobs.show_run(user)
        assert (run["state"], run["exitCode"]) == ("failed", 5), errors
        assert code == 5
        assert run["outputs"]["complete"], run
        # The engine keeps a container's output on its own disk; other lost output is reported.
        is_reported = any("5 bytes of what it printed are lost" in each for each in run["warnings"])
        assert (out, is_reported) == ((b"full\n", False) if name == REMOTEDOCKER else (b"", True))
        files = jobs.read_tree(jobs.outputs_of(user, run["id"]))
        assert files["first"] == b"first"
        assert len(files["large"]) > 4 << 20
        # What was fetched completely was removed there, so there is room again.
        jobs.submit_job(user, "-c", name, user.script(GREETING))


def staged(lab: Lab) -> int:
    """Return how many bytes of the large file are on the machine."""
    return sum(file.stat().st_size for file in lab.home.glob(".gpuinfra/projects/*/staging/*"))


def wait_halfway(lab: Lab, proxy: Proxy, client: "subprocess.Popen[str]") -> None:
    """Wait until the machine has at least a quarter of the file, and can get no more than half of it."""
    jobs.wait_for(lambda: proxy.is_holding.is_set() or client.poll() is not None, "an upload that is held back")
    assert client.poll() is None, jobs.wait_for_exit(client)
    jobs.wait_for(lambda: staged(lab) > SIZE // 4, "a quarter of the file")


def sent(errors: str) -> float:
    """Return the share of the file that the last attempt sent."""
    return float(re.findall(r"upload: 100 %, \S+/(\S+) MiB", errors)[-1]) / (SIZE >> 20)


@variant
def test_upload_resumes_after_the_disk_was_full(lab: Lab) -> None:
    filler = lab.home / ".gpuinfra" / "filler"
    with lab.small_disk(32), holding(lab.server.port, SIZE // 2) as proxy:
        user, content = lab.user(port=proxy.port), os.urandom(SIZE)
        (user.workspace / "large").write_bytes(content)
        words = ("submit", "-c", REMOTEDOCKER, user.script(DIGEST))
        with jobs.start_program(user, *words) as client:
            wait_halfway(lab, proxy, client)
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
                while True:
                    file.write(b"x" * 65536)
            proxy.open()
            code, _, errors = jobs.wait_for_exit(client)
        assert code == 1, errors
        assert "disk is full" in errors
        filler.unlink()
        done = user(*words)
        assert (done.returncode, done.stdout) == (0, f"{hashlib.sha256(content).hexdigest()}\n"), done.stderr
        assert sent(done.stderr) < 0.8, done.stderr


@variant
@pytest.mark.parametrize("how", variants("cut", "killed"))
def test_broken_upload_resumes(lab: Lab, how: str) -> None:
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(holding(lab.server.port, SIZE // 2))
        user, content = lab.user(port=proxy.port), os.urandom(SIZE)
        (user.workspace / "large").write_bytes(content)
        words = ("submit", "-c", REMOTEDOCKER, user.script(DIGEST))
        client = stack.enter_context(jobs.start_program(user, *words))
        wait_halfway(lab, proxy, client)
        if how == "cut":
            lab.server.cut()
            proxy.open()
            code, out, errors = jobs.wait_for_exit(client)
            assert "trying again" in errors
        else:
            jobs.kill_program(client)
            proxy.open()
            run = jobs.last_run(user)
            assert run["state"] == "lost"
            done = user(*words)
            assert jobs.run_for_bytes(user, "logs", run["id"], "-f")[0] == 255
            assert jobs.show_run(user, run["id"])["state"] == "lost"
            code, out, errors = done.returncode, done.stdout, done.stderr
    assert code == 0, errors
    assert out == f"{hashlib.sha256(content).hexdigest()}\n"
    assert 0 < sent(errors) < 0.8, errors
