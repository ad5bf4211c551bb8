"""Jobs on targets of every type: output, outputs and exit codes."""

import re

import pytest

from tests.e2e import jobs
from tests.lab import LOCAL, LOCALDOCKER, REMOTE, REMOTEDOCKER, TARGETS, Lab
from tests.screen import screen
from tests.variants import variant, variants

WRITTEN: dict[str, bytes | str] = {
    "model.bin": b"\0\xff" * 70000,
    "a/b/c/deep": b"deep",
    "odd \n'\"$(id) \u00e9\U0001f389": b"odd",
    "private": b"only root's",
    "empty": b"",
    "-rf": b"dash",
    "locked/in it": b"locked",
    "latest": "model.bin",
}
PRINTED = bytes(range(256)) * 300 + b"x" * (10 << 20) + b"\nno newline at the end"
ERRORS = b"careful\n\xff\0"
NOISY = f"""
import os, sys
files = {WRITTEN!r}
link = files.pop("latest")
for name, content in files.items():
    path = os.path.join("outputs", name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)
os.symlink(link, "outputs/latest")
os.chmod("outputs/private", 0o400)
os.chmod("outputs/locked", 0o700)
sys.stdout.buffer.write(bytes(range(256)) * 300)
sys.stderr.buffer.write({ERRORS!r})
sys.stdout.buffer.write(b"x" * (10 << 20) + b"\\nno newline at the end")
sys.stdout.flush()
sys.exit(7)
"""
# It takes a while, so that the connection can be cut.
MANY_LINES = """
import sys, time
for number in range(20_000):
    print("line", number)
    if number % 200 == 0:
        time.sleep(0.03)
sys.exit(7)
"""


# As many scripts begin. A container's root then owns the folder, and only root can open it.
FRESH = """
import os, shutil, stat
shutil.rmtree("outputs")
assert not os.path.lexists("outputs")
os.makedirs("outputs", mode=0o700)
with open("outputs/model", "w") as file:
    file.write("trained")
os.symlink(os.path.abspath("outputs/model"), "outputs/latest")
os.symlink("/etc/passwd", "outputs/leads-out")
"""


@pytest.mark.parametrize("name", variants(*TARGETS, first=2))
def test_job_can_remove_and_create_the_folder_of_its_outputs(lab: Lab, name: str) -> None:
    user = lab.user()
    run = jobs.submit_job(user, "-c", name, user.script(FRESH))
    assert run["outputs"]["complete"], run
    assert jobs.read_tree(jobs.outputs_of(user, run["id"])) == {"latest": "model", "model": b"trained"}
    assert any("outputs/leads-out was not fetched" in each for each in run["warnings"]), run
    machine = user.home if name in {LOCAL, LOCALDOCKER} else lab.home
    assert not (machine / ".gpuinfra/runs" / run["id"]).exists()
    assert not list((machine / ".gpuinfra/projects").glob("*/*/tree/outputs/*")), "fetched outputs are removed"
    assert jobs.submit_job(user, "-c", name, user.script(FRESH))["outputs"]["complete"]


@pytest.mark.parametrize("name", variants(*TARGETS, first=2))
def test_job_output_outputs_and_exit_code_are_returned(lab: Lab, name: str) -> None:
    user = lab.user()
    code, out, errors = jobs.run_for_bytes(user, "submit", "-c", name, user.script(NOISY), "--epochs", "3")
    assert code == 7, errors
    assert out == PRINTED
    assert ERRORS in errors
    assert jobs.run_for_bytes(user, "logs", "last") == (0, PRINTED, ERRORS)
    run = jobs.show_run(user)
    assert (run["state"], run["exitCode"], run["configuration"]) == ("failed", 7, name)
    assert run["command"][-3:] == ["train.py", "--epochs", "3"]
    assert run["outputs"]["complete"]
    assert jobs.read_tree(jobs.outputs_of(user, run["id"])) == WRITTEN
    user.does("outputs", "last", "results")
    assert jobs.read_tree(user.workspace / "results") == WRITTEN
    assert (user.workspace / "results/private").stat().st_mode & 0o777 == 0o400
    # What was fetched completely is removed from the machine.
    machine = user.home if name in {LOCAL, LOCALDOCKER} else lab.home
    assert not (machine / ".gpuinfra/runs" / run["id"]).exists()
    jobs.wait_for(lambda: lab.engine.containers() == [], "no container")  # submit does not wait for its removal


