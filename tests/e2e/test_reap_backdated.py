"""`reap --specs` with backdated commits, or with copies of specs that are still in use."""

import json
import subprocess

from tests.e2e.azure import Azure
from tests.e2e.repository import commit_all
from tests.e2e.user import SPEC, User, inherited, run_reap

LONG = {"lease": "3d", "idle": "2d"}
RUNNING = "PowerState/running"
HOUR = 3600


def commit_backdated(user: User, hours: float) -> None:
    """Commit everything, dated this many hours ago by the sandbox's clock."""
    at = f"{user.azure.control('GET', 'clock')['now'] - hours * HOUR:.0f} +0000"
    dates = {"GIT_AUTHOR_DATE": at, "GIT_COMMITTER_DATE": at}
    name = ("-c", "user.name=Eve", "-c", "user.email=eve@example.com", "-c", "commit.gpgsign=false")
    environment = {**inherited(), "HOME": str(user.home), **dates}
    for words in (("add", "-A"), ("commit", "-q", "-m", "tidy")):
        subprocess.run(["git", *name, *words], cwd=user.workspace, env=environment, check=True, timeout=20)


def bring_up_bob(user: User) -> str:
    """Bob's spec is committed in the folder `a`, and his machine is on."""
    for folder in ("a", "b"):
        (user.workspace / folder).mkdir()
    (user.workspace / "gpu.yaml").unlink()
    (user.workspace / "a/bob.yaml").write_text(json.dumps({**SPEC, "name": "bobm", "lifecycle": LONG}))
    (user.workspace / "b/readme").touch()
    commit_all(user, "bob's machine")
    user.does("up", "a/bob.yaml")
    return (user.workspace / "a/bob.yaml").read_text()


def test_copy_of_a_spec_that_was_deleted_again_does_not_end_the_machine(user: User, azure: Azure) -> None:
    spec = bring_up_bob(user)
    azure.control("POST", "clock", {"advance": 30 * HOUR})
    copy = user.workspace / "b/x.yaml"
    copy.write_text(spec)
    commit_backdated(user, 29)
    copy.unlink()
    commit_backdated(user, 28)
    found = run_reap(user, "--specs", "b", "--delete", "--yes")
    assert (found["deleted"], found["stopped"]) == ([], [])
    assert azure.machine("bobm", "gpuinfra-bobm")["powerState"] == RUNNING


def test_grace_begins_no_earlier_than_the_machine_was_switched_on(user: User, azure: Azure) -> None:
    bring_up_bob(user)
    (user.workspace / "a/bob.yaml").rename(user.workspace / "b/bob.yaml")
    commit_backdated(user, 29)
    (user.workspace / "b/bob.yaml").unlink()
    commit_backdated(user, 28)
    found = run_reap(user, "--specs", "b", "--delete", "--yes")
    assert (found["deleted"], found["stopped"]) == ([], [])
    assert azure.machine("bobm", "gpuinfra-bobm")["powerState"] == RUNNING

    azure.control("POST", "clock", {"advance": 25 * HOUR})
    assert [each["name"] for each in run_reap(user, "--specs", "b")["stopped"]] == ["bobm"]


def test_commit_dated_before_its_parent_counts_from_the_parents_date(user: User, azure: Azure) -> None:
    bring_up_bob(user)
    azure.control("POST", "clock", {"advance": 30 * HOUR})
    (user.workspace / "b/readme").write_text("today\n")
    commit_all(user, "today")
    (user.workspace / "a/bob.yaml").unlink()
    commit_backdated(user, 28)
    found = run_reap(user, "--specs", "a", "--delete", "--yes")
    assert (found["deleted"], found["stopped"]) == ([], [])
    assert azure.machine("bobm", "gpuinfra-bobm")["powerState"] == RUNNING
