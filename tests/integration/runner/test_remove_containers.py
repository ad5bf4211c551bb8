"""Containers of ended jobs are removed when the engine answers; other containers are kept."""

import contextlib

import pytest

from gpuinfra.runner.connection.remote_client import RemoteClient
from gpuinfra.runner.docker.client import Engine
from gpuinfra.runner.helper_containers import remove_forgotten
from gpuinfra.runner.remote_runs import forget_run, start_watcher
from tests.integration.runner.conftest import eventually
from tests.lab import BUSYBOX, Lab
from tests.variants import variant


@variant
def test_container_is_removed_when_the_engine_is_back(lab: Lab) -> None:
    made = lab.engine.docker("run", "-d", "--init", BUSYBOX, "sleep", "600").stdout.strip()
    with lab.connected() as connection, contextlib.closing(RemoteClient(connection)) as remote:
        start_watcher(remote, "run-1", made, timeout=None)
        lab.engine.stop()
        try:
            assert forget_run(remote, "run-1", made) is None
            assert not (lab.home / ".gpuinfra/runs/run-1").exists()
        finally:
            lab.engine.start()
    assert eventually(lambda: lab.engine.containers() == [])


def test_only_ended_containers_of_forgotten_runs_of_the_project_are_removed(lab: Lab) -> None:
    def container(name: str, project: str, run: str, *words: str) -> None:
        labels = ("--label", f"gpuinfra.project={project}", "--label", f"gpuinfra.run={run}")
        lab.engine.docker("run", "-d", "--init", "--name", name, *labels, BUSYBOX, *words)

    container("forgotten", "p", "r1", "true")
    container("known", "p", "r2", "true")
    container("running", "p", "r3", "sleep", "600")
    container("other", "q", "r1", "true")
    assert eventually(lambda: len(lab.engine.containers(status="exited")) == 3)
    with lab.connected() as connection:
        engine = Engine(connection)
        remove_forgotten(engine, "p", lambda: {"r2"})
        engine.close()
    left = lab.engine.docker("ps", "-a", "--format", "{{.Names}}").stdout.split()
    assert sorted(left) == ["known", "other", "running"]


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_container_of_a_failed_job_stays_for_a_look_unless_it_was_cancelled(lab: Lab, is_cancelled: bool) -> None:
    script = "echo weights > /model; trap 'exit 143' TERM; echo begun; sleep 600 & wait" if is_cancelled else "exit 3"
    made = lab.engine.docker("run", "-d", BUSYBOX, "sh", "-c", f"echo weights > /model; {script}").stdout.strip()
    with lab.connected() as connection, contextlib.closing(RemoteClient(connection)) as remote:
        start_watcher(remote, "run-1", made, timeout=None)
        remote.ask("heartbeat", run="run-1", afterRun="deallocate", keepOnFailure=1800.0)
        if is_cancelled:
            assert eventually(lambda: "begun" in lab.engine.docker("logs", made).stdout)
            lab.engine.docker("stop", made)
        assert forget_run(remote, "run-1", made) is None
    if is_cancelled:
        assert eventually(lambda: lab.engine.containers() == [])
    else:
        assert lab.engine.docker("cp", f"{made}:/model", str(lab.folder / "model")).returncode == 0
        assert (lab.folder / "model").read_text() == "weights\n"
