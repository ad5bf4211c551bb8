"""The cloud port with the real SDK, against the embedded Azure."""

import dataclasses
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from gpuinfra.models.plan import Candidate, Kind, Plan, Power, Ref, Resource
from gpuinfra.models.spec import Spec
from gpuinfra.provision import lease, tags
from gpuinfra.provision.azure.access import Access
from gpuinfra.provision.azure.clients import Clients, RequestLimits
from gpuinfra.provision.azure.cloud import AzureCloud
from gpuinfra.provision.azure.market import AzureMarket
from gpuinfra.provision.down import Teardown
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.login import HostKey, new_host_key
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.plan import make_plan
from gpuinfra.provision.resources import MODULES
from gpuinfra.provision.resources.common import PlanInput
from gpuinfra.provision.tags import ref_of
from gpuinfra.provision.target import find_target
from gpuinfra.provision.task import Task
from gpuinfra.provision.waiting import Deadline, Interrupt
from tests.integration.provision.conftest import close
from tests.integration.sandbox.machine_help import KEY
from tests.integration.sandbox.servers import Sandbox
from tests.unit.provision_help import NAME, NO_JOURNAL, SMALL, RecordedProgress, spec, words

GROUP = f"gpuinfra-{NAME}"
SECONDS = 30.0


@pytest.fixture(scope="module")
def host_key() -> HostKey:
    return new_host_key()


@pytest.fixture
def heard() -> RecordedProgress:
    return RecordedProgress()


@pytest.fixture
def cloud(server: Sandbox, access: Access, heard: RecordedProgress) -> Iterator[AzureCloud]:
    arm(server, "no-boot", count=0)  # no guest is needed
    clients = Clients(access, RequestLimits(Deadline.after(60), heard))
    yield AzureCloud(clients)
    close(clients)


def arm(server: Sandbox, name: str, **fields: Any) -> None:
    server.control("POST", "faults", {"name": name, **fields})


def requests(server: Sandbox, *methods: str) -> list[str]:
    found = server.control("GET", "log")["requests"]
    return [f"{each['method']} {each['path']}" for each in found if not methods or each["method"] in methods]


def ref(kind: Kind, group: str = GROUP) -> Ref:
    return ref_of(kind, group, NAME)


def plan_input(cloud: AzureCloud, host_key: HostKey, wanted: Spec | None = None) -> PlanInput:
    wanted = wanted or spec()
    machine = cloud.look(ref(Kind.VM, wanted.group_name))
    return PlanInput(
        spec=wanted,
        candidate=Candidate(wanted.regions[0], wanted.candidate_sizes[0]),
        subscription=cloud.subscription,
        sources=("203.0.113.7/32",),
        public_key=KEY,
        host_key=host_key,
        lease=lease.decide(wanted, machine, cloud.now()),
    )


def task(cloud: AzureCloud) -> Task:
    market, deadline = AzureMarket(cloud.clients), Deadline.after(SECONDS)
    return Task(cloud, market, RecordedProgress(), NO_JOURNAL, deadline)


def make(cloud: AzureCloud, resource: Resource, *, new: bool = False) -> None:
    cloud.wait(cloud.put(resource, new=new), Deadline.after(SECONDS))


def make_all(cloud: AzureCloud, host_key: HostKey, wanted: Spec | None = None) -> PlanInput:
    given = plan_input(cloud, host_key, wanted)
    for kind, module in MODULES.items():
        if kind is not Kind.DISK:
            make(cloud, module.desired(given), new=kind is Kind.VM)
    return given


def present(cloud: AzureCloud, kind: Kind) -> ObservedResource:
    part = cloud.look(ref(kind))
    assert part is not None
    return part


def refusal(work: Any, *given: Any, **fields: Any) -> CloudError:
    with pytest.raises(CloudError) as caught:
        work(*given, **fields)
    return caught.value


def plan_of(cloud: AzureCloud, host_key: HostKey, wanted: Spec | None = None) -> Plan:
    return make_plan(plan_input(cloud, host_key, wanted), cloud.observe(NAME, (wanted or spec()).group_name))


# Reading


def test_missing_machine_has_no_resources(cloud: AzureCloud, server: Sandbox) -> None:
    observed = cloud.observe(NAME, GROUP)
    assert (observed.parts, observed.unknown, observed.group) == ((), (), GROUP)
    assert cloud.observe(NAME).group == GROUP
    assert requests(server, "PUT", "PATCH", "DELETE") == []


