"""What becomes of the history when a machine is deleted."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from gpuinfra.app.down import forget_jobs
from gpuinfra.app.machine_costs import jobs_of
from gpuinfra.app.settings import Settings
from gpuinfra.models.plan import MachineId
from gpuinfra.models.run import RunState
from gpuinfra.store import History
from tests.runs import make_run
from tests.unit.provision_help import NAME, NOW

HERE, ELSEWHERE = MachineId("s", "here", NAME), MachineId("s", "elsewhere", NAME)
RUN = make_run("1", "t", created=NOW, machine=NAME, started=NOW + timedelta(minutes=1))


@pytest.mark.parametrize("simulated", [True, False])
def test_only_jobs_of_the_machine_that_is_gone_are_given_up(tmp_path: Path, simulated: bool) -> None:
    history = History(tmp_path / ".gpuinfra")
    history.save(replace(RUN, id="here", simulated=simulated))
    # Of the same name, in the other Azure.
    there = replace(RUN, id="there", simulated=not simulated)
    history.save(there)
    settings = Settings(json=False, yes=False, verbose=False, cloud="azure", workspace=tmp_path, correlation_id="")
    forget_jobs(settings, HERE, simulated=simulated)
    assert (history.find("here").state, history.find("here").machine) == (RunState.LOST, "")
    assert history.find("there") == there
    assert [run.id for run in history.unfetched(NAME)] == ["there"]


def test_jobs_of_a_machine_of_this_name_in_another_group_are_kept(tmp_path: Path) -> None:
    history = History(tmp_path / ".gpuinfra")
    history.save(replace(RUN, id="here", resource_id=str(HERE).upper()))
    there = replace(RUN, id="there", resource_id=str(ELSEWHERE))
    history.save(there)
    settings = Settings(json=False, yes=False, verbose=False, cloud="azure", workspace=tmp_path, correlation_id="")
    forget_jobs(settings, HERE, simulated=False)
    assert history.find("here").state is RunState.LOST
    assert history.find("there") == there


def test_job_of_a_deleted_machine_counts_in_the_cost_by_run(tmp_path: Path) -> None:
    history = History(tmp_path / ".gpuinfra")
    history.save(replace(RUN, resource_id=str(HERE)))
    settings = Settings(json=False, yes=False, verbose=False, cloud="azure", workspace=tmp_path, correlation_id="")
    forget_jobs(settings, HERE, simulated=False)
    run = history.find("1")
    (job,) = jobs_of([run], NOW)
    assert (job.id, job.machine, job.started, job.ended) == ("1", NAME, RUN.started, run.ended)
