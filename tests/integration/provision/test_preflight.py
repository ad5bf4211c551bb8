"""Preflight against the embedded Azure: problems are reported before the first write."""

import json
from typing import Any

import pytest

from gpuinfra.diagnostics import Code, Diagnostic, Problem
from gpuinfra.models.spec import Spec
from gpuinfra.provision.azure.access import Access, ClientSecret
from gpuinfra.provision.azure.market import AzureMarket
from gpuinfra.provision.preflight import preflight
from gpuinfra.provision.waiting import Deadline, Interrupt, Silent
from tests.integration.provision.conftest import Markets
from tests.integration.sandbox.servers import Sandbox

T4, A100 = "Standard_NC4as_T4_v3", "Standard_NC24ads_A100_v4"


def spec(**fields: Any) -> Spec:
    least = {"apiVersion": "gpuinfra/v1", "name": "my-dsvm", "regions": ["southcentralus", "eastus"], "sizes": [T4]}
    return Spec.model_validate_json(json.dumps({**least, **fields}))


def refused(market: AzureMarket, wanted: Spec | None = None) -> Diagnostic:
    with pytest.raises(Problem) as caught:
        preflight(market, wanted or spec(), Deadline.after(30), Silent())
    (diagnostic,) = caught.value.diagnostics
    return diagnostic


def arm(server: Sandbox, name: str, **fields: Any) -> None:
    server.control("POST", "faults", {"name": name, **fields})


def requests(server: Sandbox) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.control("GET", "log")["requests"]
    return found


def test_preflight_only_reads(market: AzureMarket, server: Sandbox) -> None:
    found = preflight(market, spec(zones=["1", "3"]), Deadline.after(30), Silent())
    assert [str(each) for each in found.viable] == [
        f"{T4} in southcentralus, zone 1",
        f"{T4} in southcentralus, zone 3",
        f"{T4} in eastus, zone 1",
        f"{T4} in eastus, zone 3",
    ]
    assert (found.rejected, found.unregistered) == ((), ())
    assert found.images["eastus"].version == "25.06.18"
    assert found.prices.price(T4, "eastus") == 0.526
    asked = requests(server)
    assert {each["method"] for each in asked if "/oauth2/" not in each["path"]} == {"GET"}
    # One request each for the subscription, permissions, the price, three providers; four for each of two regions.
    assert len([each for each in asked if "/subscriptions/" in each["path"]]) == 14


def test_restricted_region_is_skipped(market: AzureMarket, server: Sandbox) -> None:
    arm(server, "restricted", region="southcentralus", count=0)
    found = preflight(market, spec(), Deadline.after(30), Silent())
    assert [str(each) for each in found.viable] == [f"{T4} in eastus"]
    assert [reason.code for each in found.rejected for reason in each.reasons] == ["restricted"]


def test_unregistered_provider_is_not_a_failure(market: AzureMarket, server: Sandbox) -> None:
    lab = "Microsoft.DevTestLab"
    path = f"/subscriptions/{server.subscription}/providers/{lab}"
    assert server.http("POST", f"{path}/unregister?api-version=2021-04-01")[0] == 200
    try:
        assert preflight(market, spec(), Deadline.after(30), Silent()).unregistered == (lab,)
    finally:
        server.http("POST", f"{path}/register?api-version=2021-04-01")


def test_missing_quota_lists_every_candidate(market: AzureMarket, server: Sandbox) -> None:
    for region in ("southcentralus", "eastus"):
        server.control("POST", "quota", {"region": region, "family": "Standard NCASv3_T4 Family", "limit": 2})
    found = refused(market)
    assert found.code is Code.NO_CANDIDATE
    quota = "quota  needs 4 vCPUs of Standard NCASv3_T4 Family; 2 of 2 left"
    assert (found.note or "").splitlines() == [
        "nothing was created",
        f"{T4} in southcentralus  {quota}",
        f"{T4} in eastus          {quota}",
    ]


def test_region_of_another_cloud_is_refused(market: AzureMarket) -> None:
    note = refused(market, spec(regions=["chinaeast"])).note or ""
    assert "not-offered    chinaeast does not offer any NC size" in note
    assert "image-missing  chinaeast has no image microsoft-dsvm" in note


def test_unsuitable_image_is_refused(market: AzureMarket) -> None:
    sold = "fortinet:fortinet_fortigate-vm_v5:fortinet_fg-vm_payg:latest"
    note = refused(market, spec(sizes=[A100], image=sold)).note or ""
    assert "image-generation  boots generation V2" in note
    assert "image-terms " in note
    found = refused(market, spec(image=sold))
    assert "`acceptImageTerms: true`" in (found.help or "")
    assert preflight(market, spec(image=sold, acceptImageTerms=True), Deadline.after(30), Silent()).viable


def test_reader_is_refused_with_the_role_command(market: AzureMarket, server: Sandbox) -> None:
    arm(server, "read-only", count=0)
    found = refused(market)
    assert found.code is Code.NOT_ALLOWED
    assert "Microsoft.Compute/virtualMachines/write" in (found.note or "")
    assert f"--scope /subscriptions/{server.subscription}`" in (found.help or "")


def test_wrong_secret_is_refused(markets: Markets, access: Access) -> None:
    given = access.client_secret
    assert given is not None
    found = refused(markets(client_secret=ClientSecret(given.tenant, given.client_id, "wrong")))
    assert found.code is Code.LOGIN_FAILED
    assert "wrong" not in (found.note or "")


def test_unknown_subscription_is_refused(markets: Markets) -> None:
    assert refused(markets(subscription="00000000-0000-0000-0000-000000000000")).code is Code.NO_SUBSCRIPTION


def test_refused_connection_is_unreachable(markets: Markets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Interrupt, "sleep", lambda *_: None)  # between attempts
    assert refused(markets(arm="https://localhost:1")).code is Code.UNREACHABLE


def test_unreadable_sizes_and_quotas_do_not_block(market: AzureMarket, server: Sandbox) -> None:
    for kind in ("skus", "usages"):
        arm(server, "AuthorizationFailed", type=kind, count=0)
    found = preflight(market, spec(), Deadline.after(30), Silent())
    assert len(found.viable) == 2
