"""After any actions in any order, and any failure, one more `up` makes Azure match the file.

A state machine against the embedded Azure, with the real SDK. Foreign resources never change, and after
`down --delete` no resource has our tag.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from gpuinfra.diagnostics import Problem
from gpuinfra.models.plan import Plan
from gpuinfra.models.receipt import Receipt
from gpuinfra.provision import tags
from gpuinfra.provision.apply import PlanExecution
from gpuinfra.provision.azure.access import Access
from gpuinfra.provision.azure.clients import Clients, RequestLimits
from gpuinfra.provision.azure.cloud import AzureCloud
from gpuinfra.provision.azure.market import AzureMarket
from gpuinfra.provision.down import Teardown
from gpuinfra.provision.errors import CloudError
from gpuinfra.provision.login import HostKey, new_host_key
from gpuinfra.provision.task import Task
from gpuinfra.provision.up import Provisioner
from gpuinfra.provision.waiting import Deadline, Interrupt
from tests.integration.provision.conftest import close
from tests.integration.sandbox.machine_help import KEY
from tests.integration.sandbox.servers import Sandbox
from tests.unit.provision_help import LARGE, NAME, NO_JOURNAL, SMALL, RecordedProgress, spec, words
from tests.variants import variants

# Fewer by default than with `--exhaustive`.
EXAMPLES, STEPS = (6, 12), 6
GROUP = f"gpuinfra-{NAME}"
FAULTS: tuple[dict[str, Any], ...] = (
    {"name": "AllocationFailed", "type": "virtualMachines"},
    {"name": "SkuNotAvailable", "type": "virtualMachines", "method": "PUT"},
    {"name": "drop-after"},
    {"name": "drop-before"},
    {"name": "InternalServerError", "operation": True},
    {"name": "InternalServerError"},
    {"name": "Conflict"},
    {"name": "AuthorizationFailed"},
    {"name": "TooManyRequests", "retryAfter": 1},
)


class Killed(BaseException):
    """The program was killed."""


class KillableCloud:
    """A cloud whose user is killed at one of its writes: before it, or after it and before its response."""

    def __init__(self, cloud: AzureCloud, writes: int, *, done: bool) -> None:
        self._cloud, self._left, self._done = cloud, writes, done

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._cloud, name)
        return self._killable(found) if name in {"put", "patch", "act", "delete", "disown"} else found

    def _killable(self, write: Any) -> Any:
        def call(*given: Any, **more: Any) -> Any:
            self._left -= 1
            if self._left < 0 and not self._done:
                raise Killed
            result = write(*given, **more)
            if self._left < 0:
                raise Killed
            return result

        return call


@pytest.fixture(scope="module")
def host_key() -> HostKey:
    return new_host_key()


@pytest.fixture
def cloud(server: Sandbox, access: Access, monkeypatch: pytest.MonkeyPatch) -> Iterator[AzureCloud]:
    """The cloud, with the shortest possible pauses."""

    def sleep(self: Interrupt, seconds: float) -> None:
        time.sleep(min(seconds, 0.01))
        self.check()

    monkeypatch.setattr(Interrupt, "sleep", sleep)
    clients = Clients(access, RequestLimits(Deadline.after(600)))
    yield AzureCloud(clients)
    close(clients)


class Scenario:
    """One machine, its current spec, and foreign resources in the same subscription."""

    def __init__(self, server: Sandbox, cloud: AzureCloud, host_key: HostKey) -> None:
        self.server, self.cloud, self.host_key = server, cloud, host_key
        self.fields: dict[str, Any] = {}
        self.sources: tuple[str, ...] = ("203.0.113.7/32",)
        self.others: dict[str, Any] = {}
        self.said: list[str] = []
        server.control("POST", "reset", {})
        self.clear()

    # Actions

    def provisioner(self, cloud: Any = None) -> Provisioner:
        return Provisioner(
            spec=spec(**self.fields),
            task=self.task(cloud),
            sources=self.sources,
            public_key=KEY,
            host_key=self.host_key,
        )

    def task(self, cloud: Any = None) -> Task:
        market, deadline = AzureMarket(self.cloud.clients), Deadline.after(120)
        return Task(cloud or self.cloud, market, RecordedProgress(), NO_JOURNAL, deadline)

    def up(self) -> Plan:
        return self.provisioner().up(lambda _: None).plan

    def teardown_work(self, *, by_spec: bool, cloud: Any = None) -> Teardown:
        group = spec(**self.fields).group_name if by_spec else None
        return Teardown(NAME, group, self.task(cloud))

    def arm(self, **fault: Any) -> None:
        self.server.control("POST", "faults", fault)

    def clear(self) -> None:
        self.server.control("DELETE", "faults")
        self.arm(name="no-boot")  # no guest is needed

    def add_foreign(self, group: str, kind: str) -> None:
        """Add a foreign resource, possibly in our own group."""
        place = f"/subscriptions/{self.server.subscription}/resourceGroups/{group}"
        if self.get(place) is None:
            self.put(place, {"location": "westus", "tags": {"owner": "them"}})
        name = f"theirs-{len(self.others)}"
        paths = {
            "disks": ("Microsoft.Compute", {"creationData": {"createOption": "Empty"}, "diskSizeGB": 32}),
            "networkSecurityGroups": ("Microsoft.Network", {}),
            "virtualNetworks": ("Microsoft.Network", {"addressSpace": {"addressPrefixes": ["10.0.0.0/16"]}}),
        }
        namespace, properties = paths[kind]
        path = f"{place}/providers/{namespace}/{kind}/{name}"
        self.put(path, {"location": "eastus", "tags": {"owner": "them"}, "properties": properties})
        self.others[path] = self.get(path)

    # Existing resources. The store is read directly: a request would use up a fault that is meant for another.

    def get(self, path: str) -> Any:
        found = self.server.server.cloud.store.get(path)
        return found.body if found else None

    def put(self, path: str, body: Any) -> None:
        status, _, answer = self.server.http("PUT", f"{path}?api-version=2024-03-01", body)
        assert status < 300, answer

    def ours(self) -> list[str]:
        store = self.server.server.cloud.store
        return [each.id for each in store.resources() if tags.belongs_to(each.body.get("tags"), NAME)]

    # Invariants

    def check_others(self) -> None:
        assert {path: self.get(path) for path in self.others} == self.others, self.said

    def check_converges(self) -> None:
        self.clear()
        self.up()
        assert words(self.provisioner().plan()) == [], self.said

    def check_deleted(self) -> None:
        receipt = self.teardown_work(by_spec=False).delete()
        assert receipt.is_proof, (receipt, self.said)
        assert self.ours() == [], self.said


# Changes of the spec.
CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {"sources": ("203.0.113.9/32", "10.0.0.0/8")},
    {"sources": ("203.0.113.7/32",)},
    {"sizes": (SMALL,)},
    {"sizes": (LARGE, SMALL)},
    {"regions": ("westus2", "eastus")},
    {"regions": ("eastus", "westus2")},
    {"disk": {"size_gib": 150}},
    {"disk": {"size_gib": 200}},
    {"tags": {"project": "mnist"}},
    {"tags": {}},
    {"power": "deallocated"},
    {"power": "running"},
)
Mishap = list[dict[str, Any] | tuple[int, bool]]


def mishaps(*methods: str, writes: int) -> st.SearchStrategy[Mishap]:
    """What goes wrong with a command: a fault at the n-th of its requests by one of these methods, or a kill."""
    faults = st.builds(
        # There are one or two requests for the machine, and many for all kinds.
        lambda fault, method, skip, count: {
            "method": method,
            **fault,
            "skip": skip % 2 if "type" in fault else skip,
            "count": count,
        },
        st.sampled_from(FAULTS),
        st.sampled_from(methods),
        st.integers(0, writes),
        st.sampled_from([1, 2, 15]),
    )
    kills = st.tuples(st.integers(0, writes), st.booleans())
    return st.lists(faults | kills, max_size=2)


class ConvergenceMachine(RuleBasedStateMachine):
    """Hypothesis chooses the actions and their order."""

    make_scenario: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.scenario: Scenario = type(self).make_scenario()

    def say(self, text: str) -> None:
        self.scenario.said.append(text)

    @initialize(change=st.sampled_from(CHANGES), made=st.booleans())
    def begin(self, change: dict[str, Any], made: bool) -> None:
        """Start with or without a machine."""
        self.change_spec(change)
        if made:
            self.scenario.up()

    def change_spec(self, change: dict[str, Any]) -> None:
        self.say(f"spec {change}")
        fields = dict(change)
        self.scenario.sources = fields.pop("sources", self.scenario.sources)
        self.scenario.fields.update(fields)

    # Actions of others

    @rule(
        group=st.sampled_from([GROUP, "theirs"]),
        kind=st.sampled_from(["disks", "networkSecurityGroups", "virtualNetworks"]),
    )
    @precondition(lambda self: len(self.scenario.others) < 2)
    def add_foreign(self, group: str, kind: str) -> None:
        self.say(f"foreign {kind} in {group}")
        self.scenario.add_foreign(group, kind)

    # Our commands

    @rule(
        change=st.sampled_from(CHANGES), wrong=mishaps("PUT", "PUT", "PUT", "PATCH", "POST", "DELETE", "GET", writes=7)
    )
    def up(self, change: dict[str, Any], wrong: Mishap) -> None:
        self.change_spec(change)
        scenario = self.scenario
        if self.carry_out("up", lambda cloud: scenario.provisioner(cloud).up(lambda _: None), wrong):
            assert words(scenario.provisioner().plan()) == [], scenario.said

    @rule(by_spec=st.booleans(), wrong=mishaps("POST", "GET", writes=0))
    def down(self, by_spec: bool, wrong: Mishap) -> None:
        scenario = self.scenario
        receipts: list[Receipt] = []
        work = lambda cloud: receipts.append(scenario.teardown_work(by_spec=by_spec, cloud=cloud).deallocate())  # noqa: E731
        if self.carry_out("down", work, wrong):
            assert receipts[0].is_proof, scenario.said
        # The meter verifies the receipt.
        states = {each["powerState"] for each in scenario.server.control("GET", "bill")["machines"]}
        assert not (receipts and receipts[0].is_proof) or states <= {"deallocated", "deleted"}, (states, scenario.said)

    @rule(by_spec=st.booleans(), wrong=mishaps("DELETE", "DELETE", "GET", writes=7))
    def delete(self, by_spec: bool, wrong: Mishap) -> None:
        scenario = self.scenario
        receipts: list[Receipt] = []
        work = lambda cloud: receipts.append(scenario.teardown_work(by_spec=by_spec, cloud=cloud).delete())  # noqa: E731
        if self.carry_out("delete", work, wrong):
            assert receipts[0].is_proof, (receipts, scenario.said)
        assert not (receipts and receipts[0].is_proof) or scenario.ours() == [], scenario.said

    def carry_out(self, verb: str, work: Callable[[Any], Any], wrong: Mishap) -> bool:
        """Return whether the command had to succeed, and did. Faults apply to one command."""
        faulty = wrong != []
        cloud: Any = self.scenario.cloud
        self.say(f"{verb} with {wrong}")
        for each in wrong:
            if isinstance(each, tuple):
                cloud = KillableCloud(self.scenario.cloud, each[0], done=each[1])
            else:
                self.scenario.arm(**each)
        try:
            work(cloud)
        except (Killed, Problem, CloudError) as error:
            self.say(f"  {error!r}")
            assert faulty, self.scenario.said
        self.scenario.clear()
        return not faulty

    # Invariants

    @invariant()
    def others_are_left_alone(self) -> None:
        self.scenario.check_others()

    def teardown(self) -> None:
        self.say("and then up, and then delete")
        self.scenario.check_converges()
        self.scenario.check_others()
        self.scenario.check_deleted()
        self.scenario.check_others()


def run(scenario: Any, examples: int, steps: int, **options: Any) -> None:
    machine = type("ConvergenceMachine", (ConvergenceMachine,), {"make_scenario": staticmethod(scenario)})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            print_blob=False,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.explicit, Phase.generate),
            **options,
        ),
    )


def test_one_up_converges_from_any_state(
    server: Sandbox, cloud: AzureCloud, host_key: HostKey, exhaustive: bool
) -> None:
    run(lambda: Scenario(server, cloud, host_key), EXAMPLES[exhaustive], STEPS, derandomize=True)


# Regressions


@pytest.fixture
def scenario(server: Sandbox, cloud: AzureCloud, host_key: HostKey) -> Scenario:
    return Scenario(server, cloud, host_key)


def test_up_twice_and_delete_converge(scenario: Scenario) -> None:
    assert len(scenario.up().changes) == 7
    assert scenario.up().is_empty
    scenario.check_deleted()


def test_next_up_tries_another_region_after_a_failed_allocation(scenario: Scenario) -> None:
    scenario.fields["regions"] = ("eastus", "westus2")
    scenario.arm(name="AllocationFailed", method="PUT", type="virtualMachines", region="eastus", count=0)
    work = scenario.provisioner()
    with pytest.raises(CloudError, match="AllocationFailed"):
        # Killed before it could clean up.
        PlanExecution(scenario.task()).apply(work.plan())
    plan = scenario.up()
    assert plan.candidate is not None
    assert plan.candidate.region == "westus2"


@pytest.mark.parametrize(
    "kind", variants("networkInterfaces", "networkSecurityGroups", "virtualNetworks", "publicIPAddresses")
)
def test_next_up_recreates_a_failed_resource(scenario: Scenario, kind: str) -> None:
    scenario.arm(name="InternalServerError", operation=True, method="PUT", type=kind)
    with pytest.raises(CloudError, match="InternalServerError"):
        # Killed before it could clean up.
        PlanExecution(scenario.task()).apply(scenario.provisioner().plan())
    scenario.check_converges()
