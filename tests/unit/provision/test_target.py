"""Finding a machine, and waiting until it is settled."""

import pytest

from gpuinfra.diagnostics import Code, Problem
from gpuinfra.models.plan import Kind
from gpuinfra.models.target import Target
from gpuinfra.provision import tags
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.target import find_target, target_from_spec
from gpuinfra.provision.up import observe_settled
from tests.unit.provision_help import DENIED, GROUP, NAME, FakeCloud, lines_of, made, spec, task


def problem(cloud: FakeCloud) -> Code:
    with pytest.raises(Problem) as caught:
        find_target(cloud, NAME)
    return caught.value.diagnostics[0].code


def test_machine_is_found_by_its_name() -> None:
    assert find_target(made(), NAME, ssh_port=2222, identity="/home/me/.ssh/id_ed25519") == Target(
        name="my_dsvm",
        machine=NAME,
        type="remotedocker",
        address="203.0.113.99",
        port=2222,
        username="azureuser",
        host_key="ssh-ed25519 AAAAhost",
        identity="/home/me/.ssh/id_ed25519",
        simulated=True,
    )


def test_machine_is_found_in_any_group() -> None:
    wanted = spec(resource_group="gpu-team", target={"name": "mine"})
    cloud = made(wanted)
    cloud.body(Kind.RESOURCE_GROUP, "gpu-team")["tags"] = {}
    assert find_target(cloud, NAME).name == "mine"


def test_target_has_the_options_of_the_spec() -> None:
    wanted = spec(target={"type": "remote", "framework": "PySpark", "conda_dependencies": "env.yml", "name": "mine"})
    observed = made(wanted).observe(NAME, GROUP)
    target = target_from_spec(observed, wanted, ssh_port=22, identity=None)
    assert (target.name, target.type, target.framework) == ("mine", "remote", "PySpark")
    assert (target.conda_dependencies, target.nvidia_docker) == ("env.yml", True)
    assert target.address == "203.0.113.99"


def test_target_as_json_omits_the_key_path() -> None:
    plain = find_target(made(), NAME, identity="/home/me/.ssh/id_ed25519").as_json()
    assert "id_ed25519" not in str(plain)
    assert (plain["hostKey"], plain["port"]) == ("ssh-ed25519 AAAAhost", 22)


def test_missing_machine_is_not_a_target() -> None:
    assert problem(FakeCloud()) is Code.NO_SUCH_MACHINE


def test_machine_without_our_tags_is_not_a_target() -> None:
    cloud = made()
    cloud.body(Kind.VM)["tags"] = {"owner": "alice"}
    assert problem(cloud) is Code.UNTAGGED_MACHINE


@pytest.mark.parametrize("power", ["deallocated", "starting", "stopped", "unknown"])
def test_machine_that_is_off_is_not_a_target(power: str) -> None:
    cloud = made()
    cloud.set_power(power)
    assert problem(cloud) is Code.MACHINE_IS_OFF


def test_refusal_is_a_problem() -> None:
    cloud = made()
    cloud.fail("observe", DENIED)
    assert problem(cloud) is Code.NOT_ALLOWED


def test_machine_without_an_address_is_not_a_target() -> None:
    cloud = made()
    cloud.body(Kind.PUBLIC_IP)["properties"]["ipAddress"] = None
    assert problem(cloud) is Code.NO_SUCH_MACHINE
    cloud.remove(Kind.PUBLIC_IP)
    assert problem(cloud) is Code.NO_SUCH_MACHINE


# Until it is settled
def settled(cloud: FakeCloud, seconds: float = 60) -> list[str]:
    work = task(cloud, seconds)
    observed = observe_settled(work, NAME, GROUP)
    assert all(part.is_settled for part in observed.ours())
    return lines_of(work)


def test_settled_machine_is_looked_at_once() -> None:
    cloud = made()
    assert settled(cloud) == []
    assert cloud.calls == [f"observe {NAME}"]


@pytest.mark.parametrize("state", ["Failed", "Canceled", "Succeeded"])
def test_failed_machine_is_settled(state: str) -> None:
    cloud = made()
    cloud.body(Kind.VM)["properties"]["provisioningState"] = state
    assert settled(cloud) == []


def test_pending_operation_is_waited_for() -> None:
    cloud = made()
    cloud.body(Kind.VM)["properties"]["provisioningState"] = "Creating"

    def finish(call: str) -> None:
        if call == "look vm my-dsvm" and len(cloud.time.pauses) == 2:
            cloud.body(Kind.VM)["properties"]["provisioningState"] = "Succeeded"

    cloud.on_call = finish
    assert settled(cloud) == ["vm my-dsvm: waiting while it is Creating", "vm my-dsvm: settled"]
    assert cloud.writes == []


def test_pending_deletion_is_waited_for() -> None:
    cloud = made()
    cloud.body(Kind.DISK)["properties"]["provisioningState"] = "Deleting"
    cloud.on_call = lambda call: cloud.remove(Kind.DISK) if call == "look disk my-dsvm-disk" else None
    settled(cloud)
    assert Kind.DISK not in cloud.kinds


def test_foreign_resources_are_not_waited_for() -> None:
    cloud = made()
    cloud.body(Kind.DISK)["tags"] = {}
    cloud.body(Kind.DISK)["properties"]["provisioningState"] = "Updating"
    assert settled(cloud) == []


def test_endless_operation_times_out() -> None:
    cloud = made()
    cloud.body(Kind.VNET)["properties"]["provisioningState"] = "Updating"
    with pytest.raises(CloudError) as caught:
        settled(cloud)
    assert (caught.value.fault, caught.value.subject) == (Fault.TIMEOUT, "vnet my-dsvm-vnet")
    assert cloud.time.seconds < 60


def test_failure_of_a_machine_is_read_from_its_statuses() -> None:
    cloud = made()
    part = next(part for part in cloud.parts.values() if part.ref.kind is Kind.VM)
    assert (part.failure, part.power, part.state) == ("", "running", "Succeeded")
    part.body["properties"]["instanceView"] = {"statuses": [{"code": "ProvisioningState/failed/AllocationFailed"}, {}]}
    assert (part.failure, part.power) == ("AllocationFailed", "unknown")
    part.body["properties"]["instanceView"] = None
    assert (part.failure, part.power) == ("", "unknown")
    assert tags.get(part.tags, tags.TARGET) == "my_dsvm"
