"""`doctor` by the installed program: a healthy machine, missing parts, and no login."""

import json
from typing import Any

from tests.e2e.azure import Azure
from tests.e2e.run_help import guest_root, wait_until
from tests.e2e.user import User

SCHEDULE = ("Microsoft.DevTestLab/schedules", "shutdown-computevm-my-dsvm")
MACHINE = ("Microsoft.Compute/virtualMachines", "my-dsvm")


def examined(user: User, *words: str, exit_code: int = 0, **more: Any) -> dict[str, Any]:
    done = user("doctor", *words, "--json", **more)
    assert done.returncode == exit_code, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def verdicts(checks: list[dict[str, Any]]) -> dict[str, str]:
    return {check["name"]: check["verdict"] for check in checks if check["verdict"] != "ok"}


def check(found: dict[str, Any], name: str) -> dict[str, Any]:
    (machine,) = found["machines"]
    (only,) = [each for each in machine["checks"] if each["name"] == name]
    return dict(only)


def test_doctor_finds_nothing_after_up_and_reports_what_is_removed(user: User, azure: Azure) -> None:
    assert user.up()["agent"] == "armed"
    wait_until((guest_root(azure) / "run" / "gpuinfra" / "agent.json").exists, "the agent has started")
    before = azure.last_request()
    found = examined(user)
    assert verdicts(found["checks"]) == {}
    (machine,) = found["machines"]
    assert verdicts(machine["checks"]) == {}, machine
    names = ["state", "lease", "agent", "role", "schedule", "network", "protection", "rights"]
    assert [each["name"] for each in machine["checks"]] == names
    assert (found["verdict"], found["simulated"]) == ("ok", True)
    assert check(found, "agent")["seen"].startswith("it is running (watching)")
    assert azure.writes(before) == [], "doctor only reads"
    said = user("doctor")
    assert said.stdout.startswith("account (simulated)\n")
    assert said.stderr.endswith("no problems, no warnings\n")

    assert azure.send("DELETE", azure.id(*SCHEDULE))[0] < 300
    marks = {**azure.machine()["tags"], "gpuinfra:protect": "yes", "gpuinfra:lease-until": "soon"}
    assert azure.send("PATCH", azure.id(*MACHINE), {"tags": marks})[0] < 300
    (machine,) = examined(user, "MY-DSVM", exit_code=1)["machines"]
    assert verdicts(machine["checks"]) == {"lease": "problem", "schedule": "problem", "protection": "warning"}


def test_doctor_shows_the_role_commands_for_an_administrator(user: User, azure: Azure) -> None:
    azure.fault("AuthorizationFailed", type="roleDefinitions", method="PUT", count=0)
    assert user.up()["agent"] == "not-armed"
    azure.clear_faults()
    role = check(examined(user), "role")
    assert role["verdict"] == "warning"
    define, assign = role["commands"]
    assert define.startswith("az role definition create --role-definition ")
    assert assign.startswith("az role assignment create --assignee-object-id ")
    assert azure.machine()["identity"]["principalId"] in assign
    assert assign.endswith(f" --scope {azure.id(*MACHINE)}")


def test_doctor_reports_a_missing_machine(user: User) -> None:
    found = examined(user, "my-dsvm", exit_code=1)
    assert [(each["name"], verdicts(each["checks"])) for each in found["machines"]] == [
        ("my-dsvm", {"state": "problem"})
    ]


def test_doctor_checks_this_computer_without_a_login(user: User, azure: Azure) -> None:
    user.private_key.with_suffix(".pub").unlink()
    for variables in ({}, {**azure.environment(), "AZURE_CLIENT_SECRET": "wrong"}):
        found = examined(user, exit_code=1, sandbox=False, **variables)
        assert verdicts(found["checks"]) == {"login": "problem", "ssh-key": "problem"}
        assert all(each["fix"] for each in found["checks"] if each["verdict"] != "ok")
        assert found["machines"] == []
