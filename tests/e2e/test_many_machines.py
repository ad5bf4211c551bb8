"""`up` and `down` of several machines: one that is stuck does not keep the others on."""

import json
import re
import signal
from typing import Any

import pytest

from tests.e2e.azure import Azure, advance
from tests.e2e.run_help import Start, wait_until
from tests.e2e.user import LARGER_SIZE, User
from tests.variants import variant, variants

MACHINES = ("alpha", "beta", "gamma")
VM = "Microsoft.Compute/virtualMachines"


def _specs(user: User, *names: str, **fields: Any) -> None:
    (user.workspace / "specs").mkdir(exist_ok=True)
    for name in names:
        target = {"type": "remote"}
        user.spec(
            file=f"specs/{name}.yaml", name=name, target=target, lifecycle={"lease": "4h", "idle": "3h"}, **fields
        )


def _power(azure: Azure, name: str) -> str:
    return str(azure.machine(name, f"gpuinfra-{name}")["powerState"]).removeprefix("PowerState/")


@pytest.fixture
def three(user: User) -> User:
    """A user with three machines that are on, described in the folder `specs`."""
    _specs(user, *MACHINES)
    machines = user.does("up", "specs")["machines"]
    assert [each["target"]["machine"] for each in machines] == list(MACHINES)
    return user


def test_down_switches_the_others_off_while_azure_fails_for_one(three: User, azure: Azure) -> None:
    azure.fault("InternalServerError", method="POST", resource="alpha", count=0)
    three.patch = {"gpuinfra.app.down.SECONDS": 4.0, "gpuinfra.app.down.LOOK_SECONDS": 6.0}
    before = azure.last_request()
    done = three("down", "specs", "--json")
    answer = json.loads(done.stdout)
    assert done.returncode == 4, done.stderr
    verified = {receipt["name"]: receipt["verifiedBy"] for receipt in answer["receipts"]}
    assert verified == {"alpha": None, "beta": "PowerState/deallocated", "gamma": "PowerState/deallocated"}
    assert [_power(azure, name) for name in MACHINES] == ["running", "deallocated", "deallocated"]
    asked = [each["path"].split("/")[-2] for each in azure.requests(before) if each["path"].endswith("/deallocate")]
    assert asked[-1] == "alpha", "the others did not wait for it"


def test_down_without_json_names_the_command_for_what_is_left(three: User, azure: Azure) -> None:
    azure.fault("never-ends", method="POST", resource="beta", operation=True)
    three.patch = {"gpuinfra.app.down.SECONDS": 4.0, "gpuinfra.app.down.LOOK_SECONDS": 6.0}
    done = three("down", "specs")
    assert done.returncode == 4, done.stderr
    assert "alpha is off" in done.stdout
    assert "gamma is off" in done.stdout
    assert "NOT VERIFIED: beta may still be on and billed" in done.stdout
    assert "gpuinfra down beta" in done.stdout
    advance(azure, 3600)
    (beta,) = three.does("status", "beta")["machines"]
    (billed,) = [each["costUsd"] for each in azure.bill() if each["name"] == "beta"]
    assert beta["powerState"] == "deallocating"
    assert beta["costUsd"] == pytest.approx(billed, abs=0.002), "Azure does not bill a machine while it deallocates it"


def test_interrupted_down_lists_every_machine_and_keeps_the_receipts(three: User, azure: Azure, start: Start) -> None:
    azure.fault("InternalServerError", method="POST", resource="beta", count=0)
    with start("down", "specs") as down:
        wait_until(lambda: [_power(azure, name) for name in ("alpha", "gamma")] == ["deallocated"] * 2, "two are off")
        down.until(lambda: down.err.count(": deallocated") == 2)
        down.send(signal.SIGINT)
        assert down.end() == 130
    assert "alpha is off" in down.out
    assert "gamma is off" in down.out
    lines = {
        line.split()[0]: line for line in down.err.splitlines() if line.split()[:1] and line.split()[0] in MACHINES
    }
    assert "off" in lines["alpha"].split()
    assert "on" in lines["beta"].split()
    assert "$0.631/h" in lines["beta"]
    assert "off" in lines["gamma"].split()
    assert "gpuinfra down beta" in down.err
    assert "--delete" not in down.err
    assert "nothing exists" not in down.err