def test_created_resources_match_the_plan(cloud: AzureCloud, host_key: HostKey) -> None:
    make_all(cloud, host_key)
    observed = cloud.observe(NAME, GROUP)
    assert {part.ref.kind for part in observed.parts} == set(Kind)
    assert all(observed.is_ours(part) for part in observed.parts)
    assert all(part.is_settled for part in observed.parts)
    machine = observed.part(Kind.VM)
    assert machine is not None
    assert (machine.power, machine.region, machine.failure) == ("running", "eastus", "")
    plan = plan_of(cloud, host_key)
    assert (words(plan), plan.notes) == ([], ())


def test_applied_changes_leave_no_difference(cloud: AzureCloud, host_key: HostKey) -> None:
    make_all(cloud, host_key)
    wanted = spec(tags={"project": "mnist"}, lifecycle={"lease": timedelta(hours=2)})
    plan = plan_of(cloud, host_key, wanted)
    assert words(plan) == [f"change {kind}" for kind in Kind]
    for change in plan.changes:
        assert change.resource is not None
        patched = change.ref.kind in {Kind.PUBLIC_IP, Kind.VM, Kind.DISK}
        operation = cloud.patch(change.resource) if patched else cloud.put(change.resource)
        cloud.wait(operation, Deadline.after(SECONDS))
    assert words(plan_of(cloud, host_key, wanted)) == []


def test_secret_is_sent_and_never_returned(cloud: AzureCloud, host_key: HostKey, server: Sandbox) -> None:
    make_all(cloud, host_key)
    machine = present(cloud, Kind.VM)
    assert "customData" not in machine.properties["osProfile"]
    kept = server.server.cloud.store.get(ref(Kind.VM).id(cloud.subscription))
    assert kept is not None
    assert kept.hidden["customData"]


def test_group_is_found_by_its_machine(cloud: AzureCloud, host_key: HostKey, server: Sandbox) -> None:
    server.resource.resource_groups.create_or_update("gpu-team", {"location": "westus", "tags": {"owner": "them"}})
    given = plan_input(cloud, host_key, spec(resource_group="gpu-team"))
    for kind, module in MODULES.items():
        if kind not in {Kind.DISK, Kind.RESOURCE_GROUP}:
            make(cloud, module.desired(given))
    observed = cloud.observe(NAME)
    assert observed.group == "gpu-team"
    assert observed.part(Kind.VM)
    assert find_target(cloud, NAME).username == "azureuser"
    elsewhere = cloud.observe(NAME, GROUP, thorough=True)
    assert elsewhere.machine is None
    assert {part.ref.group for part in elsewhere.lookalikes() if part.ref.kind is Kind.VM} == {"gpu-team"}
    receipt = Teardown(NAME, None, task(cloud)).deallocate()
    assert receipt.is_proof
    assert server.control("GET", "bill")["machines"][0]["powerState"] == "deallocated"


def test_tagged_resources_are_found_in_every_group(cloud: AzureCloud, server: Sandbox) -> None:
    server.resource.resource_groups.create_or_update("elsewhere", {"location": "eastus"})
    place = f"/subscriptions/{server.subscription}/resourceGroups/elsewhere/providers"
    tagged = {"location": "eastus", "tags": {tags.NAME: NAME}}
    disk = {**tagged, "properties": {"creationData": {"createOption": "Empty"}, "diskSizeGB": 32}}
    for path, body in (
        ("Microsoft.Compute/disks/stray?api-version=2024-03-02", disk),
        ("Microsoft.ManagedIdentity/userAssignedIdentities/who?api-version=2023-01-31", tagged),
    ):
        assert server.http("PUT", f"{place}/{path}", body)[0] < 300
    observed = cloud.observe(NAME, GROUP)
    assert [part.ref for part in observed.lookalikes()] == [Ref(Kind.DISK, "elsewhere", "stray")]
    assert list(observed.ours()) == []
    assert [each.rsplit("/", 1)[1] for each in observed.unknown] == ["who"]
    assert sorted(each.rsplit("/", 1)[1] for each in cloud.contents("elsewhere")) == ["stray", "who"]
    assert cloud.contents("nowhere") == ()


def test_names_are_compared_without_case(cloud: AzureCloud, host_key: HostKey) -> None:
    make_all(cloud, host_key)
    loud = cloud.observe(NAME.upper(), GROUP.upper())
    assert loud.part(Kind.VM)
    assert all(loud.is_ours(part) for part in loud.parts)
    assert cloud.observe(NAME.upper(), thorough=True).machine


def test_time_is_azures_time(cloud: AzureCloud, server: Sandbox) -> None:
    cloud.observe(NAME, GROUP)
    before = cloud.now()
    server.control("POST", "clock", {"advance": 600})
    cloud.observe(NAME, GROUP)
    assert cloud.now() - before > timedelta(seconds=598)  # a date has whole seconds


