"""A host key that changes while a job runs: the connection is not restored."""

from tests.e2e.azure import Azure
from tests.e2e.run_help import Start, guest_root, project, runs_of
from tests.e2e.user import User
from tests.sshd import make_key


def test_host_key_that_changes_during_a_job_exits_with_255(user: User, azure: Azure, start: Start) -> None:
    project(user)
    user.up()
    client = start("submit", "-c", "my_dsvm", "waits.py")
    client.until_says("begun")
    key = guest_root(azure) / "etc" / "ssh" / "ssh_host_ed25519_key"
    key.unlink()
    key.with_suffix(".pub").unlink(missing_ok=True)
    make_key(key)
    status, answer = azure.send("POST", f"{azure.id('Microsoft.Compute/virtualMachines', 'my-dsvm')}/restart")
    assert status in {200, 202}, answer
    assert client.end() == 255, client.said
    assert "another host key" in client.err
    assert client.err.count("SHA256:") == 2, client.err
    assert runs_of(user)[0]["state"] == "running", "how the job ended is not known"