@variant
def test_up_creates_the_others_when_one_has_no_quota(user: User, azure: Azure) -> None:
    _specs(user, *MACHINES)
    user.spec(file="specs/beta.yaml", name="beta", size=LARGER_SIZE, region="eastus", target={"type": "remote"})
    azure.limit("eastus", 4)
    done = user("up", "specs", "--json")
    answer = json.loads(done.stdout)
    assert done.returncode == 1, done.stderr
    assert [each["target"]["machine"] for each in answer["machines"]] == ["alpha", "gamma"]
    assert [_power(azure, name) for name in ("alpha", "gamma")] == ["running", "running"]
    (problem,) = answer["diagnostics"]
    assert "beta" in json.dumps(problem)


@variant
def test_up_of_several_machines_creates_them_at_the_same_time(user: User, azure: Azure) -> None:
    _specs(user, *MACHINES)
    before = azure.last_request()
    azure.fault("hold-after", method="PUT", resource="alpha", type="virtualMachines")
    with user.start("up", "specs") as up:
        wait_until(lambda: _is_held(azure) and _is_created(azure, "gamma", before), "gamma does not wait for alpha")
        azure.clear_faults()
        out, err = up.communicate(timeout=120)
    assert up.returncode == 0, err
    assert [name for name in MACHINES if f"{name} is running" in out] == list(MACHINES)


def _is_held(azure: Azure) -> bool:
    return any(fault.get("held") for fault in azure.control("GET", "faults")["faults"])


def _is_created(azure: Azure, name: str, after: int) -> bool:
    return f"PUT virtualMachines/{name}" in azure.writes(after)


@variant
def test_interrupted_up_lists_every_machine(user: User, azure: Azure, start: Start) -> None:
    _specs(user, *MACHINES)
    azure.fault("never-ends", method="PUT", resource="beta", type="virtualMachines")
    before = azure.last_request()
    with start("up", "specs") as up:
        up.until(lambda: all(_is_ready(user, name) for name in ("alpha", "gamma")))
        azure.fault("InternalServerError", method="GET", resource="gamma", count=0)
        up.send(signal.SIGINT)
        assert up.end() == 130
    lines = {line.split()[0]: line for line in up.err.splitlines() if line.split()[:1] and line.split()[0] in MACHINES}
    assert set(lines) == set(MACHINES)
    assert "on" in lines["alpha"].split()
    assert "unknown" in lines["gamma"].split(), "Azure did not answer, and it may be billed"
    assert "gpuinfra down alpha beta gamma" in up.err
    assert "nothing exists" not in up.err
    assert not [write for write in azure.writes(before) if write.startswith("DELETE")]


def test_interrupted_up_names_a_machine_that_azure_does_not_show_yet(user: User, azure: Azure, start: Start) -> None:
    _specs(user, *MACHINES)
    azure.fault("hold-before", method="PUT", resource="beta", type="virtualMachines")
    with start("up", "specs") as up:
        up.until(lambda: _is_held(azure) and all(_is_ready(user, name) for name in ("alpha", "gamma")))
        up.send(signal.SIGINT)
        assert up.end() == 130
    assert "gpuinfra down alpha beta gamma" in up.err, "the request may arrive after the last look"


def test_interrupted_deletion_names_a_machine_with_a_remaining_resource(
    three: User, azure: Azure, start: Start
) -> None:
    azure.fault("hold-before", method="DELETE", type="resourceGroups", resource="gpuinfra-beta")
    with start("down", "specs", "--delete", "--yes") as down:
        down.until(lambda: _is_held(azure) and _groups(azure) == ["resourceGroups/gpuinfra-beta"])
        down.send(signal.SIGINT)
        assert down.end() == 130
    assert azure.everything() == ["resourceGroups/gpuinfra-beta"], "the VM is gone, and not everything else"
    # The others are named too if the interrupt came before their receipts.
    assert re.search(r"gpuinfra down (alpha )?beta( gamma)? --delete", down.err)


