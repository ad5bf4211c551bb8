"""A machine that no longer answers while the connection stays open."""

import sys

import pytest

from tests.e2e.impatient import start_impatient
from tests.e2e.jobs import ENDLESS, GATES, expect_line, last_run, shared_folder, wait_for_exit
from tests.lab import REMOTE, REMOTEDOCKER, Lab
from tests.proxy import holding
from tests.variants import variant, variants

PATCH = {"gpuinfra.runner.heartbeat.SILENT_SECONDS": 2.0}


@pytest.mark.parametrize("name", variants(REMOTEDOCKER, REMOTE))
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


@variant
@pytest.mark.parametrize("name", variants(REMOTEDOCKER, REMOTE))
def test_client_connects_again_when_the_network_is_back(lab: Lab, name: str) -> None:
    script = f"""{GATES}
print("begun")
gate("more")
for number in range(1000): print(number)
gate("over")
"""
    with holding(lab.server.port, sys.maxsize) as proxy:
        user = lab.user(port=proxy.port)
        share = shared_folder(user, name)
        with start_impatient(user, "submit", "-c", name, user.script(script), patch=PATCH) as client:
            expect_line(client, "begun\n")
            assert client.stderr is not None
            # No packet of the old connection arrives any more, and for a while none of a new one.
            proxy.freeze()
            proxy.strand()
            (share / "more").touch()
            lines = iter(client.stderr.readline, "")
            while "no answer from" not in next(lines):
                pass
            proxy.thaw()
            assert "the job keeps running, trying to reach it again" in next(lines)
            # At once, and not only when the job prints something.
            assert next(lines) == "reached it again\n"
            for number in range(1000):
                expect_line(client, f"{number}\n")
            (share / "over").touch()
            code, out, errors = wait_for_exit(client)
    assert (code, out) == (0, ""), errors
