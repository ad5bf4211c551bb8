"""A machine as an ARM template, evaluated by the engine of the embedded Azure: it equals what `up` sends."""

import base64
import copy
import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpuinfra.models.base import parse_money
from gpuinfra.models.hours import Hours
from gpuinfra.models.plan import ARM_TYPES, Candidate, Kind
from gpuinfra.models.spec import Spec
from gpuinfra.provision import lease, tags
from gpuinfra.provision.preflight import candidates
from gpuinfra.provision.resources import MODULES, NEEDS
from gpuinfra.provision.resources.cloud_init import public_data
from gpuinfra.provision.template import API_VERSIONS, NO_AGENT, make_template, notes
from gpuinfra.sandbox.services.resources.template import PlannedResource, make_plan
from gpuinfra.sandbox.services.resources.template_expressions import Scope
from tests.unit.provision_help import HOURS, KEY, LARGE, NAME, NOW, SMALL, SUBSCRIPTION, plan_input, ref, spec

SOURCES = ("203.0.113.7/32", "198.51.100.0/24")
ID = re.compile(r"/subscriptions/|/providers/|resourceGroups")


def exported(wanted: Spec | None = None) -> dict[str, Any]:
    return make_template(wanted or spec(), SOURCES, KEY)


def resource(template: dict[str, Any], kind: Kind) -> dict[str, Any]:
    (found,) = [each for each in template["resources"] if each["type"] == ARM_TYPES[kind]]
    return dict(found)


def deployed(wanted: Spec, moment: datetime = NOW, **parameters: str) -> dict[Kind, PlannedResource]:
    """Return what a deployment at this time requests from the providers."""
    group = {"id": ref(Kind.RESOURCE_GROUP, wanted.group_name).id(SUBSCRIPTION), "name": wanted.group_name}
    scope = Scope(SUBSCRIPTION, "tenant", group, "export", {}, now=moment)
    given = {name: {"value": value} for name, value in parameters.items()}
    # As text, like a file.
    planned = make_plan(json.loads(json.dumps(exported(wanted))), given, scope).resources
    kinds = {name.casefold(): kind for kind, name in ARM_TYPES.items()}
    return {kinds[each.type.casefold()]: each for each in planned}


def sent_by_up(wanted: Spec, now: datetime, candidate: Candidate) -> dict[Kind, dict[str, Any]]:
    """Return what `up` sends at this time for a machine, with the part of its custom data that is not secret."""
    ready = f"{now:%Y-%m-%dT%H:%M:%SZ}"
    given = plan_input(wanted, candidate=candidate, sources=SOURCES, lease=lease.decide(wanted, None, now), ready=ready)
    bodies = {kind: copy.deepcopy(module.desired(given).body) for kind, module in MODULES.items()}
    del bodies[Kind.VM]["tags"][tags.HOST_KEY]
    bodies[Kind.VM]["properties"]["osProfile"]["customData"] = public_data(wanted.admin.username)
    return {kind: body for kind, body in bodies.items() if kind not in {Kind.RESOURCE_GROUP, Kind.DISK}}


SPECS = {
    "plain": spec(),
    "spot": spec(priority="spot", spot={"max_price": 0.3}),
    "zones": spec(zones=("2", "3"), regions=("eastus", "westeurope"), sizes=(SMALL, LARGE)),
    "two days": spec(lifecycle={"lease": timedelta(days=2)}),
    "odd length": spec(lifecycle={"lease": timedelta(hours=23, minutes=59)}),
    "a day": spec(lifecycle={"lease": timedelta(days=1, hours=5, minutes=7)}),
    "odd tags": spec(tags={"a": "[x]", "[b]": "[[y]", "c": "[", "d": "]", "e": "[half", "f": "[[half", "g": "it's"}),
    "long name": spec(name="m" * 60),
}
MOMENTS = [
    NOW,
    NOW + timedelta(seconds=1),
    NOW + timedelta(seconds=59, microseconds=999_999),
    NOW + timedelta(microseconds=1),
    datetime(2026, 12, 31, 19, 59, 30, tzinfo=UTC),
    datetime(2028, 2, 28, 23, 0, 0, 500_000, tzinfo=UTC),
]


@pytest.mark.parametrize("now", MOMENTS)
@pytest.mark.parametrize("name", SPECS)
def test_deployment_requests_the_same_resources_as_up(name: str, now: datetime) -> None:
    wanted = SPECS[name]
    made = deployed(wanted, now)
    assert {kind: each.body for kind, each in made.items()} == sent_by_up(wanted, now, candidates(wanted)[0])
    assert {each.name for each in made.values()} == {ref(kind, name=wanted.name).name for kind in made}


