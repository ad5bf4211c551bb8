"""What the cloud offers, asked with the real SDK: sizes, quota, images, terms, prices, providers, locations."""

from urllib.parse import quote

import pytest
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError

from tests.integration.sandbox.servers import Sandbox

RETAIL = "/api/retail/prices?$filter="


def test_sizes_have_gpus_and_quota_families(sandbox: Sandbox) -> None:
    found = {
        sku.name: sku
        for sku in sandbox.compute.resource_skus.list(filter="location eq 'southcentralus'")
        if sku.resource_type == "virtualMachines"
    }
    t4 = found["Standard_NC4as_T4_v3"]
    assert t4.family == "Standard NCASv3_T4 Family"
    assert {each.name: each.value for each in t4.capabilities or []}["GPUs"] == "1"
    assert "Standard_NC6" not in found


def test_restricted_size_is_listed_with_its_restriction(sandbox: Sandbox) -> None:
    fault = {"name": "restricted", "resource": "Standard_NC4as_T4_v3", "region": "eastus", "count": 0}
    sandbox.control("POST", "faults", fault)

    def restrictions(region: str) -> list[str]:
        listed = sandbox.compute.resource_skus.list(filter=f"location eq '{region}'")
        (sku,) = [each for each in listed if each.name == "Standard_NC4as_T4_v3"]
        return [each.reason_code or "" for each in sku.restrictions or []]

    assert restrictions("eastus") == ["NotAvailableForSubscription"]
    assert restrictions("southcentralus") == []


def test_quota_is_listed(sandbox: Sandbox) -> None:
    usages = {usage.name.value: usage for usage in sandbox.compute.usage.list("southcentralus")}
    assert usages["cores"].limit > 0
    assert usages["Standard NCASv3_T4 Family"].current_value == 0
    with pytest.raises(HttpResponseError):
        list(sandbox.compute.usage.list("atlantis"))


def test_images_by_version(sandbox: Sandbox) -> None:
    images = sandbox.compute.virtual_machine_images
    where = ("southcentralus", "microsoft-dsvm", "ubuntu-2204", "2204-gen2")
    versions = images.list(*where)
    newest = images.list(*where, top=1, orderby="name desc")
    assert [each.name for each in newest] == [versions[-1].name]
    found = images.get(*where, versions[-1].name)
    assert found.hyper_v_generation == "V2"
    assert found.plan is None
    assert "microsoft-dsvm" in {each.name for each in images.list_publishers("southcentralus")}
    with pytest.raises(ResourceNotFoundError):
        images.get(*where[:3], "none", "1.0.0")


def test_terms_can_be_accepted_and_withdrawn(sandbox: Sandbox) -> None:
    where = (
        f"/subscriptions/{sandbox.subscription}/providers/Microsoft.MarketplaceOrdering/offerTypes/virtualmachine/"
        "publishers/fortinet/offers/fortinet_fortigate-vm_v5/plans/fortinet_fg-vm_payg/agreements/current"
        "?api-version=2021-01-01"
    )
    status, _, terms = sandbox.http("GET", where)
    assert (status, terms["properties"]["accepted"]) == (200, False)
    terms["properties"]["accepted"] = True
    assert sandbox.http("PUT", where, terms)[2]["properties"]["accepted"] is True
    assert sandbox.http("GET", where)[2]["properties"]["accepted"] is True
    assert sandbox.http("PUT", where, {"properties": {"accepted": "yes"}})[0] == 400
    assert sandbox.http("GET", where.replace("fortinet_fg-vm_payg", "none"))[0] == 400


def test_prices_need_no_token(sandbox: Sandbox) -> None:
    query = quote("armRegionName eq 'eastus' and armSkuName eq 'Standard_NC4as_T4_v3' and priceType eq 'Consumption'")
    status, _, page = sandbox.http("GET", RETAIL + query, token=False)
    assert status == 200
    plain = [
        item for item in page["Items"] if item["skuName"].endswith("T4 v3") and "Windows" not in item["productName"]
    ]
    assert [item["retailPrice"] for item in plain] == [0.526]
    assert sandbox.http("GET", RETAIL + quote("startswith(skuName, 'NC')"), token=False)[0] == 400


def test_provider_can_be_registered(sandbox: Sandbox) -> None:
    providers = sandbox.resource.providers
    providers.unregister("Microsoft.DevTestLab")
    assert providers.get("Microsoft.DevTestLab").registration_state == "NotRegistered"
    providers.register("Microsoft.DevTestLab")
    assert providers.get("Microsoft.DevTestLab").registration_state == "Registered"
    assert "Microsoft.Compute" in {each.namespace for each in providers.list()}


def test_the_subscription_and_its_locations(sandbox: Sandbox) -> None:
    version = "?api-version=2022-12-01"
    (subscription,) = sandbox.http("GET", f"/subscriptions{version}")[2]["value"]
    assert subscription["subscriptionId"] == sandbox.subscription
    assert "simulated" in subscription["displayName"]
    names = {
        each["name"]
        for each in sandbox.http("GET", f"/subscriptions/{sandbox.subscription}/locations{version}")[2]["value"]
    }
    assert {"southcentralus", "eastus"} <= names
    status, _, answer = sandbox.http("GET", f"/subscriptions/00000000-0000-0000-0000-000000000000{version}")
    assert (status, answer["error"]["code"]) == (404, "SubscriptionNotFound")
    assert sandbox.http("GET", "/metadata/endpoints?api-version=2022-09-01", token=False)[2]["resourceManager"]
