"""The real SDK reads the market of the embedded Azure."""

from types import SimpleNamespace
from typing import Any

import pytest

from gpuinfra.models.sizes import Rate
from gpuinfra.provision.azure.access import Access, ClientSecret
from gpuinfra.provision.azure.market import AzureMarket
from gpuinfra.provision.azure.prices import PriceService
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.market import Image, ImagePlan, Prices
from gpuinfra.provision.waiting import Deadline
from tests.integration.provision.conftest import Markets
from tests.integration.sandbox.servers import Sandbox

T4, H100 = "Standard_NC4as_T4_v3", "Standard_NC40ads_H100_v5"
DSVM = "microsoft-dsvm:ubuntu-2204:2204-gen2"
FORTINET = "fortinet:fortinet_fortigate-vm_v5:fortinet_fg-vm_payg:latest"


def arm(server: Sandbox, name: str, **fields: Any) -> None:
    server.control("POST", "faults", {"name": name, **fields})


def requests(server: Sandbox) -> list[str]:
    return [f"{each['method']} {each['path']}" for each in server.control("GET", "log")["requests"]]


def test_subscription_has_a_name(market: AzureMarket) -> None:
    assert market.subscription_name() == "gpuinfra sandbox (simulated)"


def test_region_is_asked_for_sizes_and_quota_once(market: AzureMarket, server: Sandbox) -> None:
    catalogue = market.catalogue("southcentralus")
    offer = catalogue.offers[T4]
    assert (offer.vcpus, offer.memory_gib, offer.gpus, offer.zones) == (4, 28, 1, ("1", "2", "3"))
    assert (offer.generations, offer.spot_capable, offer.restriction) == (("V1", "V2"), True, None)
    assert {each.region for each in catalogue.offers.values()} == {"southcentralus"}
    quota = catalogue.quota(offer.family)
    assert quota is not None
    assert (quota.name, quota.used) == ("Standard NCASv3_T4 Family", 0)
    assert catalogue.cores is not None
    assert catalogue.spot_cores is not None
    asked = [each for each in requests(server) if "Microsoft.Compute" in each]
    assert sorted(each.rpartition("/")[2] for each in asked) == ["skus", "usages"]


def test_quota_limit_is_read(market: AzureMarket, server: Sandbox) -> None:
    server.control("POST", "quota", {"region": "eastus", "family": "cores", "limit": 3})
    cores = market.catalogue("eastus").cores
    assert cores is not None
    assert cores.left == 3


def test_restriction_is_read(market: AzureMarket, server: Sandbox) -> None:
    arm(server, "restricted", resource=T4, region="eastus", count=0)
    offers = market.offers()
    assert offers[T4, "eastus"].restriction == "NotAvailableForSubscription"
    assert offers[T4, "southcentralus"].restriction is None


def test_one_request_lists_all_regions(market: AzureMarket, server: Sandbox) -> None:
    regions = {region for _, region in market.offers()}
    assert len(regions) > 20
    assert len([each for each in requests(server) if each.endswith("/skus")]) == 1


def test_unknown_region_has_no_offers(market: AzureMarket) -> None:
    catalogue = market.catalogue("chinaeast")
    assert (catalogue.offers, catalogue.quotas) == ({}, {})
    assert not market.image(f"{DSVM}:latest", "chinaeast").exists


def test_latest_image_is_found_with_its_version(market: AzureMarket) -> None:
    expected = Image(f"{DSVM}:latest", True, "25.06.18", "V2")
    assert market.image(f"{DSVM}:latest", "eastus") == expected
    assert market.image(f"{DSVM}:25.03.25", "eastus").version == "25.03.25"


@pytest.mark.parametrize("urn", [f"{DSVM}:1.2.3", "unknown:nothing:none:latest"])
def test_missing_image_does_not_exist(market: AzureMarket, urn: str) -> None:
    assert market.image(urn, "eastus") == Image(urn, exists=False)


def test_image_terms_are_read_and_accepted(market: AzureMarket) -> None:
    image = market.image(FORTINET, "eastus")
    assert image.plan == ImagePlan("fortinet", "fortinet_fg-vm_payg", "fortinet_fortigate-vm_v5")
    assert image.terms_accepted is False
    market.accept_terms(image.plan)
    assert market.image(FORTINET, "eastus").terms_accepted is True


