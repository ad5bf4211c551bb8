"""A machine that no longer answers while the connection stays open."""

import sys

import pytest

from tests.e2e.impatient import start_impatient
from tests.e2e.jobs import ENDLESS, expect_line, last_run, wait_for_exit
from tests.lab import REMOTE, REMOTEDOCKER, Lab
from tests.proxy import holding

PATCH = {"gpuinfra.runner.jobs.heartbeat.SILENT_SECONDS": 2.0}


@pytest.mark.parametrize("name", [REMOTEDOCKER, REMOTE])
def test_silence_of_the_connection_is_reported_while_a_job_is_followed(lab: Lab, name: str) -> None:
    with holding(lab.server.port, sys.maxsize) as proxy:
        user = lab.user(port=proxy.port)
        with start_impatient(user, "submit", "-c", name, user.script(ENDLESS), patch=PATCH) as client:
            expect_line(client, "begun\n")
            assert client.stderr is not None
            proxy.freeze()
            lines = iter(client.stderr.readline, "")
            while "no answer from" not in (line := next(lines)):
                assert "trying to reach it again" not in line
            assert f"127.0.0.1:{proxy.port}" in line
            assert "the job keeps running" in line
            proxy.thaw()
            assert "answers again" in next(lines)
            run = last_run(user)["id"]
            assert user.does("cancel", run, "--grace", "0s")["run"]["state"] == "cancelled"
            wait_for_exit(client)