def _groups(azure: Azure) -> list[str]:
    return [each for each in azure.everything() if each.startswith("resourceGroups/")]


def test_plan_shows_every_plan_and_every_problem(user: User, azure: Azure) -> None:
    _specs(user, *MACHINES)
    user.spec(file="specs/beta.yaml", name="beta", size=LARGER_SIZE, region="eastus", target={"type": "remote"})
    (user.workspace / "specs" / "broken.yaml").write_text("apiVersion: gpuinfra/v1\nname: delta\nsize: nothing\n")
    azure.limit("eastus", 4)
    done = user("plan", "specs", "--json")
    answer = json.loads(done.stdout)
    assert done.returncode == 2, done.stderr
    assert [plan["name"] for plan in answer["plans"]] == ["alpha", "gamma"]
    many = (user.workspace / "specs" / "alpha.yaml").read_text()
    (user.workspace / "specs" / "alpha.yaml").write_text(f"{many}\n---\nname: epsilon\nname: twice\n---\nname: [open")
    found = json.loads(user("plan", "specs", "--json").stdout)
    assert [plan["name"] for plan in found["plans"]] == ["alpha", "gamma"], "a broken document does not hide the others"
    assert {"beta", "delta", "epsilon"} <= {each.get("machine") for each in found["diagnostics"]}
    files = [diagnostic.get("file", "") for diagnostic in answer["diagnostics"]]
    assert any(file.endswith("specs/broken.yaml") for file in files)
    assert any("beta" in str(diagnostic.get("note")) for diagnostic in answer["diagnostics"])
    shown = user("plan", "specs")
    assert "alpha:" in shown.stdout
    assert "All 2 machines (simulated):" in shown.stdout
    assert "all on      $1.262 an hour" in shown.stdout
    assert "broken.yaml" in shown.stderr


def _is_ready(user: User, name: str) -> bool:
    return (user.workspace / "aml_config" / f"{name}.compute").exists()


def test_broken_spec_in_a_folder_does_not_keep_the_others_on(three: User, azure: Azure) -> None:
    (three.workspace / "specs" / "beta.yaml").write_text("apiVersion: gpuinfra/v1\nname: beta\nsize: nothing\n")
    done = three("down", "specs", "--json")
    answer = json.loads(done.stdout)
    assert done.returncode == 2, done.stderr
    assert [receipt["name"] for receipt in answer["receipts"]] == ["alpha", "gamma"]
    assert all("beta.yaml" in json.dumps(each) for each in answer["diagnostics"])
    assert [_power(azure, name) for name in MACHINES] == ["deallocated", "running", "deallocated"]


def test_down_that_cannot_log_in_has_not_seen_anything_off(three: User, azure: Azure) -> None:
    environment = azure.environment()
    wrong = {**environment, "AZURE_CLIENT_SECRET": "wrong", "GPUINFRA_CLOUD": "azure"}
    done = three("down", "specs", "--json", **wrong)
    assert done.returncode == 4, done.stdout + done.stderr
    assert [_power(azure, name) for name in MACHINES] == ["running"] * 3


def test_shared_group_is_created_once_for_machines_in_two_regions(user: User, azure: Azure, start: Start) -> None:
    (user.workspace / "specs").mkdir()
    for name, region in (("alpha", "southcentralus"), ("beta", "eastus")):
        fields: dict[str, Any] = {"name": name, "region": region, "resourceGroup": "team", "target": {"type": "remote"}}
        user.spec(file=f"specs/{name}.yaml", **fields)
    # Both have planned to create the group before either asks for it.
    azure.fault("hold-before", method="PUT", resource="team")
    with start("up", "specs") as up:
        up.until(lambda: _is_held(azure) and "resourceGroups/team" in azure.everything())
        azure.control("POST", "release")
        assert up.end() == 0, up.said
    assert up.err.count("+ resource-group") == 1, "one of the plans adds the group"
    assert {"alpha:", "beta:"} <= set(up.err.splitlines()), "each plan has the name of its machine"
    assert sorted(re.findall(r"Done: (\d) added", up.out)) == ["6", "7"]
    assert [azure.machine(name, "team")["powerState"] for name in ("alpha", "beta")] == ["PowerState/running"] * 2