# Writing


def test_existing_machine_is_not_created_again(cloud: AzureCloud, host_key: HostKey) -> None:
    given = make_all(cloud, host_key)
    error = refusal(cloud.put, MODULES[Kind.VM].desired(given), new=True)
    assert (error.fault, error.status, error.subject) == (Fault.EXISTS, 412, f"vm {NAME}")


def test_machine_is_deallocated_and_started(cloud: AzureCloud, host_key: HostKey) -> None:
    make_all(cloud, host_key)
    for act, power in ((Power.DEALLOCATE, "deallocated"), (Power.START, "running")):
        cloud.wait(cloud.act(ref(Kind.VM), act), Deadline.after(SECONDS))
        assert present(cloud, Kind.VM).power == power


def test_deleting_an_absent_resource_succeeds(cloud: AzureCloud, host_key: HostKey) -> None:
    for kind in Kind:
        cloud.wait(cloud.delete(ref(kind)), Deadline.after(SECONDS))
    make(cloud, MODULES[Kind.RESOURCE_GROUP].desired(plan_input(cloud, host_key)))
    for kind in Kind:
        cloud.wait(cloud.delete(ref(kind)), Deadline.after(SECONDS))
    assert cloud.observe(NAME, GROUP).parts == ()


def test_deleting_a_machine_deletes_its_parts(cloud: AzureCloud, host_key: HostKey) -> None:
    make_all(cloud, host_key)
    cloud.wait(cloud.delete(ref(Kind.VM)), Deadline.after(SECONDS))
    left = {part.ref.kind for part in cloud.observe(NAME, GROUP).parts}
    assert not left & {Kind.VM, Kind.DISK, Kind.NIC, Kind.PUBLIC_IP}


def test_disowned_group_loses_only_our_tags(cloud: AzureCloud, server: Sandbox) -> None:
    own = {tags.NAME: NAME, "GPUINFRA:Other": "x", "owner": "them"}
    server.resource.resource_groups.create_or_update(GROUP, {"location": "eastus", "tags": own})
    cloud.disown(GROUP)
    assert present(cloud, Kind.RESOURCE_GROUP).tags == {"owner": "them"}


# Refusals


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("SkuNotAvailable", Fault.CAPACITY),
        ("QuotaExceeded", Fault.QUOTA),
        ("OperationNotAllowed", Fault.QUOTA),
        ("AuthorizationFailed", Fault.DENIED),
        ("RequestDisallowedByPolicy", Fault.POLICY),
        ("ScopeLocked", Fault.LOCKED),
        ("Conflict", Fault.BUSY),
        ("NicReservedForAnotherVm", Fault.BUSY),
        ("MarketplacePurchaseEligibilityFailed", Fault.TERMS),
        ("InvalidParameter", Fault.OTHER),
    ],
)
def test_azure_error_is_mapped_to_its_fault(
    cloud: AzureCloud, host_key: HostKey, server: Sandbox, name: str, fault: Fault
) -> None:
    given = plan_input(cloud, host_key)
    make(cloud, MODULES[Kind.RESOURCE_GROUP].desired(given))
    for where in ({}, {"operation": True}):
        arm(server, name, method="PUT", type="networkSecurityGroups", **where)
        error = refusal(make, cloud, MODULES[Kind.NSG].desired(given))
        assert (error.fault, error.code, error.subject) == (fault, name, f"nsg {NAME}-nsg")


def test_failed_machine_has_its_reason_in_error_and_state(
    cloud: AzureCloud, host_key: HostKey, server: Sandbox
) -> None:
    arm(server, "AllocationFailed", type="virtualMachines")
    assert refusal(make_all, cloud, host_key).code == "AllocationFailed"
    machine = present(cloud, Kind.VM)
    assert (machine.state, machine.failure, machine.power) == ("Failed", "AllocationFailed", "deallocated")


def test_forbidden_resource_is_not_reported_as_absent(cloud: AzureCloud, server: Sandbox) -> None:
    arm(server, "AuthorizationFailed", method="GET", count=0)
    assert refusal(cloud.look, ref(Kind.RESOURCE_GROUP)).fault is Fault.DENIED
    assert refusal(cloud.observe, NAME, GROUP).fault is Fault.DENIED


def test_other_subscription_is_not_reported_as_absent(access: Access) -> None:
    clients = Clients(dataclasses.replace(access, subscription="00000000-0000-0000-0000-000000000000"))
    try:
        assert refusal(AzureCloud(clients).look, ref(Kind.VM)).code == "SubscriptionNotFound"
    finally:
        close(clients)


