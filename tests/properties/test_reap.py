"""For any subscription: foreign machines are never named, and a second run does nothing."""

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuinfra.models.json_values import stamp
from gpuinfra.models.plan import Kind, Ref
from gpuinfra.models.reap import ReapAction
from gpuinfra.models.spec import Spec
from gpuinfra.provision import tags
from gpuinfra.provision.cloud import Listed
from gpuinfra.provision.power import BILLED
from gpuinfra.provision.reaping.decide import Rules, decide_all, orphans
from gpuinfra.provision.tags import default_group, ref_of

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
POWERS = ("running", "starting", "stopped", "stopping", "deallocated", "deallocating", "")
STATES = ("Succeeded", "Failed", "Creating", "Updating", "Deleting")
MACHINES = ("alpha", "Beta", "gamma")

moments = st.integers(-3000, 3000).map(lambda minutes: stamp(NOW + timedelta(minutes=minutes)))
texts = st.one_of(moments, st.sampled_from(["", "soon", "2026-11-16", "true", "false", "lease=4h idle=20m cap=1h"]))
ours = st.sampled_from(
    [tags.ON_SINCE, tags.LEASE_UNTIL, tags.LEASE_UNTIL.upper(), tags.TERMS, tags.HOURS, tags.PROTECT, "owner"]
)
names = st.sampled_from([*MACHINES, None])


@st.composite
def rows(draw: Any) -> dict[str, Any]:
    """A machine, ours or foreign, in any state."""
    name = draw(names)
    marks = draw(st.dictionaries(ours, texts, max_size=5))
    marks |= {draw(st.sampled_from([tags.NAME, tags.NAME.upper()])): name} if name else {}
    power, state = draw(st.sampled_from(POWERS)), draw(st.sampled_from(STATES))
    statuses = [{"code": f"ProvisioningState/{state.lower()}", "time": draw(texts)}]
    statuses += [{"code": f"PowerState/{power}"}] if power else []
    group = draw(st.one_of(st.just(default_group(name or "")), st.integers(0, 10**6).map(lambda number: f"g{number}")))
    path = f"/subscriptions/s/resourceGroups/{group}/providers/Microsoft.Compute/virtualMachines/{name or 'theirs'}"
    disk = draw(st.sampled_from([f"{name}-disk", "another"]))
    properties: dict[str, Any] = {"provisioningState": state, "instanceView": {"statuses": statuses}}
    properties["storageProfile"] = {"osDisk": {"name": disk}}
    nic = f"{path.split('/Microsoft', maxsplit=1)[0]}/Microsoft.Network/networkInterfaces/{name}-nic"
    properties["networkProfile"] = {"networkInterfaces": [{"id": nic, "properties": {"deleteOption": "Delete"}}]}
    login = {"disablePasswordAuthentication": True}
    properties["osProfile"] = {"computerName": name or "theirs", "linuxConfiguration": login}
    return {"id": path, "name": name or "theirs", "tags": marks, "properties": properties}


def _spec(name: str) -> Spec:
    hours = {"timezone": "UTC", "on": "mon-fri 08:00-19:00"}
    plain = {"apiVersion": "gpuinfra/v1", "regions": ("eastus",), "sizes": ("Standard_NC4as_T4_v3",)}
    return Spec.model_validate({**plain, "name": name, "lifecycle": {"hours": hours}})


SPECS = {name.casefold(): _spec(name.casefold()) for name in MACHINES}


given_rules = st.builds(
    Rules,
    specs=st.sets(st.sampled_from(sorted(SPECS))).map(lambda names: {name: SPECS[name] for name in names}),
    deleted=st.dictionaries(
        st.sampled_from(sorted(SPECS)),
        st.datetimes(datetime(2026, 11, 1), datetime(2026, 11, 20), timezones=st.just(UTC)),
    ),
    unfetched=st.frozensets(st.sampled_from(sorted(SPECS))),
    starts=st.booleans(),
    deletes=st.booleans(),
)


def is_ours(row: dict[str, Any]) -> bool:
    """Return whether a machine has its tag, and its default group or a disk with our name."""
    name, group = row["name"], row["id"].split("/")[4]
    fits = group == default_group(name) or row["properties"]["storageProfile"]["osDisk"]["name"] == f"{name}-disk"
    return bool(fits) and tags.get(row["tags"], tags.NAME) == str(name)


def power(row: dict[str, Any]) -> str:
    codes = [status["code"] for status in row["properties"]["instanceView"]["statuses"]]
    return next((code.split("/")[1] for code in codes if code.startswith("PowerState")), "")


