"""The server: tokens, time, throttling, restarts, and events that go wrong."""

import http.client
import re
import ssl
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError

from tests.integration.sandbox.servers import WAIT_SECONDS, Sandbox

VERSION = "?api-version=2024-11-01"


def make_group(sandbox: Sandbox, name: str = "demo") -> Any:
    return sandbox.resource.resource_groups.create_or_update(name, {"location": "South Central US"})


def test_sdk_creates_a_group(sandbox: Sandbox) -> None:
    assert make_group(sandbox).location == "southcentralus"
    assert sandbox.resource.resource_groups.get("DEMO").name == "demo"


def test_a_wrong_secret_gets_no_token(sandbox: Sandbox) -> None:
    with pytest.raises(ClientAuthenticationError, match="AADSTS7000215"):
        sandbox.credential(secret="wrong").get_token("https://management.azure.com/.default")


def test_token_expires_after_an_hour(sandbox: Sandbox) -> None:
    token = sandbox.credential().get_token("https://management.azure.com/.default").token
    path = f"/subscriptions/{sandbox.subscription}{VERSION}"
    headers = {"Authorization": f"Bearer {token}"}
    assert sandbox.http("GET", path, token=False, headers=headers)[0] == 200
    sandbox.control("POST", "clock", {"advance": 3601})
    status, received, body = sandbox.http("GET", path, token=False, headers=headers)
    assert (status, body["error"]["code"]) == (401, "ExpiredAuthenticationToken")
    assert "invalid_token" in received["www-authenticate"]


def test_token_of_another_sandbox_is_refused(sandbox: Sandbox, tmp_path: Path) -> None:
    other = Sandbox(tmp_path / "other")
    try:
        token = other.credential().get_token("https://management.azure.com/.default").token
    finally:
        other.stop()
    path = f"/subscriptions/{sandbox.subscription}{VERSION}"
    status, _, body = sandbox.http("GET", path, token=False, headers={"Authorization": f"Bearer {token}"})
    assert (status, body["error"]["code"]) == (401, "InvalidAuthenticationToken")


def test_answers_have_arms_headers(sandbox: Sandbox) -> None:
    sent = {"x-ms-client-request-id": "mine", "x-ms-correlation-request-id": "together"}
    _, headers, _ = sandbox.http("GET", f"/subscriptions/{sandbox.subscription}{VERSION}", headers=sent)
    assert headers["x-ms-client-request-id"] == "mine"
    assert headers["x-ms-correlation-request-id"] == "together"
    assert headers["x-ms-routing-request-id"].startswith("SANDBOX:")
    assert int(headers["x-ms-ratelimit-remaining-subscription-reads"]) < 250


def dates(sandbox: Sandbox, method: str, path: str, **headers: str) -> list[str]:
    """Every `Date` of an answer."""
    trusted = ssl.create_default_context(cafile=str(sandbox.server.authority_file))
    connection = http.client.HTTPSConnection("localhost", sandbox.server.port, timeout=WAIT_SECONDS, context=trusted)
    try:
        connection.request(method, path, headers=headers)
        return connection.getresponse().msg.get_all("Date", [])
    finally:
        connection.close()


def test_date_header_has_the_simulated_time(sandbox: Sandbox) -> None:
    for advance in (0, 400 * 86_400):
        sandbox.control("POST", "clock", {"advance": advance})
        allowed = {"Authorization": f"Bearer {sandbox.token()}"}
        root = f"/subscriptions/{sandbox.subscription}"
        asked: list[tuple[str, str, dict[str, str]]] = [
            ("GET", f"{root}{VERSION}", allowed),
            ("GET", f"{root}{VERSION}", {}),
            ("HEAD", f"{root}/resourceGroups/nothing{VERSION}", allowed),
            ("PUT", f"{root}/resourceGroups/demo{VERSION}", allowed),
            ("GET", "/metadata/endpoints?api-version=2022-09-01", {}),
            ("GET", "/tenant/v2.0/.well-known/openid-configuration", {}),
            ("GET", "/_sandbox/status", {}),
        ]
        for method, path, headers in asked:
            (date,) = dates(sandbox, method, path, **headers)
            assert re.fullmatch(r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT", date), path
            assert 0 <= sandbox.server.cloud.clock.now() - parsedate_to_datetime(date).timestamp() < 60, path


def test_sdk_sees_the_date_header(sandbox: Sandbox) -> None:
    sandbox.control("POST", "clock", {"advance": 45 * 86_400})
    seen: list[str] = []
    sandbox.resource.resource_groups.create_or_update(
        "demo",
        {"location": "eastus"},
        raw_response_hook=lambda answer: seen.append(answer.http_response.headers["Date"]),
    )
    (date,) = seen
    assert 0 <= sandbox.server.cloud.clock.now() - parsedate_to_datetime(date).timestamp() < 60


def test_realistic_profile_throttles_requests(sandbox: Sandbox) -> None:
    path = f"/subscriptions/{sandbox.subscription}{VERSION}"
    sandbox.freeze()  # 25 requests more are allowed every second
    assert {sandbox.http("GET", path)[0] for _ in range(251)} == {200}
    sandbox.control("POST", "profile", {"profile": "realistic"})
    status, headers, body = sandbox.http("GET", path)
    assert (status, body["error"]["code"]) == (429, "SubscriptionRequestsThrottled")
    assert int(headers["retry-after"]) >= 1
    sandbox.control("POST", "clock", {"advance": 60})
    assert sandbox.http("GET", path)[0] == 200


def test_state_survives_a_restart(tmp_path: Path) -> None:
    first = Sandbox(tmp_path / "sandbox")
    make_group(first)
    subscription, now = first.subscription, first.server.cloud.clock.now()
    first.stop()
    second = Sandbox(tmp_path / "sandbox")
    try:
        assert second.subscription == subscription
        assert second.resource.resource_groups.get("demo").name == "demo"
        assert 0 <= second.server.cloud.clock.now() - now < 60
    finally:
        second.stop()


def test_failed_event_does_not_stop_later_ones(sandbox: Sandbox) -> None:
    cloud = sandbox.server.cloud

    def fail(*_: Any) -> None:
        raise RuntimeError("broken")

    happened: list[str] = []
    cloud.effects["broken"] = fail
    cloud.effects["fine"] = lambda *_: happened.append("fine")
    sandbox.inside(lambda cloud: [cloud.schedule(cloud.now, name, {}) for name in ("broken", "fine")])
    sandbox.control("GET", "status")
    assert happened == ["fine"]


def test_operation_with_a_broken_effect_fails(sandbox: Sandbox) -> None:
    cloud = sandbox.server.cloud

    def fail(*_: Any) -> None:
        raise RuntimeError("broken")

    make_group(sandbox)
    for name in list(cloud.effects):
        if "network" in name:
            cloud.effects[name] = fail
    body: Any = {"location": "eastus", "properties": {"addressSpace": {"addressPrefixes": ["10.0.0.0/16"]}}}
    with pytest.raises(HttpResponseError, match="SandboxError"):
        sandbox.network.virtual_networks.begin_create_or_update("demo", "net", body).result()


def test_control_needs_the_secret(sandbox: Sandbox) -> None:
    status, _, body = sandbox.http("GET", "/_sandbox/bill", token=False, headers={"x-sandbox-secret": "guess"})
    assert (status, body["error"]["code"]) == (401, "SecretRequired")
    assert (sandbox.folder / "secret").stat().st_mode & 0o777 == 0o600