def test_wrong_secret_is_a_login_fault(access: Access) -> None:
    assert access.client_secret is not None
    wrong = dataclasses.replace(access.client_secret, secret="wrong")
    clients = Clients(dataclasses.replace(access, client_secret=wrong))
    try:
        assert refusal(AzureCloud(clients).look, ref(Kind.VM)).fault is Fault.LOGIN
    finally:
        close(clients)


def test_refused_connection_is_unreachable(access: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Interrupt, "sleep", lambda *_: None)  # between attempts
    clients = Clients(dataclasses.replace(access, arm="https://localhost:1"))
    try:
        assert refusal(AzureCloud(clients).look, ref(Kind.VM)).fault is Fault.UNREACHABLE
    finally:
        close(clients)


# Waiting


@pytest.mark.parametrize("name", ["drop-before", "drop-after"])
def test_dropped_connection_is_retried(cloud: AzureCloud, host_key: HostKey, server: Sandbox, name: str) -> None:
    arm(server, name, method="PUT", type="virtualNetworks")
    given = plan_input(cloud, host_key)
    make(cloud, MODULES[Kind.RESOURCE_GROUP].desired(given))
    make(cloud, MODULES[Kind.VNET].desired(given))
    assert present(cloud, Kind.VNET).state == "Succeeded"


def test_throttled_request_waits_and_reports_it(
    cloud: AzureCloud, host_key: HostKey, server: Sandbox, heard: RecordedProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(Interrupt, "sleep", lambda _, seconds: slept.append(seconds))
    arm(server, "TooManyRequests", method="PUT", retryAfter=7, count=2)
    make(cloud, MODULES[Kind.RESOURCE_GROUP].desired(plan_input(cloud, host_key)))
    assert heard.lines == ["Azure is throttling, 7 s"] * 2
    assert slept == [7, 7]


def test_wait_beyond_the_deadline_is_refused(cloud: AzureCloud, server: Sandbox, heard: RecordedProgress) -> None:
    arm(server, "TooManyRequests", retryAfter=3000, count=0)
    error = refusal(cloud.look, ref(Kind.RESOURCE_GROUP))
    assert (error.fault, heard.lines) == (Fault.THROTTLED, [])
    assert cloud.grant(100).left > 90


def test_endless_operation_times_out(cloud: AzureCloud, host_key: HostKey, server: Sandbox) -> None:
    given = plan_input(cloud, host_key)
    make(cloud, MODULES[Kind.RESOURCE_GROUP].desired(given))
    arm(server, "never-ends", type="virtualNetworks")
    operation = cloud.put(MODULES[Kind.VNET].desired(given))
    error = refusal(cloud.wait, operation, Deadline.after(0.3))
    assert (error.fault, error.subject) == (Fault.TIMEOUT, f"vnet {NAME}-vnet")
    assert not present(cloud, Kind.VNET).is_settled


def test_ctrl_c_interrupts_a_wait(cloud: AzureCloud, host_key: HostKey, server: Sandbox) -> None:
    given = plan_input(cloud, host_key)
    make(cloud, MODULES[Kind.RESOURCE_GROUP].desired(given))
    arm(server, "never-ends", type="virtualNetworks")
    operation = cloud.put(MODULES[Kind.VNET].desired(given))
    threading.Timer(0.1, cloud.interrupt.set).start()
    error = refusal(cloud.wait, operation, Deadline.after(SECONDS))
    assert (error.fault, error.subject) == (Fault.INTERRUPTED, f"vnet {NAME}-vnet")
    cloud.interrupt.clear()
    assert cloud.look(ref(Kind.RESOURCE_GROUP)) is not None


def test_every_request_has_the_correlation_id(access: Access, server: Sandbox) -> None:
    clients = Clients(access, correlation_id="11111111-2222-3333-4444-555555555555")
    try:
        AzureCloud(clients).look(ref(Kind.RESOURCE_GROUP))
    finally:
        close(clients)
    (asked,) = [each for each in server.control("GET", "log")["requests"] if "/resourcegroups/" in each["path"].lower()]
    assert asked["correlationId"] == "11111111-2222-3333-4444-555555555555"


def test_receipt_has_the_price_of_the_deleted_machine(cloud: AzureCloud, host_key: HostKey) -> None:
    make_all(cloud, host_key)
    receipt = Teardown(NAME, None, task(cloud)).delete()
    assert (receipt.is_proof, receipt.size, receipt.price_per_hour) == (True, SMALL, 0.526)
    assert cloud.observe(NAME, GROUP, thorough=True).parts == ()
