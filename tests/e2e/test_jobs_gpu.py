"""The GPU that a job requests: without it the job does not run, and its use is recorded."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.e2e import jobs
from tests.lab import LOCALDOCKER, REMOTE, REMOTEDOCKER, Lab, LabUser
from tests.nvidia import CONTAINER, MISMATCH, MODEL, NO_DEVICES, NO_DRIVER, NOT_INSTALLED, UNKNOWN_ERROR

# It leaves a mark where it has run, and prints the GPUs that it sees.
MARKING = """
import os, shutil, subprocess
open(os.path.join(os.environ["AZUREML_NATIVE_SHARE_DIRECTORY"], "ran"), "w").close()
tool = shutil.which("nvidia-smi")
print(subprocess.run([tool, "-L"], capture_output=True, text=True).stdout if tool else "none")
"""
BUSY = f"""{jobs.GATES}
gate("enough")
"""


def has_run(user: LabUser, name: str) -> bool:
    """Return whether the job has run since the last call."""
    mark = jobs.shared_folder(user, name) / "ran"
    found = mark.exists()
    mark.unlink(missing_ok=True)
    return found


@pytest.mark.parametrize(
    ("how", "places", "name"),
    [
        (NO_DRIVER, (), REMOTEDOCKER),
        (NO_DEVICES, (), REMOTEDOCKER),
        (MISMATCH, (), LOCALDOCKER),
        (UNKNOWN_ERROR, (CONTAINER,), REMOTEDOCKER),
        (NOT_INSTALLED, (CONTAINER,), REMOTEDOCKER),
        (NO_DRIVER, (), REMOTE),
        (NOT_INSTALLED, (), REMOTE),
    ],
)
def test_gpu_job_does_not_run_without_its_gpu(lab: Lab, how: str, places: tuple[str, ...], name: str) -> None:
    user = lab.user()
    user.compute(REMOTE, nvidiaDocker=True)
    with lab.nvidia.failing(how, *places):
        found = jobs.submit_refused(user, "-c", name, user.script(MARKING), code="no-gpu")
    assert found["note"]
    assert not has_run(user, name)
    run = jobs.last_run(user)
    assert (run["state"], run["exitCode"]) == ("failed", None)


def test_more_gpus_than_the_machine_has_are_refused(lab: Lab) -> None:
    user = lab.user()
    script = user.script(MARKING)
    for wanted in ("3", "2,3", "GPU-12345678-0000-4000-8000-000000000000"):
        jobs.submit_refused(user, "-c", REMOTEDOCKER, "--gpus", wanted, script, code="no-gpu")
    assert not has_run(user, REMOTEDOCKER)
    jobs.submit_refused(user, "-c", REMOTEDOCKER, "--gpus", "0", script, code="usage", exit_code=2)
    done = user("submit", "-c", REMOTEDOCKER, "--gpus", "device=1", script)
    assert (done.returncode, done.stdout.count(MODEL)) == (0, 1), done.stderr
    assert "GPU 1:" in done.stdout
    assert jobs.show_run(user)["gpu"]["count"] == 1
    assert has_run(user, REMOTEDOCKER)


@pytest.mark.parametrize(
    "wanted",
    [
        "3",
        "0,2",
        "GPU-12345678-0000-4000-8000-000000000000",
    ],
)
def test_gpus_that_a_machine_without_containers_lacks_are_refused(lab: Lab, wanted: str) -> None:
    user = lab.user()
    try:
        jobs.submit_refused(user, "-c", REMOTE, "--gpus", wanted, user.script(MARKING), code="no-gpu")
    finally:
        ran = has_run(user, REMOTE)
    assert not ran


def test_engine_without_an_nvidia_runtime_is_refused(lab: Lab) -> None:
    user = lab.user()
    script = user.script(MARKING)
    with lab.without_runtime():
        found = jobs.submit_refused(user, "-c", REMOTEDOCKER, script, code="no-gpu")
        assert "nvidia-container-toolkit" in found["help"]
        assert not has_run(user, REMOTEDOCKER)
        user.compute(REMOTEDOCKER, nvidiaDocker=False)
        jobs.submit_job(user, "-c", REMOTEDOCKER, script)
    assert has_run(user, REMOTEDOCKER)


def test_job_without_nvidia_docker_gets_no_gpu(lab: Lab) -> None:
    user = lab.user(nvidia_docker=False)
    user.compute(REMOTEDOCKER, nvidiaDocker=False)
    done = user("submit", "-c", REMOTEDOCKER, user.script(MARKING))
    assert (done.returncode, done.stdout) == (0, "none\n"), done.stderr
    run = jobs.show_run(user)
    assert (run["gpu"], run["usage"], run["warnings"]) == (None, None, [])
    assert has_run(user, REMOTEDOCKER)


@contextmanager
def load(lab: Lab, utilization: int, memory: int) -> Iterator[None]:
    lab.nvidia.load(utilization, memory)
    try:
        yield
    finally:
        lab.nvidia.idle()


def samples(lab: Lab) -> int:
    """Return how many samples there are, of one GPU each."""
    return sum(len(file.read_text().splitlines()) for file in lab.home.glob(".gpuinfra/runs/*/samples"))


def sampled(user: LabUser, *words: str, name: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code and the run of a job whose GPU was sampled."""
    gate = jobs.shared_folder(user, name) / "enough"
    with jobs.start_program(user, "submit", "--json", "-c", name, *words, user.script(BUSY)) as client:
        jobs.wait_for(lambda: samples(user.lab) >= 2, "a sample of both GPUs")
        gate.touch()
        code, out, _ = jobs.wait_for_exit(client)
    gate.unlink()
    return code, jobs.run_in_output(out)


@pytest.mark.parametrize("name", [REMOTEDOCKER, REMOTE])
def test_gpu_usage_is_recorded(lab: Lab, name: str) -> None:
    user = lab.user()
    with load(lab, 80, 4000):
        code, run = sampled(user, "--require-gpu-use", name=name)
    assert code == 0
    assert run["warnings"] == []
    usage = run["usage"]
    assert usage["used"]
    assert (usage["peakUtilization"], usage["meanUtilization"], usage["peakMemoryMib"]) == (80, 80.0, 4000)
    assert run["simulated"]
    gpu = jobs.show_run(user)["gpu"]
    assert (gpu["count"], gpu["models"], gpu["driver"], gpu["cuda"]) == (2, [MODEL] * 2, "535.161.08", "12.2")
    assert (gpu["computeCapabilities"], gpu["memoryMiB"]) == (["7.5"] * 2, [15360] * 2)
    assert len(set(gpu["busIds"])) == 2


def test_unused_gpu_is_reported(lab: Lab) -> None:
    user = lab.user()
    code, run = sampled(user, name=REMOTEDOCKER)
    assert (code, run["state"], run["usage"]["used"]) == (0, "completed", False)
    assert "never used" in run["warnings"][0]
    found = jobs.submit_refused(
        user, "-c", REMOTEDOCKER, "--require-gpu-use", user.script("print('on the CPU')\n"), code="gpu-not-used"
    )
    assert jobs.last_run(user)["id"] in found["note"]
