"""A Docker Engine that stops while a job runs, and the state of the job afterwards."""

from tests.e2e.jobs import ENDLESS, expect_line, outputs_of, read_tree, show_run, start_program, wait_for, wait_for_exit
from tests.lab import REMOTEDOCKER, Lab


def test_container_is_removed_when_the_engine_stopped_during_a_job(lab: Lab) -> None:
    user = lab.user()
    with start_program(user, "submit", "-c", REMOTEDOCKER, user.script(ENDLESS)) as client:
        expect_line(client, "begun\n")
        # While the engine shuts down, it reports the job's end and no longer removes the container.
        lab.engine.restart()
        code, _, errors = wait_for_exit(client)
    assert code not in {0, 255}, errors
    run = show_run(user)
    assert (run["state"], run["outputs"]["complete"]) == ("failed", True)
    assert read_tree(outputs_of(user, run["id"])) == {"partial": b"partial"}
    wait_for(lambda: lab.engine.containers() == [], "no container")
    wait_for(lambda: list(lab.home.glob(".gpuinfra/runs/*")) == [], "no run on the target")
