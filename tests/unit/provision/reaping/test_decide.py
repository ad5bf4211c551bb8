"""Verdicts on machines and on orphaned resources, without a cloud."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpuinfra.models.json_values import stamp
from gpuinfra.models.plan import Kind, Ref
from gpuinfra.models.reap import EndedMachine, Orphan, ReapAction, ReapDecision, ReapFailure, ReapResult
from gpuinfra.models.receipt import OffProof, Receipt
from gpuinfra.models.spec import Spec
from gpuinfra.provision import fleet, tags
from gpuinfra.provision.cloud import Listed
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.market import Prices
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.ownership import machine_of_row
from gpuinfra.provision.reaping.decide import Rules, decide, decide_all, disputed, orphans, seen, stretch_of
from gpuinfra.provision.reaping.reaper import Reaper
from gpuinfra.provision.reaping.spec_history import Commit, deletions, names_in
from gpuinfra.provision.tags import name_of
from gpuinfra.views import reap as view
from tests.unit.provision_help import NO_JOURNAL, FakeCloud, FakeMarket, RecordedProgress

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)  # a Monday
SIZE = "Standard_NC4as_T4_v3"
HOURS = {"timezone": "UTC", "on": "mon-fri 08:00-19:00"}
DELETED = {"my-dsvm": NOW - timedelta(hours=25)}
REPOSITORY = "0123abcd"


def ago(**length: float) -> str:
    return stamp(NOW - timedelta(**length)) or ""


def ahead(**length: float) -> str:
    return stamp(NOW + timedelta(**length)) or ""


def spec(**fields: Any) -> Spec:
    plain = {"apiVersion": "gpuinfra/v1", "name": "my-dsvm", "regions": ("eastus",), "sizes": (SIZE,), **fields}
    return Spec.model_validate(plain)


def row(power: str = "running", state: str = "Succeeded", changed: str = "", **marks: str) -> dict[str, Any]:
    """Return one of our machines, whose lease lasts two more hours."""
    usual = {"name": "my-dsvm", "on_since": ago(hours=26), "lease_until": ahead(hours=2), "repository": REPOSITORY}
    own = {f"gpuinfra:{key.replace('_', '-')}": value for key, value in {**usual, **marks}.items() if value}
    statuses = [{"code": f"ProvisioningState/{state.lower()}", "time": changed or ago(hours=2)}]
    statuses += [{"code": f"PowerState/{power}"}] if power else []
    path = "/subscriptions/s/resourceGroups/gpuinfra-my-dsvm/providers/Microsoft.Compute/virtualMachines/my-dsvm"
    properties = {
        "hardwareProfile": {"vmSize": SIZE},
        "provisioningState": state,
        "instanceView": {"statuses": statuses},
    }
    return {"id": path, "name": "my-dsvm", "location": "eastus", "tags": own, "properties": properties}


def rules(wanted: Spec | None = None, **fields: Any) -> Rules:
    return Rules(specs={"my-dsvm": wanted} if wanted else {}, **{"repository": REPOSITORY, **fields})


def verdict(body: dict[str, Any], given: Rules | None = None, now: datetime = NOW) -> ReapDecision:
    found = decide(machine_of_row(body), given or rules(), now)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        (row(lease_until=ago(minutes=1)), "lease is over"),
        (row(lease_until=stamp(NOW) or ""), "lease is over"),
        (row(lease_until=""), "it has no lease"),
        (row(lease_until="tomorrow"), "it has no lease"),
        (row("starting", lease_until=ago(minutes=1)), "lease is over"),
        (row("stopping", lease_until=ago(minutes=1)), "lease is over"),
        (row("", lease_until=ago(minutes=1)), "lease is over"),
        (row("running", "Updating", lease_until=ago(minutes=1)), "lease is over"),
        (row("", "Creating", lease_until=""), "it has no lease"),
        (row(terms="lease=4h idle=20m cap=2h"), "cost cap is reached"),
        (row(terms="lease=4h idle=20m cap=1h", lease_until=ago(hours=1)), "cost cap is reached"),
        (row(hours="UTC mon 08:00-11:00", lease_until=ago(hours=1)), "hours are over"),
        (row("stopped", changed=ago(minutes=15)), "stopped, but billed"),
        (row("stopped", lease_until=ago(minutes=1), changed=ago(minutes=1)), "lease is over"),
        (row("running", "Failed"), "provisioning failed, but billed"),
        (row("stopped", "Failed", changed=ago(minutes=1)), "provisioning failed, but billed"),
        (
            row("stopped", "Failed", lease_until=""),
            "it has no lease; stopped, but billed; provisioning failed, but billed",
        ),
    ],
)
def test_stop_causes(body: dict[str, Any], cause: str) -> None:
    found = verdict(body)
    assert (found.action, found.cause) == (ReapAction.STOP, cause)


ENDS_OF_TIME = [
    "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59Z",
    "9999-12-31T23:59:59-23:59",
    "0001-01-01T00:00:00+14:00",
]


@pytest.mark.parametrize("moment", ENDS_OF_TIME)
def test_invalid_time_in_a_tag_does_not_affect_other_machines(moment: str) -> None:
    odd = row(lease_until=moment, on_since=moment, terms="lease=4h idle=20m cap=2h", hours="Asia/Tokyo mon 08:00-11:00")
    late = row(on_since=moment, terms="lease=4h idle=20m cap=2h")
    found = decide_all([odd, late, row(lease_until=ago(minutes=1))], rules(), NOW)
    assert [each.cause for each in found if each.action is ReapAction.STOP] == ["it has no lease", "lease is over"]
    assert fleet.machine_of(machine_of_row(odd), None, NOW, Prices()).lease_until is None


@pytest.mark.parametrize(
    "body",
    [
        row(),
        row("starting"),
        row(terms="lease=4h idle=20m cap=26h1m"),
        row(terms="whatever"),
        row(hours="UTC mon 08:00-11:00"),  # a lease keeps it on
        row("stopped", changed=ago(minutes=14)),
        row("running", "Updating"),
        row("", "Creating"),
        row("", "Failed"),  # its power state is unknown
        row("running", "Deleting"),
        row("running", "Deleting", hours="UTC mon 08:00-11:00"),
        row("deallocated", lease_until=""),
        row("deallocated", "Failed"),
        row("deallocating", lease_until=ago(minutes=1)),
    ],
)
def test_kept_machines(body: dict[str, Any]) -> None:
    assert verdict(body) == ReapDecision("my-dsvm", machine_of_row(body).ref, ReapAction.KEEP)


@pytest.mark.parametrize(
    ("given", "cause"), [({"lease_until": ago(minutes=1)}, "lease is over"), ({"lease_until": ""}, "it has no lease")]
)
def test_unfinished_deletion_is_requested_again_at_the_end_of_the_lease(given: dict[str, str], cause: str) -> None:
    found = verdict(row("running", "Deleting", **given))
    assert (found.action, found.cause) == (ReapAction.STOP, f"{cause}; its deletion has not ended")


def test_spec_that_keeps_the_machine_off_stops_it() -> None:
    off = rules(spec(power="deallocated"))
    assert verdict(row(), off).cause == "its spec says `power: deallocated`"
    assert verdict(row("running", "Updating"), off).action is ReapAction.KEEP
    assert verdict(row(), rules(spec())).action is ReapAction.KEEP


@pytest.mark.parametrize("tag", ["another", ""])
@pytest.mark.parametrize(
    ("body", "fields", "command"),
    [
        ({}, {"wanted": spec(power="deallocated")}, "gpuinfra down my-dsvm"),
        ({}, {"deleted": DELETED}, "gpuinfra down my-dsvm"),
        ({}, {"deleted": DELETED, "deletes": True}, "gpuinfra down my-dsvm"),
        (
            {"power": "deallocated", "lease_until": ago(hours=5), "changed": ago(hours=5)},
            {"wanted": spec(lifecycle={"hours": HOURS}), "starts": True},
            "gpuinfra up SPEC",
        ),
    ],
)
def test_specs_of_another_repository_decide_nothing(
    tag: str, body: dict[str, Any], fields: dict[str, Any], command: str
) -> None:
    given, found = rules(**fields), row(**body, repository=tag)
    assert verdict(found, given).action is ReapAction.KEEP
    (line,) = disputed([found], given, NOW, "")
    assert f"left alone: its spec is not from this repository; to {'start' if 'up' in command else 'end'} it: " in line
    assert line.endswith(command)
    assert disputed([row(**body)], rules(**fields), NOW, "") == []
    assert disputed([found], rules(), NOW, "") == []


@pytest.mark.parametrize("tag", [REPOSITORY, ""])
def test_specs_of_an_unknown_repository_decide_nothing(tag: str) -> None:
    given, found = rules(spec(power="deallocated"), repository=""), row(repository=tag)
    assert verdict(found, given).action is ReapAction.KEEP
    assert disputed([found], given, NOW, "") == [], "a note about the folder says it once"


@pytest.mark.parametrize("value", ["true", "yes", "until friday", "0"])
def test_protected_machine_is_shown_with_the_suppressed_action(value: str) -> None:
    found = verdict(row(lease_until="", protect=value))
    assert (found.action, found.would) == (ReapAction.PROTECTED, ReapAction.STOP)
    assert found.cause == "it has no lease"
    assert verdict(row(protect=value)).action is ReapAction.KEEP


@pytest.mark.parametrize("value", ["false", "False", " "])
def test_unprotected_values(value: str) -> None:
    assert verdict(row(lease_until="", protect=value)).action is ReapAction.STOP


def test_untagged_machine_is_ignored() -> None:
    foreign = row(lease_until="", name="")
    assert "gpuinfra:name" not in foreign["tags"]
    assert decide(machine_of_row(foreign), rules(deleted=DELETED, deletes=True), NOW) is None
    assert decide_all([foreign, row(lease_until="")], rules(), NOW) == [verdict(row(lease_until=""))]


# Deleted specs


@pytest.mark.parametrize(
    ("power", "fields", "action"),
    [
        ("running", {}, ReapAction.STOP),
        ("running", {"deletes": True}, ReapAction.DELETE),
        ("deallocated", {}, ReapAction.KEEP),
        ("deallocated", {"deletes": True}, ReapAction.DELETE),
        ("running", {"deletes": True, "unfetched": frozenset({"my-dsvm"})}, ReapAction.STOP),
        ("deallocated", {"deletes": True, "unfetched": frozenset({"my-dsvm"})}, ReapAction.KEEP),
    ],
)
def test_machine_of_a_deleted_spec_is_stopped_or_deleted(
    power: str, fields: dict[str, Any], action: ReapAction
) -> None:
    found = verdict(row(power), rules(deleted=DELETED, **fields))
    assert found.action is action
    assert found.cause.startswith("its spec was deleted at 2026-11-15T11:00:00Z, more than 1d ago")
    assert found.not_deleted == ("outputs on its disk were not fetched" if "unfetched" in fields else "")


@pytest.mark.parametrize(
    ("body", "given"),
    [
        (row(), rules(deleted=DELETED, grace=timedelta(hours=26), deletes=True)),
        (row(on_since=ago(hours=23)), rules(deleted=DELETED, deletes=True)),
        (row(), rules(deleted={"another": NOW - timedelta(days=9)}, deletes=True)),
        (row(), rules(spec(), deleted=DELETED, deletes=True)),
        (row("running", "Updating"), rules(deleted=DELETED, deletes=True)),
        (row("running", "Deleting"), rules(deleted=DELETED, deletes=True)),
    ],
)
def test_machine_of_an_existing_or_unknown_spec_is_kept(body: dict[str, Any], given: Rules) -> None:
    assert verdict(body, given) == ReapDecision("my-dsvm", machine_of_row(body).ref, ReapAction.KEEP)


def test_protected_machine_outlives_its_spec() -> None:
    found = verdict(row(protect="yes"), rules(deleted=DELETED, deletes=True))
    assert (found.action, found.would) == (ReapAction.PROTECTED, ReapAction.DELETE)


class ListedFleet:
    """A subscription with one machine whose spec was deleted, and resources of it."""

    def __init__(self, *parts: Listed | CloudError) -> None:
        self._parts = parts

    def machines(self) -> list[dict[str, Any]]:
        return [row()]

    def parts(self) -> list[Listed]:
        time.sleep(0.02)  # the answer arrives after the list of machines
        for part in self._parts:
            if isinstance(part, CloudError):
                raise part
        return [part for part in self._parts if isinstance(part, Listed)]

    holdings: Any = None
    activity_log: Any = None
    has_agent_role: Any = None

    def ask_off(self, ref: Ref) -> None:
        raise AssertionError(ref)

    def ask_delete(self, ref: Ref) -> None:
        raise AssertionError(ref)


def disk(**marks: str) -> Listed:
    own = {f"gpuinfra:{key}": value for key, value in {"name": "My-DSVM", **marks}.items()}
    return Listed(Ref(Kind.DISK, "gpuinfra-my-dsvm", name_of(Kind.DISK, "my-dsvm")), own, NOW - timedelta(hours=2))


@pytest.mark.parametrize(
    ("part", "deletes"),
    [(disk(), True), (disk(protect="yes"), False), (CloudError(Fault.UNREACHABLE, "HTTP 500", "no list"), False)],
)
def test_machine_with_a_protected_resource_is_not_deleted(part: Listed | CloudError, deletes: bool) -> None:
    cloud = FakeCloud(moment=NOW, fleet=ListedFleet(part))
    given, deadline = rules(deleted=DELETED, deletes=True), cloud.time.deadline(60)
    reaper = Reaper(cloud, FakeMarket(), given, RecordedProgress(), lambda _: NO_JOURNAL, deadline, dry_run=True)
    found = reaper.reap()
    assert (len(found.deleted), len(found.stopped)) == ((1, 0) if deletes else (0, 1))
    if isinstance(part, Listed) and not deletes:
        assert found.stopped[0].verdict.cause.endswith("; one of its resources is protected, so it is not deleted")


def commit(hours: float, before: str, after: str) -> Commit:
    return Commit(NOW - timedelta(hours=hours), tuple(before.split()), tuple(after.split()))


@pytest.mark.parametrize(
    ("at_head", "commits", "gone"),
    [
        ("a", [commit(1, "a b", "a")], {"b": 1}),
        ("a b", [commit(1, "", "b"), commit(2, "b", "")], {}),  # it came back
        ("", [commit(1, "b", ""), commit(2, "", "b"), commit(3, "b", "")], {"b": 1}),  # the last time counts
        ("b", [commit(1, "b", "b")], {}),
        ("b", [commit(1, "b", ""), commit(2, "", "b")], {}),  # another file has it too
        ("", [commit(1, "b", ""), commit(2, "b", "")], {"b": 1}),  # the last of two files
        ("", [commit(1, "", "")], {}),
        ("a", [], {}),
        ("b", [commit(1, "a", "b"), commit(2, "b c", "a")], {"c": 2, "a": 1}),
    ],
)
def test_deletion_times_of_specs(at_head: str, commits: list[Commit], gone: dict[str, float]) -> None:
    found = deletions(at_head.split(), commits)
    assert found == {name: NOW - timedelta(hours=hours) for name, hours in gone.items()}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("apiVersion: gpuinfra/v1\nname: My-DSVM\n", ("my-dsvm",)),
        ("apiVersion: gpuinfra/v1\nname: a\n---\napiVersion: gpuinfra/v1\nname: b\n", ("a", "b")),
        ('{"apiVersion": "gpuinfra/v1", "name": "a", "target": {"name": "b"}}', ("a",)),
        ("apiVersion: gpuinfra/v1\nname: a\nsize: no-such-size\n", ("a",)),
        ("apiVersion: v1\nname: a\n", ()),
        ("apiVersion: gpuinfra/v1\nname: [a]\n", ()),
        ("name: a\n", ()),
        ("- apiVersion: gpuinfra/v1\n", ()),
        ("apiVersion: gpuinfra/v1\nname: a\n---\n: [", ("a",)),
    ],
)
def test_machine_names_are_read_from_a_file(text: str, names: tuple[str, ...]) -> None:
    assert names_in(text.encode()) == names


# Starts


def hours_spec(**more: Any) -> Spec:
    return spec(lifecycle={"hours": HOURS}, **more)


OFF = {"power": "deallocated", "lease_until": ago(hours=17)}


def test_machine_is_started_for_its_hours() -> None:
    found = verdict(row(**OFF, changed=ago(hours=5)), rules(hours_spec(), starts=True))
    assert (found.action, found.until) == (ReapAction.START, datetime(2026, 11, 16, 19, tzinfo=UTC))
    for idle, cause in (
        ("20m", "its hours have begun; it goes off after 20m without use"),
        ("7h", "its hours have begun"),
    ):
        again = verdict(
            row(**OFF, changed=ago(hours=5), terms=f"lease=4h idle={idle}"), rules(hours_spec(), starts=True)
        )
        assert again.cause == cause


def test_cost_cap_limits_the_started_time() -> None:
    body = row(**OFF, changed=ago(hours=5), terms="lease=4h idle=20m cap=3h")
    assert verdict(body, rules(hours_spec(), starts=True)).until == NOW + timedelta(hours=3)


@pytest.mark.parametrize(
    ("body", "wanted", "fields", "now"),
    [
        (row(**OFF, changed=ago(hours=5)), hours_spec(), {"starts": False}, NOW),
        (row(**OFF, changed=ago(hours=3)), hours_spec(), {}, NOW),  # a user deallocated it this morning
        (row(**OFF, changed=ago(hours=5)), hours_spec(), {}, NOW + timedelta(hours=8)),  # it is evening
        (row(**OFF, changed=ago(hours=5)), hours_spec(), {}, NOW - timedelta(days=1)),  # a Sunday
        (row(**OFF, changed=ago(hours=5)), hours_spec(power="deallocated"), {}, NOW),
        (row(**OFF, changed=ago(hours=5)), spec(), {}, NOW),
        (row(**OFF, changed=ago(hours=5)), None, {}, NOW),
        (row(**OFF, changed="once"), hours_spec(), {}, NOW),
        (row(**OFF, state="Failed", changed=ago(hours=5)), hours_spec(), {}, NOW),
        (row(**{**OFF, "power": "deallocating"}, changed=ago(hours=5)), hours_spec(), {}, NOW),
        (row(changed=ago(hours=5)), hours_spec(), {}, NOW),  # it is on
    ],
)
def test_machines_that_are_not_started(
    body: dict[str, Any], wanted: Spec | None, fields: dict[str, Any], now: datetime
) -> None:
    assert verdict(body, rules(wanted, **{"starts": True, **fields}), now).action is ReapAction.KEEP


def test_protected_machine_is_not_started() -> None:
    found = verdict(row(**OFF, changed=ago(hours=5), protect="yes"), rules(hours_spec(), starts=True))
    assert (found.action, found.would) == (ReapAction.PROTECTED, ReapAction.START)


@pytest.mark.parametrize(
    ("on", "stretch"),
    [
        ("mon-fri 08:00-19:00", ("16T08:00", "16T19:00")),
        (("mon 08:00-10:00", "mon 11:30-12:01"), ("16T11:30", "16T12:01")),
        ("sat-mon 00:00-24:00", ("14T00:00", "17T00:00")),
        ("mon 12:00-13:00", ("16T12:00", "16T13:00")),
        ("mon 08:00-12:00", None),
        ("daily 00:00-24:00", None),  # it never ends, so it never began
    ],
)
def test_current_stretch_of_hours(on: Any, stretch: tuple[str, str] | None) -> None:
    hours = spec(lifecycle={"hours": {"timezone": "UTC", "on": on}}).lifecycle.hours
    assert hours is not None
    expected = stretch and tuple(datetime.fromisoformat(f"2026-11-{each}:00Z") for each in stretch)
    assert stretch_of(hours, NOW) == expected


# Orphans

KINDS = (Kind.DISK, Kind.PUBLIC_IP, Kind.NIC, Kind.SHUTDOWN_SCHEDULE)


def listed(kind: Kind, name: str = "lost", hours: float | None = 2, **marks: str) -> Listed:
    own = {tags.NAME: name, **{f"gpuinfra:{key}": value for key, value in marks.items()}}
    since = None if hours is None else NOW - timedelta(hours=hours)
    return Listed(Ref(kind, f"gpuinfra-{name}", name_of(kind, name)), own, since)


def found_orphans(parts: list[Listed], machines: list[dict[str, Any]] | None = None, **given: Any) -> dict[Kind, str]:
    found = orphans(parts, machines or [], rules(**given), NOW)
    return {orphan.ref.kind: orphan.action.value for orphan in found}


def test_orphans_are_deleted_and_disks_kept() -> None:
    parts = [listed(kind) for kind in (*KINDS, Kind.NSG, Kind.VNET)]
    assert found_orphans(parts) == {
        Kind.PUBLIC_IP: "delete",
        Kind.NIC: "delete",
        Kind.DISK: "keep",
        Kind.SHUTDOWN_SCHEDULE: "delete",
    }
    assert found_orphans(parts, deletes=True)[Kind.DISK] == "delete"
    assert found_orphans(parts, deletes=True, unfetched=frozenset({"lost"}))[Kind.DISK] == "keep"


def test_recent_or_undated_resource_protects_all_of_its_machine() -> None:
    for hours in (0.5, None):
        parts = [listed(Kind.PUBLIC_IP), listed(Kind.VNET, hours=hours), listed(Kind.SHUTDOWN_SCHEDULE, "other")]
        assert found_orphans(parts) == {Kind.SHUTDOWN_SCHEDULE: "delete"}
    assert found_orphans([listed(Kind.PUBLIC_IP, hours=1)]) == {Kind.PUBLIC_IP: "delete"}


@pytest.mark.parametrize(
    "machine",
    [
        {"name": "LOST", "tags": {"owner": "alice"}},  # same name, but not ours
        {"name": "another", "tags": {"GPUINFRA:name": "Lost"}},
    ],
)
def test_machine_of_that_name_in_any_group_keeps_its_resources(machine: dict[str, Any]) -> None:
    assert found_orphans([listed(kind) for kind in KINDS], [machine], deletes=True) == {}


def test_protected_or_foreign_resources_are_not_deleted() -> None:
    assert found_orphans([listed(Kind.PUBLIC_IP, protect="yes")]) == {Kind.PUBLIC_IP: "protected"}
    assert found_orphans([Listed(Ref(Kind.PUBLIC_IP, "g", "a"), {"owner": "me"}, NOW - timedelta(days=9))]) == {}


def orphan(kind: Kind, **fields: Any) -> Orphan:
    return Orphan("lost", listed(kind).ref, ReapAction.DELETE, "it has no machine", **fields)


def body_of(kind: Kind, **body: Any) -> ObservedResource:
    return ObservedResource(listed(kind).ref, {"tags": {tags.NAME: "lost"}, "properties": {}, **body})


def test_orphan_is_checked_again_before_its_deletion() -> None:
    disk = body_of(Kind.DISK, sku={"name": "StandardSSD_LRS"}, properties={"diskSizeGB": 150})
    looked = seen(orphan(Kind.DISK), disk)
    assert looked is not None
    assert looked.per_month == 19.20
    assert seen(orphan(Kind.DISK), None) is None
    assert seen(orphan(Kind.DISK), body_of(Kind.DISK, managedBy="/a/machine")) is None
    used = body_of(Kind.NIC, properties={"virtualMachine": {"id": "/a/machine"}})
    assert seen(orphan(Kind.NIC), used) is None
    assert seen(orphan(Kind.NIC), body_of(Kind.NIC, tags={"owner": "alice"})) is None
    theirs = body_of(Kind.PUBLIC_IP, properties={"ipConfiguration": {"id": "/G/Interfaces/one/configurations/first"}})
    assert seen(orphan(Kind.PUBLIC_IP), theirs) is None
    assert seen(orphan(Kind.PUBLIC_IP), theirs, {"/g/interfaces/on"}) is None
    assert seen(orphan(Kind.PUBLIC_IP), theirs, {"/g/interfaces/one"}) == orphan(Kind.PUBLIC_IP)
    kept = seen(orphan(Kind.PUBLIC_IP), body_of(Kind.PUBLIC_IP, tags={tags.NAME: "lost", tags.PROTECT: "yes"}))
    assert kept is not None
    assert kept.action is ReapAction.PROTECTED


# Output


def shown(reaped: ReapResult, capsys: pytest.CaptureFixture[str]) -> str:
    view.show(reaped, json=False)
    return capsys.readouterr().out


def test_reap_without_changes_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(ReapResult(False, machines=3), capsys) == "nothing to do; checked 3 machines\n"
    assert shown(ReapResult(False, machines=1, simulated=True), capsys).endswith("checked 1 machine (simulated)\n")


def test_every_result_of_reap_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    ref = machine_of_row(row()).ref
    stop = ReapDecision("my-dsvm", ref, ReapAction.STOP, "lease is over")
    receipt = Receipt("my-dsvm", OffProof.DEALLOCATED, NOW, cause="reap: lease is over")
    reaped = ReapResult(
        False,
        machines=5,
        stopped=[EndedMachine(stop, receipt)],
        started=[ReapDecision("early", ref, ReapAction.START, "its hours have begun", until=NOW)],
        protected=[ReapDecision("dear", ref, ReapAction.PROTECTED, "lease is over", ReapAction.STOP)],
        kept=[ReapDecision("gone", ref, ReapAction.KEEP, "its spec was deleted")],
        orphans=[orphan(Kind.PUBLIC_IP, removed=True), orphan(Kind.NIC), orphan(Kind.DISK, per_month=19.2)],
        failed=[ReapFailure("bad", "stop", "ScopeLocked", "it is locked", "lease is over")],
        simulated=True,
    )
    lines = shown(reaped, capsys).splitlines()
    assert lines[0] == "my-dsvm is off"
    assert "started       early: its hours have begun; until 2026-11-16 12:00:00Z" in lines
    assert "protected     dear would be stopped: lease is over" in lines
    assert "off           gone: its spec was deleted; to remove it: gpuinfra down gone --delete --sandbox" in lines
    assert "deleted       public-ip lost-ip of lost: it has no machine" in lines
    assert "left          nic lost-nic of lost: it has no machine" in lines
    assert "FAILED        stop bad (lease is over): ScopeLocked: it is locked" in lines
    assert "              bad may still be on and billed; run: gpuinfra down bad --sandbox" in lines
    assert lines[-1].startswith("1 stopped, 1 started, 1 leftover removed, 1 failed; checked 5 machines")
    document = reaped.as_json()
    assert document["stopped"][0]["verifiedBy"] == "PowerState/deallocated"
    assert document["stopped"][0]["cause"] == "lease is over"
    assert document["protected"][0]["action"] == "stop"
    assert [each["removed"] for each in document["orphans"]] == [True, False, False]


def test_dry_run_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    ref = machine_of_row(row()).ref
    reaped = ReapResult(
        True, machines=2, stopped=[EndedMachine(ReapDecision("a", ref, ReapAction.STOP, "lease is over"))]
    )
    reaped.orphans = [orphan(Kind.PUBLIC_IP)]
    view.show(reaped, json=False)
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "would stop    a: lease is over",
        "would delete  public-ip lost-ip of lost: it has no machine",
        "1 to be stopped, 1 leftover to be removed; checked 2 machines",
    ]
    assert err == "dry run: nothing was changed\n"


def test_interrupt_names_operations_that_continue(capsys: pytest.CaptureFixture[str]) -> None:
    view.show_interrupted(["a", "b"], ["c"])
    view.show_interrupted([], [])
    err = capsys.readouterr().err
    assert "Azure is still deallocating: a, b\nnot done: c\n" in err
    assert "no machine is being deallocated" in err
