"""A Docker Engine that is stopped while a job runs, and what is left of the job when it is back."""

from tests.e2e.jobs import ENDLESS, contents, ended, outputs_of, reads, shown, soon, started
from tests.lab import REMOTEDOCKER, Lab


def test_no_container_stays_when_the_engine_was_stopped_in_the_middle_of_a_job(lab: Lab) -> None:
    user = lab.user()
    with started(user, "submit", "-c", REMOTEDOCKER, user.script(ENDLESS)) as client:
        reads(client, "begun\n")
        # While it shuts down it says how the job ended, and no longer removes the container.
        lab.engine.restart()
        code, _, errors = ended(client)
    assert code not in {0, 255}, errors
    run = shown(user)
    assert (run["state"], run["outputs"]["complete"]) == ("failed", True)
    assert contents(outputs_of(user, run["id"])) == {"partial": b"partial"}
    soon(lambda: lab.engine.containers() == [], "no container")
    soon(lambda: list(lab.home.glob(".gpuinfra/runs/*")) == [], "no run on the target")