def test_down_delete_of_all_machines_of_a_shared_group_says_that_it_is_empty(user: User, azure: Azure) -> None:
    _specs(user, "alpha", "beta", resourceGroup="team")
    user.does("up", "specs")
    receipts = user.does("down", "specs", "--delete", "--yes")["receipts"]
    assert azure.everything() == ["resourceGroups/team"]
    said = [word for receipt in receipts for word in receipt["kept"] if word.startswith("resource-group team")]
    assert any("and empty; `az group delete --name team` deletes it" in word for word in said), said


def _limited_quota(user: User, azure: Azure) -> None:
    """Describe machines of 4, 8 and 4 vCPUs in a folder and a file, with a quota of 8."""
    _specs(user, "alpha", "gamma")
    user.spec(file="specs/beta.yaml", name="beta", size=LARGER_SIZE, target={"type": "remote"})
    azure.limit("southcentralus", 8)


@pytest.mark.parametrize("command", variants("plan", "up"))
def test_machines_of_a_command_share_the_quota_in_their_order(user: User, azure: Azure, command: str) -> None:
    _limited_quota(user, azure)
    before = azure.last_request()
    done = user(command, "specs", "--json")
    answer = json.loads(done.stdout)
    assert done.returncode == 1, done.stderr
    found = answer["plans"] if command == "plan" else [each["plan"] for each in answer["machines"]]
    assert [plan["name"] for plan in found] == ["alpha", "gamma"], "each alone fits, and beta does not after alpha"
    (problem,) = answer["diagnostics"]
    assert problem["code"] == "no-candidate"
    assert problem["file"].endswith("specs/beta.yaml")
    assert "needs 8 vCPUs of Standard NCASv3_T4 Family; 4 of 8 left after alpha" in problem["note"]
    assert "the quota suffices for alpha, gamma" in problem["note"]
    assert not any("beta" in write for write in azure.writes(before)), "it is decided before Azure is changed"
    if command == "up":
        assert [_power(azure, name) for name in ("alpha", "gamma")] == ["running", "running"]
        (problem,) = json.loads(user("plan", "specs", "--json").stdout)["diagnostics"]
        assert "0 of 8 left" in problem["note"], "existing machines do not claim their quota a second time"


def test_order_on_the_command_line_decides_who_gets_the_quota(user: User, azure: Azure) -> None:
    _limited_quota(user, azure)
    done = user("plan", "specs/beta.yaml", "specs/alpha.yaml", "specs/gamma.yaml", "--json")
    answer = json.loads(done.stdout)
    assert [plan["name"] for plan in answer["plans"]] == ["beta"]
    assert ["0 of 8 left after beta" in each["note"] for each in answer["diagnostics"]] == [True, True]


def test_plan_adds_a_shared_group_once_and_refuses_a_spot_price_below_the_current_one(user: User, azure: Azure) -> None:
    _specs(user, *MACHINES, resourceGroup="team")
    spot = {"priority": "spot", "spot": {"maxPrice": 0.01}}
    user.spec(file="specs/beta.yaml", name="beta", resourceGroup="team", target={"type": "remote"}, **spot)
    answer = json.loads(user("plan", "specs", "--json").stdout)
    kinds = [change["kind"] for plan in answer["plans"] for change in plan["changes"]]
    assert [plan["name"] for plan in answer["plans"]] == ["alpha", "gamma"]
    assert (kinds.count("resource-group"), kinds.count("vm")) == (1, 2)
    assert "group team is added with alpha" in answer["plans"][1]["notes"]
    (problem,) = answer["diagnostics"]
    assert problem["code"] == "no-candidate"
    assert "an hour now, more than `spot.maxPrice: 0.01`" in problem["note"]
    assert problem["file"].endswith("specs/beta.yaml")