def test_owner_may_do_everything(market: AzureMarket) -> None:
    assert market.actions_allowed(None).allows("Microsoft.Compute/virtualMachines/write")


def test_reader_may_only_read(market: AzureMarket, server: Sandbox) -> None:
    arm(server, "read-only", count=0)
    found = market.actions_allowed(None)
    assert found.allows("Microsoft.Compute/virtualMachines/read")
    assert not found.allows("Microsoft.Compute/virtualMachines/write")


def test_missing_group_grants_no_actions(market: AzureMarket) -> None:
    found = market.actions_allowed("nowhere")
    assert (found.known, found.grants) == (True, ())


def test_unreadable_permissions_are_unknown(market: AzureMarket, server: Sandbox) -> None:
    arm(server, "AuthorizationFailed", count=0)
    assert not market.actions_allowed(None).known


def test_providers_are_registered(market: AzureMarket, server: Sandbox) -> None:
    lab = "Microsoft.DevTestLab"
    assert market.unregistered([lab, "Microsoft.Compute"]) == ()
    path = f"/subscriptions/{server.subscription}/providers/{lab}/unregister?api-version=2021-04-01"
    assert server.http("POST", path)[0] == 200
    assert market.unregistered([lab, "Microsoft.Compute"]) == (lab,)
    market.register(lab, Deadline.after(20))
    assert market.unregistered([lab]) == ()


def test_endless_registration_times_out(market: AzureMarket, server: Sandbox) -> None:
    lab = "Microsoft.DevTestLab"
    server.control("POST", "profile", {"profile": "realistic"})
    path = f"/subscriptions/{server.subscription}/providers/{lab}/unregister?api-version=2021-04-01"
    try:
        assert server.http("POST", path)[0] == 200
        with pytest.raises(CloudError) as caught:
            market.register(lab, Deadline.after(0))
        assert caught.value.fault is Fault.TIMEOUT
    finally:
        server.control("POST", "profile", {"profile": "instant"})


def test_wrong_secret_is_a_login_fault(markets: Markets, access: Access) -> None:
    given = access.client_secret
    assert given is not None
    market = markets(client_secret=ClientSecret(given.tenant, given.client_id, "wrong"))
    with pytest.raises(CloudError) as caught:
        market.subscription_name()
    assert caught.value.fault is Fault.LOGIN


def test_another_subscription_is_not_found(markets: Markets) -> None:
    with pytest.raises(CloudError) as caught:
        markets(subscription="00000000-0000-0000-0000-000000000000").subscription_name()
    assert caught.value.code == "SubscriptionNotFound"


def test_prices_take_one_request_per_size(market: AzureMarket, server: Sandbox) -> None:
    prices = market.prices([T4, H100])
    assert prices.rate(T4, "eastus") == Rate(0.526, 0.1578)
    assert prices.price(H100, "eastus") == 6.98
    assert market.price(T4, "southcentralus", spot=True) == pytest.approx(0.631 * 0.3)
    assert market.price(T4, "chinaeast") is None
    assert len([each for each in requests(server) if "retail" in each]) == 2


def test_prices_of_an_untrusted_server_are_unknown(server: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = f"{server.endpoint}/api/retail/prices"
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    assert PriceService(endpoint).prices([T4]) == Prices()
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(server.server.authority_file))
    assert PriceService(endpoint).prices([T4]).price(T4, "eastus") == 0.526
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nowhere")
    assert PriceService(endpoint).prices([T4]) == Prices()


def test_html_page_of_a_proxy_is_not_a_response(access: Access) -> None:
    def send_request(request: Any) -> Any:
        def json() -> Any:
            raise ValueError("Expecting value")

        return SimpleNamespace(status_code=200, content=b"<html>", json=json)

    clients: Any = SimpleNamespace(access=access, resource=SimpleNamespace(send_request=send_request))
    with pytest.raises(CloudError) as caught:
        AzureMarket(clients).subscription_name()
    assert (caught.value.fault, caught.value.code) == (Fault.UNREACHABLE, "NotJson")