def test_any_candidate_can_be_deployed_and_no_other() -> None:
    wanted = SPECS["zones"]
    for candidate in candidates(wanted):
        chosen = {"location": candidate.region, "vmSize": candidate.size, "zone": str(candidate.zone)}
        made = deployed(wanted, NOW, **chosen)
        assert {kind: each.body for kind, each in made.items()} == sent_by_up(wanted, NOW, candidate)
    parameters = exported(wanted)["parameters"]
    assert parameters["location"]["allowedValues"] == ["eastus", "westeurope"]
    assert parameters["vmSize"]["allowedValues"] == [SMALL, LARGE]
    assert parameters["zone"]["allowedValues"] == ["2", "3"]
    assert "zone" not in exported()["parameters"]


@pytest.mark.parametrize("given", ["2026-11-16T08:00:30Z", "2026-11-16 08:00:30Z", "20261116T080030Z"])
def test_time_is_a_parameter(given: str) -> None:
    machine = deployed(spec(), now=given)[Kind.VM].body
    assert machine["tags"][tags.ON_SINCE] == "2026-11-16T08:00:30Z"
    assert machine["tags"][tags.LEASE_UNTIL] == "2026-11-16T12:01:00Z"


def test_template_has_the_arm_structure() -> None:
    template = exported()
    assert template["$schema"].endswith("/2019-04-01/deploymentTemplate.json#")
    assert template["contentVersion"] == "1.0.0.0"
    assert [each["type"] for each in template["resources"]] == [ARM_TYPES[kind] for kind in API_VERSIONS]
    assert set(API_VERSIONS) == set(MODULES) - {Kind.RESOURCE_GROUP, Kind.DISK}
    assert template["parameters"]["now"]["defaultValue"] == "[utcNow('u')]"
    assert json.dumps(template).count("utcNow") == 1, "ARM allows utcNow only in defaults of parameters"


def test_every_resource_depends_on_what_it_needs() -> None:
    template = exported()
    for kind in API_VERSIONS:
        needed = [each for each in NEEDS[kind] if each is not Kind.RESOURCE_GROUP]
        wanted = [f"[resourceId('{ARM_TYPES[each]}', '{ref(each).name}')]" for each in needed]
        assert resource(template, kind)["dependsOn"] == wanted


def test_template_contains_no_subscription_id() -> None:
    text = json.dumps({**exported(), "metadata": None})
    assert not ID.search(text)
    assert "{subscription}" not in text
    assert f"[resourceId('Microsoft.Network/virtualNetworks/subnets', '{NAME}-vnet', 'machines')]" in text


def test_template_contains_no_secret_and_no_host_key() -> None:
    template = exported()
    machine = resource(template, Kind.VM)
    first_boot = base64.b64decode(machine["properties"]["osProfile"]["customData"]).decode()
    assert not [word for word in ("PRIVATE KEY", "ssh_keys") if word in json.dumps(template) + first_boot]
    assert tags.HOST_KEY not in machine["tags"]
    assert machine["properties"]["osProfile"]["linuxConfiguration"]["ssh"]["publicKeys"][0]["keyData"] == KEY


def test_text_that_looks_like_an_expression_is_escaped() -> None:
    found = resource(exported(SPECS["odd tags"]), Kind.VNET)["tags"]
    assert found.pop(tags.NAME) == NAME
    assert found == {"a": "[[x]", "[[b]": "[[[y]", "c": "[", "d": "]", "e": "[half", "f": "[[half", "g": "it's"}


def test_missing_end_of_a_lease_is_noted() -> None:
    assert resource(exported(), Kind.SHUTDOWN_SCHEDULE)["properties"]["status"] == "Enabled"
    assert list(notes(spec())) == [NO_AGENT]
    long = SPECS["two days"]
    assert resource(exported(long), Kind.SHUTDOWN_SCHEDULE)["properties"]["status"] == "Disabled"
    _, note = notes(long)
    assert "nothing in Azure ends this machine" in note


def test_unsupported_fields_are_noted() -> None:
    hours = Hours.model_validate(HOURS)
    for wanted, word in (
        (spec(lifecycle={"hours": hours}), "hours"),
        (spec(lifecycle={"max_cost": parse_money("5 USD")}), "cost cap"),
        (spec(power="deallocated"), "keeps the machine off"),
        (spec(image="seller:offer:sku:latest"), "plan"),
    ):
        first, *others = notes(wanted)
        assert first == NO_AGENT
        assert [word in note for note in others] == [True]
