"""The job in the spec, and commands instead of it, on the embedded Azure and in a container."""

import json
import shutil
from typing import Any

from tests.e2e.azure import Azure
from tests.e2e.jobs import outputs_of, read_tree, show_run, submit_job, submit_refused
from tests.e2e.run_help import guest_root, is_off
from tests.e2e.test_jobs_secrets import holding, watched
from tests.e2e.user import SPEC, User
from tests.lab import REMOTEDOCKER, Lab
from tests.program import ROOT
from tests.variants import variant

SECRET = "geheim-0123456789"
# Also creates an output folder again, as scripts do that start with an empty one.
TRAIN = """
import hashlib, os, shutil, sys
shutil.rmtree("checkpoints"); os.mkdir("checkpoints")
open("outputs/model", "w").write(" ".join(sys.argv[1:]))
open("checkpoints/step-1", "w").write(os.environ["WHO"])
print(hashlib.sha256(os.environ["NVIDIA_API_KEY"].encode()).hexdigest())
"""
JOB: dict[str, Any] = {
    "command": "set -e\npython3 train.py $WHO\necho and more text\n",
    "env": {"WHO": "spec"},
    "secrets": ["NVIDIA_API_KEY"],
    "outputs": ["outputs/", "checkpoints/"],
    "timeout": "10m",
}


def fetched(user: User, run: str) -> dict[str, bytes | str]:
    return read_tree(user.workspace / ".gpuinfra" / "runs" / run / "outputs")


def submit(user: User, *words: str, **more: Any) -> dict[str, Any]:
    """Run a job that must succeed, and return its run. Options come before the script."""
    done = user("submit", "--json", *words, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(done.stdout)["run"])


def test_example_is_validated_planned_and_run(user: User, azure: Azure) -> None:
    shutil.copytree(ROOT / "examples/job", user.workspace, dirs_exist_ok=True)
    assert user.does("validate", "gpu.yaml")["valid"]
    job = user.plan()["job"]
    assert (job["command"][2], job["env"]) == ("python3 train.py --epochs 3", {"RUN_NAME": "first"})
    assert job["outputs"] == ["outputs/", "checkpoints/"]
    done = user("run", "gpu.yaml")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "first: epoch 3, loss 0.125"
    assert azure.machine("digits", "gpuinfra-digits")["powerState"] == "PowerState/deallocated"
    assert not azure.is_billed()
    (run,) = user.does("runs")["runs"]
    saved = {f"checkpoints/epoch-{number}.json" for number in (1, 2, 3)}
    assert set(fetched(user, run["id"])) == {"model.json", *saved}


def test_run_executes_the_job_of_the_spec(user: User, azure: Azure) -> None:
    user.spec(target={"type": "remote"}, job=JOB)
    (user.workspace / "train.py").write_text(TRAIN)
    (user.workspace / "checkpoints").mkdir()
    (user.workspace / "checkpoints/old").write_text("not sent")

    assert "`NVIDIA_API_KEY`" in user.fails("run", code="missing-secret", exit_code=2)["note"]
    assert "trian.py" in user.fails("run", "--json", "--", "python3", "trian.py", code="no-script", exit_code=2)["note"]
    hidden = ("run", "--json", "--", "env", "CUDA_VISIBLE_DEVICES=", "python3", "train.py")
    assert "in the command itself" in user.fails(*hidden, code="no-gpu", exit_code=2, NVIDIA_API_KEY=SECRET)["note"]
    assert azure.everything() == [], "nothing was billed"

    with watched(SECRET.encode()) as seen:
        done = user("run", "--json", NVIDIA_API_KEY=SECRET)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    run = told["run"]
    assert fetched(user, run["id"]) == {"model": b"spec", "checkpoints/step-1": b"spec"}
    assert run["command"] == ["/bin/sh", "-c", JOB["command"]]
    assert run["script"] == "set -e python3 train.py $WHO echo and..."
    assert run["gpu"]["count"] == 1
    assert "secrets for the job, named by the spec: NVIDIA_API_KEY" in done.stderr
    assert "not sent, because they are for outputs: checkpoints/" in done.stderr
    assert told["receipt"]["verifiedBy"] == "PowerState/deallocated"
    assert seen == []
    assert holding(SECRET.encode(), user.workspace, user.home, guest_root(azure)) == []
    assert SECRET not in json.dumps(azure.machine())

    # A missing program, with the machine off afterwards.
    for words, state in ((("nosuch", "a"), "failed"), (("sh", "-c", "nosuch"), "failed")):
        done = user("run", "--json", "gpu.yaml", "--", *words, NVIDIA_API_KEY=SECRET)
        assert done.returncode == 127, done.stderr
        told = json.loads(done.stdout)
        (diagnostic,) = told["diagnostics"]
        assert (diagnostic["code"], told["run"]["state"], told["receipt"]["off"]) == ("no-program", state, True)
        assert is_off(azure)

    # A script and a command keep the other settings of the job; the next job does not need its output folders.
    user.up()
    words = ("-c", "my_dsvm")
    own = submit(user, *words, "--env", "WHO=line", "train.py", "a", "--", "b", NVIDIA_API_KEY=SECRET)
    assert fetched(user, own["id"]) == {"model": b"a -- b", "checkpoints/step-1": b"line"}
    user.spec(target={"type": "remote"})
    tree = submit(user, *words, "--", "sh", "-c", "ls -d checkpoints* > outputs/names || true")
    assert fetched(user, tree["id"]) == {"names": b"checkpoints\n"}, "it is a folder of the project again"
    assert "what to run" in user.fails("submit", *words, code="usage", exit_code=2)["note"]


@variant
def test_command_runs_in_a_container(lab: Lab) -> None:
    user = lab.user()
    job = {"command": ["cp", "-r", "saved", "outputs/copy"], "outputs": ["saved/"], "env": {"WHO": "spec"}}
    spec = {**SPEC, "name": "machine", "target": {"name": REMOTEDOCKER}, "job": job}
    (user.workspace / "gpu.yaml").write_text(json.dumps(spec))
    words = ("-c", REMOTEDOCKER, "--")
    run = submit_job(user, *words, "sh", "-c", "echo $WHO > saved/first; ls -a saved outputs")
    assert read_tree(outputs_of(user, run["id"])) == {"saved/first": b"spec\n"}
    run = submit_job(user, "-c", REMOTEDOCKER)
    assert run["command"] == job["command"]
    submit_refused(user, *words, "nosuch", code="no-program", exit_code=127)
    assert show_run(user)["state"] == "failed"