def with_power(row: dict[str, Any], state: str) -> dict[str, Any]:
    view = {"statuses": [{"code": "ProvisioningState/succeeded", "time": stamp(NOW)}, {"code": f"PowerState/{state}"}]}
    return {**row, "properties": {**row["properties"], "provisioningState": "Succeeded", "instanceView": view}}


@settings(max_examples=100, deadline=None)
@given(st.lists(rows(), max_size=6, unique_by=lambda row: row["id"]), given_rules)
def test_verdicts_hold_for_any_machines(found: list[dict[str, Any]], rules: Rules) -> None:
    judged = decide_all(found, rules, NOW)
    by_place = {(row["id"].split("/")[4], row["name"]): row for row in found}
    assert len(judged) == sum(map(is_ours, found)), "exactly our machines"
    for verdict in judged:
        row = by_place[verdict.ref.group, verdict.ref.name]
        marks = row["tags"]
        assert tags.get(marks, tags.NAME) == verdict.name
        if tags.get(marks, tags.PROTECT) not in {"", "false"}:
            assert verdict.action in {ReapAction.KEEP, ReapAction.PROTECTED}
        until = tags.moment(marks, tags.LEASE_UNTIL)
        if power(row) in BILLED and (until is None or until <= NOW):
            assert verdict.action is not ReapAction.KEEP, "billed without a limit"
        if verdict.action is ReapAction.DELETE:
            assert rules.deletes
            assert verdict.name.casefold() not in {*rules.specs, *rules.unfetched}
        if verdict.action is ReapAction.START:
            assert verdict.until is not None
            assert verdict.until > NOW


@settings(max_examples=80, deadline=None)
@given(st.lists(rows(), max_size=6, unique_by=lambda row: row["id"]), given_rules)
def test_second_reap_does_nothing(found: list[dict[str, Any]], rules: Rules) -> None:
    after = {row["id"]: row for row in found}
    places = {(row["id"].split("/")[4], row["name"]): row for row in found}
    for verdict in decide_all(found, rules, NOW):
        row = places[verdict.ref.group, verdict.ref.name]
        match verdict.action:
            case ReapAction.STOP:
                after[row["id"]] = with_power(row, "deallocated")
            case ReapAction.DELETE:
                del after[row["id"]]
            case ReapAction.START:
                own = {key: value for key, value in row["tags"].items() if key.lower() != tags.LEASE_UNTIL}
                own |= {tags.LEASE_UNTIL: stamp(verdict.until), tags.ON_SINCE: stamp(NOW)}
                after[row["id"]] = {**with_power(row, "running"), "tags": own}
    again = decide_all(list(after.values()), rules, NOW)
    assert {verdict.action for verdict in again} <= {ReapAction.KEEP, ReapAction.PROTECTED}


parts = st.builds(
    Listed,
    st.one_of(
        st.builds(Ref, st.sampled_from(Kind), st.just("g"), st.sampled_from(["a", "b", "c"])),
        st.builds(ref_of, st.sampled_from(Kind), st.just("g"), st.sampled_from([*MACHINES, "lost"])),
    ),
    st.dictionaries(st.sampled_from([tags.NAME, tags.PROTECT, "owner"]), st.sampled_from([*MACHINES, "lost", ""])),
    st.one_of(st.none(), st.integers(-300, 0).map(lambda minutes: NOW + timedelta(minutes=minutes))),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(parts, max_size=8), st.lists(rows(), max_size=4), given_rules)
def test_orphans_hold_for_any_resources(found: list[Listed], machines: list[dict[str, Any]], rules: Rules) -> None:
    present = {row["name"].casefold() for row in machines}
    for orphan in orphans(found, machines, rules, NOW):
        assert orphan.name
        assert orphan.name.casefold() not in present
        assert orphan.ref.name == ref_of(orphan.ref.kind, "g", orphan.name).name, "a tag alone makes nothing ours"
        assert orphan.ref.kind in {Kind.DISK, Kind.PUBLIC_IP, Kind.NIC, Kind.SHUTDOWN_SCHEDULE}
        own = [part for part in found if tags.get(part.tags, tags.NAME).casefold() == orphan.name.casefold()]
        assert all(part.since and NOW - part.since >= timedelta(hours=1) for part in own), "it may be in use"
        if orphan.ref.kind is Kind.DISK and orphan.action is ReapAction.DELETE:
            assert rules.deletes
            assert orphan.name.casefold() not in rules.unfetched
