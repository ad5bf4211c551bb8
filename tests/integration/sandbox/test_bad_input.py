"""Whatever is sent, the answer is ARM's: never a 500, never a server that is gone."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.integration.sandbox.servers import Servers
from tests.integration.sandbox.world import World
from tests.variants import variants

VERSION = "?api-version=2024-11-01"
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def world(servers: Servers) -> Iterator[World]:
    with servers.lend() as lent:
        yield World(lent)


def check(answer: tuple[int, dict[str, str], Any]) -> None:
    status, _, body = answer
    assert status < 500 or status == 501, body
    if status >= 400 and body is not None:
        assert isinstance(body["error"]["code"], str)
        assert isinstance(body["error"]["message"], str)


JUNK: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 10**12) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def places(body: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
    for key, value in items:
        yield from places(value, (*path, key))


def replaced(body: Any, path: tuple[Any, ...], value: Any) -> Any:
    copy = json.loads(json.dumps(body))
    if not path:
        return value
    place = copy
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return copy


def bodies(world: World) -> dict[str, Any]:
    """A good body for each kind that can be put."""
    network = world.network
    return {
        f"{world.subscription}/resourceGroups/fuzz": {"location": "eastus", "tags": {"a": "b"}},
        f"{network}/virtualNetworks/fuzz": world.network_body(),
        f"{world.virtual_network}/subnets/fuzz": {"properties": {"addressPrefix": "10.0.240.0/24"}},
        f"{network}/networkSecurityGroups/fuzz": world.security_group_body(),
        f"{world.security_group}/securityRules/fuzz": world.rule_body(4000),
        f"{network}/publicIPAddresses/fuzz": world.address_body(),
        f"{network}/networkInterfaces/fuzz": world.interface_body(public=False),
        f"{world.compute}/virtualMachines/fuzz": world.machine_body(world.interface),
        f"{world.compute}/disks/fuzz": {
            "location": "eastus",
            "sku": {"name": "Premium_LRS"},
            "properties": {"creationData": {"createOption": "Empty"}, "diskSizeGB": 64},
        },
        f"{world.group}/providers/Microsoft.DevTestLab/schedules/shutdown-computevm-fuzz": world.schedule_body(),
        f"{world.group}/providers/Microsoft.ManagedIdentity/userAssignedIdentities/fuzz": {"location": "eastus"},
        f"{world.group}/providers/Microsoft.Resources/deployments/fuzz": world.deployment_body(),
        f"{world.machine}/providers/Microsoft.Authorization/roleAssignments/5b6a2e3c-0000-4000-8000-000000000001": {
            "properties": {"roleDefinitionId": "x", "principalId": "y"}
        },
    }


def test_junk_anywhere_in_a_body_never_breaks_the_server(world: World) -> None:
    known = bodies(world)

    @QUICK
    @given(st.sampled_from(sorted(known)), st.sampled_from(["PUT", "PUT", "PUT", "PATCH"]), JUNK, st.data())
    def send(path: str, method: str, junk: Any, data: st.DataObject) -> None:
        place = data.draw(st.sampled_from(sorted(places(known[path]), key=str)))
        check(world.sandbox.http(method, path + VERSION, replaced(known[path], place, junk)))

    send()
    assert world.ask("GET", world.group)[0] == 200


@pytest.mark.parametrize("kind", variants(*range(13), first=3))
def test_wrong_types_anywhere_never_break_the_server(world: World, kind: int) -> None:
    path, body = sorted(bodies(world).items())[kind]
    for place in places(body):
        for junk in (None, True, -1, "", "x" * 300, [], {}, [None], {"id": None}):
            check(world.sandbox.http("PUT", path + VERSION, replaced(body, place, junk)))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"7",
        b'"text"',
        b"\xff\xfe",
        b'{"a": NaN}',
        b"[" * 100_000,
        b'{"location": "\\ud800"}',
    ],
)
def test_arbitrary_body_never_breaks_the_server(world: World, content: bytes) -> None:
    for path in bodies(world):
        check(world.sandbox.http("PUT", path + VERSION, content))


def test_body_of_ten_megabytes_is_refused(world: World) -> None:
    large = json.dumps({"location": "eastus", "tags": {"a": "x" * 10_000_000}}).encode()
    status, _, body = world.sandbox.http("PUT", f"{world.group}-large{VERSION}", large)
    assert (status, body["error"]["code"]) == (413, "RequestContentTooLarge")
    assert world.ask("GET", world.group)[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "//",
        "/subscriptions//resourceGroups",
        "/subscriptions/{s}/resourceGroups/..%2f..%2fetc%2fpasswd",
        "/subscriptions/{s}/resourceGroups/world/../../..",
        "/subscriptions/{s}/resourceGroups/%00",
        "/subscriptions/{s}/resourceGroups/" + "x" * 5000,
        "/subscriptions/{s}/resourceGroups/world/providers/Microsoft.Compute",
        "/subscriptions/{s}/resourceGroups/world/providers/Microsoft.Compute/virtualMachines/%2e%2e",
        "/subscriptions/{s}/resourceGroups/world/providers//virtualMachines/x",
        "/subscriptions/{s}/resourceGroups/world/providers/Microsoft.Compute/virtualMachines/x/y/z",
        "/subscriptions/{s}/providers/Microsoft.Compute/locations/%ff/usages",
        "/%c3%28",
    ],
)
def test_malformed_paths_never_break_the_server(world: World, path: str) -> None:
    for method in ("GET", "HEAD", "PUT", "PATCH", "POST", "DELETE", "OPTIONS"):
        if method == "DELETE" and path.endswith("world"):
            continue
        check(world.sandbox.http(method, path.format(s=world.sandbox.subscription) + VERSION, {"location": "eastus"}))


@QUICK
@given(
    query=st.dictionaries(
        st.sampled_from(["$filter", "$top", "$skiptoken", "$expand", "$orderby", "x"]), st.text(max_size=20), max_size=3
    )
)
def test_arbitrary_query_never_breaks_the_server(world: World, query: dict[str, str]) -> None:
    from urllib.parse import urlencode

    text = urlencode({"api-version": "2024-11-01", **query})
    lists = (
        f"{world.compute}/virtualMachines",
        f"{world.subscription}/resources",
        f"{world.subscription}/resourcegroups",
    )
    for path in lists:
        check(world.sandbox.http("GET", f"{path}?{text}"))


def test_missing_api_version_is_refused(world: World) -> None:
    status, _, body = world.sandbox.http("GET", world.group)
    assert (status, body["error"]["code"]) == (400, "MissingApiVersionParameter")


@pytest.mark.parametrize("token", ["", "Bearer", "Bearer x", "Bearer a.b.c", "Basic eDp5", "Bearer " + "é"])
def test_invalid_token_is_refused(world: World, token: str) -> None:
    headers = {"Authorization": token.encode("utf-8").decode("latin-1")} if token else {}
    status, received, body = world.sandbox.http("GET", world.group + VERSION, token=False, headers=headers)
    assert status == 401
    assert received["www-authenticate"].startswith("Bearer")
    assert body["error"]["code"] in {"AuthenticationFailed", "InvalidAuthenticationToken"}
