"""`plan --detailed-exitcode`: a machine that is off as designed is not a difference; everything else is."""

import json
from typing import Any

from tests.e2e.azure import Azure, advance, change_power
from tests.e2e.run_help import wait_until
from tests.e2e.user import LARGER_SIZE, User

NSG = ("Microsoft.Network/networkSecurityGroups", "my-dsvm-nsg")
LIFECYCLE = {"lease": "1h", "idle": "3h", "maxCost": "5 USD"}
SMALL: dict[str, Any] = {"target": {"type": "remote"}}


def planned(user: User) -> tuple[int, dict[str, Any]]:
    """Return the exit code of `plan --detailed-exitcode`, and the one plan."""
    done = user("plan", "gpu.yaml", "--detailed-exitcode", "--json")
    (plan,) = json.loads(done.stdout)["plans"]
    return done.returncode, plan


def test_only_differences_other_than_being_off_as_designed_count(user: User, azure: Azure) -> None:
    user.spec(lifecycle=LIFECYCLE, **SMALL)
    assert planned(user)[0] == 3, "it does not exist"
    user.up()
    assert planned(user)[0] == 0

    advance(azure, 22 * 3600)
    wait_until(lambda: azure.machine()["powerState"] == "PowerState/deallocated", "Azure's schedule has fired")
    code, plan = planned(user)
    assert (code, plan["powerState"], plan["differs"]) == (0, "deallocated", False)
    assert plan["changes"], "`up` would start it"
    shown = user("plan", "gpu.yaml")
    assert "my-dsvm is off, as designed; otherwise Azure matches the file. `up` starts it." in shown.stdout
    assert "power: deallocated -> running" in shown.stdout

    nsg = azure.part(*NSG)
    open_to_all = {"priority": 200, "direction": "Inbound", "access": "Allow", "protocol": "*", "sourcePortRange": "*"}
    open_to_all |= {"sourceAddressPrefix": "*", "destinationAddressPrefix": "*", "destinationPortRange": "*"}
    rules = [*nsg["properties"]["securityRules"], {"name": "all", "properties": open_to_all}]
    azure.put(azure.id(*NSG), {**nsg, "properties": {**nsg["properties"], "securityRules": rules}})
    code, plan = planned(user)
    assert (code, plan["differs"]) == (3, True), "a rule was added"
    azure.put(azure.id(*NSG), nsg)
    assert planned(user)[0] == 0
    user.spec(lifecycle=LIFECYCLE, size=LARGER_SIZE, **SMALL)
    assert planned(user)[0] == 3, "the size in the spec changed"
    user.spec(lifecycle={**LIFECYCLE, "lease": "2h"}, **SMALL)
    assert planned(user)[0] == 3, "the lease in the spec changed"

    user.spec(lifecycle=LIFECYCLE, **SMALL)
    change_power(azure, "start")
    change_power(azure, "powerOff")
    code, plan = planned(user)
    assert (code, plan["powerState"]) == (3, "stopped"), "it is billed"


def test_absent_machine_is_as_designed_if_the_spec_keeps_it_off_or_deletes_it_after_its_run(user: User) -> None:
    user.spec(power="deallocated")
    said = user("plan", "gpu.yaml", "--detailed-exitcode")
    assert said.returncode == 0
    assert (
        said.stdout.splitlines()[0]
        == "No changes: my-dsvm does not exist, and `power: deallocated` does not create it."
    )
    assert planned(user)[1]["powerState"] is None
    user.spec(lifecycle={"afterRun": "delete"})
    deleted = user("plan", "gpu.yaml", "--detailed-exitcode")
    assert deleted.returncode == 0
    assert "my-dsvm does not exist, as designed: `afterRun: delete`. `up` creates it." in deleted.stdout