def test_warm_submit_prints_at_most_three_lines_of_its_own_on_a_terminal(lab: Lab) -> None:
    user = lab.user()
    (user.workspace / "data").mkdir()
    (user.workspace / "data/large").write_text("x" * 1000)
    (user.workspace / ".gitignore").write_text("data/\n")
    script = user.script("print('hello')\nopen('outputs/model', 'w').write('x')\n")
    jobs.submit_job(user, "-c", REMOTEDOCKER, script)
    # A machine under load takes longer for a step than one of a user.
    with jobs.open_terminal(
        user, "submit", "-c", REMOTEDOCKER, script, patch={"gpuinfra.views.progress.BRIEF_SECONDS": 600.0}
    ) as terminal:
        assert terminal.wait_for_exit() == 0, terminal.seen
    text = re.sub(r"\x1b\[[0-9;]*m", "", terminal.seen.decode())
    own = [line for line in screen(text) if line.strip() and line != "hello"]
    assert 1 <= len(own) <= 3, own
    assert "not sent: data/, 1.0 kB, 1 file: .gitignore:1" in own[0]
    assert " ".join(own).count("simulated") == 1, own


@variant
def test_submit_json_prints_one_object_and_job_output_on_stderr(lab: Lab) -> None:
    user = lab.user()
    script = user.script("import sys\nprint('{out}')\nprint('{errors}', file=sys.stderr)\nsys.exit(7)\n")
    done = user("submit", "--json", "-c", REMOTEDOCKER, script)
    assert done.returncode == 7
    assert "{out}\n" in done.stderr
    assert "{errors}\n" in done.stderr
    run = jobs.submit_job(user, "-c", REMOTEDOCKER, script, exit_code=7)
    assert (run["state"], run["exitCode"], run["type"]) == ("failed", 7, "remotedocker")
    assert set(run["timings"]) >= {"upload", "environment", "gpu", "start", "job", "outputs"}
    assert run["imageDigest"].startswith("sha256:")


@pytest.mark.parametrize("name", variants(REMOTEDOCKER, REMOTE))
def test_log_lines_arrive_once_and_in_order_over_a_cut_connection(lab: Lab, name: str) -> None:
    user = lab.user()
    seen: list[str] = []
    with jobs.start_program(user, "submit", "-c", name, user.script(MANY_LINES)) as process:
        assert process.stdout is not None
        for cut_at in (200, 5_000, 10_000, 15_000):
            while len(seen) < cut_at:
                seen.append(process.stdout.readline())
                assert seen[-1], jobs.wait_for_exit(process)
            lab.server.cut()
        code, rest, errors = jobs.wait_for_exit(process)
    assert code == 7, errors
    assert "trying to reach it again" in errors
    assert "reached it again" in errors
    lines = "".join([*seen, rest]).splitlines()
    assert lines == [f"line {number}" for number in range(20_000)]
    assert jobs.run_for_bytes(user, "logs", "last")[1].splitlines() == [line.encode() for line in lines]


@pytest.mark.parametrize("name", variants(REMOTEDOCKER, REMOTE))
def test_run_of_a_short_job_does_not_end_before_it_started(lab: Lab, name: str) -> None:
    """The job ends before the client knows that it runs."""
    user = lab.user()
    run = jobs.submit_job(user, "-c", name, user.script(""))
    # An engine under load may note the start of a short container only after its end: then both are the same.
    assert run["started"] <= run["ended"], run
