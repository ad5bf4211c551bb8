"""The embedded Azure's catalogue, against recorded answers of Azure and its price list."""

import csv
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from gpuinfra.sandbox.catalogue.catalogue import Catalogue, Size, load_catalogue
from gpuinfra.sandbox.services import marketplace, retail_prices
from gpuinfra.sandbox.services.compute import images, quota, skus
from gpuinfra.sandbox.services.resources import providers

DATA = Path(__file__).parents[4] / "shared" / "data"
SUBSCRIPTION = "00000000-0000-0000-0000-000000000000"
NOW = "2026-11-16T03:00:00Z"
PRICES_URL = "https://localhost/api/retail/prices"
T4 = "Standard_NC4as_T4_v3"
A100 = "Standard_NC24ads_A100_v4"

needs_recordings = pytest.mark.skipif(not DATA.is_dir(), reason="the recorded answers are not next to this checkout")

# Keys that Azure answers and the catalogue does not, each with the reason.
NOT_MODELLED = {
    "authorizations[]": "which of Microsoft's own applications act for a provider",
    "authorizations[].applicationId": "as above",
    "authorizations[].roleDefinitionId": "as above",
    "authorizations[].managedByRoleDefinitionId": "as above",
    "resourceTypes[].apiProfiles": "profiles of Azure Stack",
    "resourceTypes[].apiProfiles[]": "as above",
    "resourceTypes[].apiProfiles[].profileVersion": "as above",
    "resourceTypes[].apiProfiles[].apiVersion": "as above",
    "resourceTypes[].locationMappings": "edge zones",
    "resourceTypes[].locationMappings[]": "as above",
    "resourceTypes[].locationMappings[].location": "as above",
    "resourceTypes[].locationMappings[].type": "as above",
    "resourceTypes[].locationMappings[].extendedLocations": "as above",
    "resourceTypes[].locationMappings[].extendedLocations[]": "as above",
}


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return load_catalogue()


def known(catalogue: Catalogue, name: str) -> Size:
    size = catalogue.size(name)
    assert size
    return size


def recorded(name: str) -> Any:
    return json.loads((DATA / "arm-golden" / name).read_text("utf-8"))


def shape(value: Any) -> dict[str, set[str]]:
    """Each key by its path, items of a list taken together, with the JSON types it has."""
    found: dict[str, set[str]] = defaultdict(set)

    def visit(part: Any, path: str) -> None:
        if path:
            found[path].add("number" if type(part) in {int, float} else type(part).__name__)
        if isinstance(part, dict):
            for key, inner in part.items():
                visit(inner, f"{path}.{key}" if path else key)
        elif isinstance(part, list):
            for inner in part:
                visit(inner, f"{path}[]")

    visit(value, "")
    return found


def assert_same_shape(ours: Any, theirs: Any) -> None:
    mine = shape(ours)
    wanted = {path: kinds for path, kinds in shape(theirs).items() if path not in NOT_MODELLED}
    assert {path: mine.get(path) for path in wanted} == wanted


def capabilities(item: dict[str, Any]) -> dict[str, str]:
    return {capability["name"]: capability["value"] for capability in item["capabilities"]}


# Regions, sizes, prices


@needs_recordings
def test_prices_match_the_price_list(catalogue: Catalogue) -> None:
    with (DATA / "nc_prices_2026-06.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    listed = {
        (row["InstanceType"], row["Region"]): float(row["OnDemandLinuxUSDPerHour"])
        for row in rows
        if catalogue.size(row["InstanceType"])
    }
    offered = {
        (size.name, region.name): catalogue.price(size.name, region.name)
        for size in catalogue.sizes()
        for region in catalogue.regions()
        if size.gpu and catalogue.offered(size.name, region.name)
    }
    assert offered == listed
    assert {row["Region"] for row in rows} <= {region.name for region in catalogue.regions()}


def test_every_size_is_offered_and_has_a_quota(catalogue: Catalogue) -> None:
    quotas = {item.name for item in catalogue.quotas}
    for size in catalogue.sizes():
        assert any(catalogue.offered(size.name, region.name) for region in catalogue.regions())
        assert size.family in quotas
        assert size.family in catalogue.series_table
    priced = set(catalogue.price_table)
    assert {size for size, _ in priced} == set(catalogue.size_table)
    assert {region for _, region in priced} <= set(catalogue.region_table)


@pytest.mark.parametrize("region", ["southcentralus", "South Central US", "SOUTHCENTRALUS", "south central us"])
@pytest.mark.parametrize("size", [A100, A100.lower(), A100.upper()])
def test_names_are_found_in_any_case(catalogue: Catalogue, region: str, size: str) -> None:
    assert known(catalogue, size).name == A100
    found = catalogue.region(region)
    assert found
    assert found.name == "southcentralus"
    assert found.display_name == "South Central US"
    assert catalogue.offered(size, region)
    assert catalogue.price(size, region) == catalogue.price(A100, "southcentralus")
    assert catalogue.zones(region) == ("1", "2", "3")


def test_sizes_that_are_not_offered_have_no_price(catalogue: Catalogue) -> None:
    assert catalogue.size("Standard_NC6s_v3") is None
    assert not catalogue.offered("Standard_NC6s_v3", "eastus")
    assert not catalogue.offered(A100, "japanwest")
    assert catalogue.price(A100, "japanwest") is None
    assert catalogue.price(A100, "atlantis") is None
    assert catalogue.region("atlantis") is None
    assert catalogue.zones("atlantis") == ()
    assert catalogue.price("Standard_B1s", "eastus", spot=True) is None


def test_spot_price_is_a_fraction_of_the_list_price(catalogue: Catalogue) -> None:
    assert catalogue.price(T4, "eastus") == 0.526
    assert catalogue.price(T4, "eastus", spot=True) == pytest.approx(0.526 * 0.3)


def test_part_of_a_gpu_is_one_device(catalogue: Catalogue) -> None:
    gpu = known(catalogue, "Standard_NC36ds_xl_RTXPRO6000BSE_v6").gpu
    assert gpu
    assert (gpu.model, gpu.count, gpu.devices) == ("RTXPRO6000", 0.25, 1)
    assert known(catalogue, "Standard_D2s_v5").gpu is None


def test_disk_is_billed_as_the_next_larger_tier(catalogue: Catalogue) -> None:
    found = catalogue.disk_tier("premium_lrs", 150)
    assert found
    assert (found.tier, found.size_gib) == ("P15", 256)
    assert catalogue.disk_tier("Standard_LRS", 4) == catalogue.disk_tier("Standard_LRS", 32)
    assert catalogue.disk_tier("Premium_LRS", 40000) is None


# SKUs


@needs_recordings
def test_skus_have_the_recorded_shape_and_values(catalogue: Catalogue) -> None:
    theirs = {item["name"]: item for item in recorded("resource_skus_nc_southcentralus_2025-06.json")["value"]}
    items = skus.sku_items(catalogue, "southcentralus", {})
    for name in ("Standard_NC16as_T4_v3", A100):
        ours = next(item for item in items if item["name"] == name)
        assert_same_shape(ours, theirs[name])
        assert capabilities(ours) == capabilities(theirs[name])
        assert list(ours) == list(theirs[name])
        assert (ours["family"], ours["size"]) == (theirs[name]["family"], theirs[name]["size"])


@needs_recordings
def test_restriction_has_the_recorded_shape(catalogue: Catalogue) -> None:
    theirs = recorded("resource_skus_examples_2018.json")["restricted_examples"][0]
    ours = [
        item
        for item in skus.sku_items(catalogue, "East US", {("EastUS", A100.lower()): "NotAvailableForSubscription"})
        if item["restrictions"]
    ]
    assert [item["name"] for item in ours] == [A100]
    assert ours[0]["restrictions"] == theirs["restrictions"]
    assert_same_shape(ours[0], theirs)


def test_skus_of_one_region_or_of_all(catalogue: Catalogue) -> None:
    one = skus.sku_items(catalogue, "japanwest", {})
    assert {item["locations"][0] for item in one} == {"japanwest"}
    machines = {item["name"] for item in one if item["resourceType"] == "virtualMachines"}
    assert {name for name in machines if "_NC" in name} == {
        size.name for size in catalogue.sizes() if size.gpu and size.gpu.model == "T4"
    }
    disks = {item["name"] for item in one if item["resourceType"] == "disks"}
    assert disks == {"Standard_LRS", "StandardSSD_LRS", "Premium_LRS", "StandardSSD_ZRS", "Premium_ZRS"}
    everywhere = skus.sku_items(catalogue, None, {})
    assert {item["locations"][0] for item in everywhere} == {region.name for region in catalogue.regions()}
    assert skus.sku_items(catalogue, "atlantis", {}) == []


def test_gpus_are_counted_in_whole_numbers(catalogue: Catalogue) -> None:
    items = {item["name"]: capabilities(item) for item in skus.sku_items(catalogue, "eastus", {})}
    assert items["Standard_NC36ds_xl_RTXPRO6000BSE_v6"]["GPUs"] == "1"
    assert items["Standard_NC96ads_A100_v4"]["GPUs"] == "4"
    assert items["Standard_NC96ads_A100_v4"]["HyperVGenerations"] == "V2"
    assert "GPUs" not in items["Standard_D2s_v5"]
    assert items["Standard_DS1_v2"]["MemoryGB"] == "3.5"


@needs_recordings
def test_vm_sizes_are_as_recorded(catalogue: Catalogue) -> None:
    theirs = {item["name"]: item for item in recorded("vmsizes_200.json")["response_body"]["value"]}
    ours = {item["name"]: item for item in skus.vm_sizes(catalogue, "West US")}
    both = ours.keys() & theirs.keys()
    assert {T4, A100, "Standard_NC40ads_H100_v5", "Standard_B1s", "Standard_D2s_v5", "Standard_DS1_v2"} <= both
    assert {name: ours[name] for name in both} == {name: theirs[name] for name in both}


# Quotas


@needs_recordings
def test_usages_have_the_recorded_shape_and_names(catalogue: Catalogue) -> None:
    theirs = recorded("compute_usages_200.json")["response_body"]["value"]
    ours = quota.usage_items(catalogue, "westus", {}, {})
    assert_same_shape(ours, theirs)
    names = {item["name"]["value"]: item["name"] for item in theirs}
    # Newer than the recording.
    newer = {"standardNCCadsH100v5Family", "StandardNCRTXPRO6000BSEv6Family"}
    assert [item["name"] for item in ours if item["name"] != names.get(item["name"]["value"])] == [
        item["name"] for item in ours if item["name"]["value"] in newer
    ]
    assert {name for name in names if "NC" in name} <= {item["name"]["value"] for item in ours}


def test_usages_show_use_and_limits(catalogue: Catalogue) -> None:
    items = quota.usage_items(catalogue, "East US", {"cores": 28}, {"Standard NCASv3_T4 Family": 7})
    found = {item["name"]["value"]: (item["currentValue"], item["limit"]) for item in items}
    assert found["cores"] == (28, 400)
    assert found["Standard NCASv3_T4 Family"] == (0, 7)
    assert quota.usage_items(catalogue, "atlantis", {}, {}) == []


@pytest.mark.parametrize(
    ("spot", "used", "limits", "short"),
    [
        (False, {}, {}, None),
        (False, {}, {"cores": 24, "StandardNCADSA100v4Family": 24}, None),
        (False, {"StandardNCADSA100v4Family": 73}, {}, ("StandardNCADSA100v4Family", 96, 73, 97)),
        (False, {}, {"cores": 23, "StandardNCADSA100v4Family": 0}, ("cores", 23, 0, 24)),
        (False, {"cores": 90}, {"cores": 100}, ("cores", 100, 90, 114)),
        (True, {"cores": 400}, {"StandardNCADSA100v4Family": 0}, None),
        (True, {"lowPriorityCores": 10}, {"lowPriorityCores": 20}, ("lowPriorityCores", 20, 10, 34)),
    ],
)
def test_missing_quota_is_the_first_exceeded(
    catalogue: Catalogue,
    spot: bool,
    used: dict[str, int],
    limits: dict[str, int],
    short: tuple[str, int, int, int] | None,
) -> None:
    found = quota.missing_quota(catalogue, known(catalogue, A100), "eastus", spot, used, limits)
    assert (found and (found.quota, found.limit, found.used, found.new_limit)) == short
    assert found is None or found.required == 24


@pytest.mark.parametrize(
    ("name", "subject"),
    [
        ("cores", "Total Regional Cores"),
        ("lowPriorityCores", "LowPriorityCores"),
        ("standardDASv5Family", "standardDASv5Family Cores"),
    ],
)
def test_quota_error_has_azures_message(name: str, subject: str) -> None:
    message = quota.quota_message(quota.QuotaShortfall(name, "eastus", 100, 96, 64))
    assert message.startswith(
        f"Operation could not be completed as it results in exceeding approved {subject} quota. Additional details - "
        "Deployment Model: Resource Manager, Location: eastus, Current Limit: 100, Current Usage: 96, "
        "Additional Required: 64, (Minimum) New Limit Required: 160."
    )


# Images


@needs_recordings
@pytest.mark.parametrize("name", ["vmimage_get_200.json", "vmimage_with_plan_get_200.json"])
def test_image_has_the_recorded_shape(name: str) -> None:
    recording = recorded(name)
    theirs = recording["response_body"]
    parts = theirs["id"].split("/")
    found = images.image(parts[8], parts[12], parts[14], parts[16])
    assert found
    ours = images.image_body(found, SUBSCRIPTION, "westus")
    assert_same_shape(ours, theirs)
    assert ours["properties"].get("plan") == theirs["properties"].get("plan")
    assert (ours["id"], ours["name"], ours["location"]) == (theirs["id"], theirs["name"], theirs["location"])


@needs_recordings
def test_lists_of_images_have_the_recorded_shape() -> None:
    theirs = recorded("vmimage_skus_200.json")["response_body"]
    ours = images.image_sku_items(SUBSCRIPTION, "westus", "Canonical", "UbuntuServer")
    assert_same_shape(ours, theirs)
    assert next(item for item in theirs if item["name"] == "18.04-LTS")["id"] == ours[0]["id"]


def test_images_are_found_in_any_case() -> None:
    latest = images.image("Microsoft-DSVM", "Ubuntu-2204", "2204-GEN2", "Latest")
    assert latest
    assert (latest.publisher, latest.offer, latest.sku) == ("microsoft-dsvm", "ubuntu-2204", "2204-gen2")
    assert (latest.version, latest.generation, latest.size_gib, latest.plan) == ("25.06.18", "V2", 150, None)
    assert images.image("microsoft-dsvm", "ubuntu-2204", "2204-gen2", "1.0.0") is None
    assert images.image("microsoft-dsvm", "ubuntu-1804", "1804") is None
    jammy = images.find_images("canonical", "0001-COM-ubuntu-server-jammy", "22_04-lts-gen2")
    assert jammy[0].versions[-1] == "22.04.202506200"
    assert [line.sku for line in images.find_images("microsoft-dsvm", "UBUNTU-2004")] == ["2004", "2004-gen2"]


def test_image_lists_can_be_followed_to_a_version() -> None:
    for publisher in images.publisher_items(SUBSCRIPTION, "eastus"):
        for offer in images.offer_items(SUBSCRIPTION, "eastus", publisher["name"]):
            for sku in images.image_sku_items(SUBSCRIPTION, "eastus", publisher["name"], offer["name"]):
                names = (publisher["name"], offer["name"], sku["name"])
                plain = images.version_items(SUBSCRIPTION, "eastus", *names)
                full = images.version_items(SUBSCRIPTION, "eastus", *names, expand=True)
                assert [set(item) for item in plain] == [{"location", "name", "id"}] * len(full)
                assert [item["name"] for item in full] == sorted(images.find_images(*names)[0].versions)
                assert all(item["id"].startswith(sku["id"]) for item in full)


@needs_recordings
def test_terms_have_the_recorded_shape() -> None:
    theirs = recorded("marketplace_terms_get.json")["response_body"]
    plan = marketplace.find_plan("fortinet", "fortinet_fortigate-vm_v5", "fortinet_fg-vm_payg")
    assert plan
    ours = marketplace.terms_body(plan, SUBSCRIPTION, accepted=True, now=NOW)
    assert_same_shape(ours, theirs)
    assert ours["id"] == theirs["id"]
    assert marketplace.terms_body(plan, SUBSCRIPTION, accepted=False, now=NOW)["properties"]["accepted"] is False
    assert marketplace.find_plan("Canonical", "UbuntuServer", "18.04-LTS") is None


# Providers


@needs_recordings
def test_provider_has_the_recorded_shape(catalogue: Catalogue) -> None:
    theirs = recorded("provider_get_microsoft_network.json")["response_body"]
    ours = providers.provider_body(catalogue, "microsoft.network", SUBSCRIPTION, "Registered")
    assert ours
    assert_same_shape(ours, theirs)
    assert ours["id"] == theirs["id"]
    types = {item["resourceType"] for item in theirs["resourceTypes"]}
    children = {"virtualNetworks/subnets", "networkSecurityGroups/securityRules"}
    assert {item["resourceType"] for item in ours["resourceTypes"]} - children <= types


def test_provider_shows_its_registration(catalogue: Catalogue) -> None:
    for namespace in providers.NAMESPACES:
        body = providers.provider_body(catalogue, namespace.name.upper(), SUBSCRIPTION, "NotRegistered")
        assert body
        assert body["registrationState"] == ("Registered" if namespace.free else "NotRegistered")
        assert all(list(item["apiVersions"]) for item in body["resourceTypes"])
    assert providers.provider_body(catalogue, "Microsoft.Nothing", SUBSCRIPTION, "Registered") is None


# Retail prices

KARPENTER = (
    "priceType eq 'Consumption' and currencyCode eq 'USD' and serviceFamily eq 'Compute' "
    "and serviceName eq 'Virtual Machines' and armRegionName eq 'eastus'"
)


def prices(catalogue: Catalogue, filter_text: str) -> list[dict[str, Any]]:
    page = retail_prices.retail_page(catalogue, filter_text, 0, PRICES_URL, NOW)
    assert page["NextPageLink"] is None
    assert page["Count"] == len(page["Items"])
    items: list[dict[str, Any]] = page["Items"]
    return items


def test_retail_prices_match_the_catalogue(catalogue: Catalogue) -> None:
    on_demand: dict[str, float] = {}
    spot: dict[str, float] = {}
    for item in prices(catalogue, KARPENTER):
        if item["productName"].endswith(" Windows") or item["skuName"].endswith(" Low Priority"):
            continue
        (spot if item["skuName"].endswith(" Spot") else on_demand)[item["armSkuName"]] = item["retailPrice"]
    sizes = [size.name for size in catalogue.sizes() if catalogue.offered(size.name, "eastus")]
    assert on_demand == {size: catalogue.price(size, "eastus") for size in sizes}
    assert spot == {size: catalogue.price(size, "eastus", spot=True) for size in sizes if size != "Standard_B1s"}


def test_retail_items_have_azures_names(catalogue: Catalogue) -> None:
    items = prices(catalogue, f"armSkuName eq '{T4}' and armRegionName eq 'eastus' and meterName eq 'NC4as T4 v3 Spot'")
    assert [(item["skuName"], item["productName"], item["location"]) for item in items] == [
        ("NC4as T4 v3 Spot", "Virtual Machines NCasT4 v3 Series", "US East")
    ]
    assert items[0]["effectiveStartDate"] == "2026-11-01T00:00:00Z"
    assert items[0].keys() == retail_prices.FIELDS
    items = prices(catalogue, "skuName eq 'Standard_NC24ads_A100_v4' and armRegionName eq 'eastus'")
    assert {item["meterName"] for item in items} == {"NC24ads_A100_v4"}


def test_retail_pages_link_to_the_next(catalogue: Catalogue) -> None:
    wanted = "serviceName eq 'Virtual Machines'"
    skip, meters = 0, []
    while True:
        page = retail_prices.retail_page(catalogue, wanted, skip, PRICES_URL, NOW)
        meters += [item["meterId"] for item in page["Items"]]
        if page["NextPageLink"] is None:
            break
        assert page["Count"] == retail_prices.PAGE_SIZE
        skip += retail_prices.PAGE_SIZE
        assert page["NextPageLink"] == (
            f"{PRICES_URL}?$filter=serviceName%20eq%20%27Virtual%20Machines%27&$skip={skip}"
        )
    assert skip
    assert len(set(meters)) == len(meters)


def test_filter_values_are_case_sensitive(catalogue: Catalogue) -> None:
    assert prices(catalogue, "serviceName eq 'virtual machines'") == []
    assert prices(catalogue, f"armSkuName eq '{T4.lower()}'") == []
    assert prices(catalogue, f"armSkuName eq '{T4}' and isPrimaryMeterRegion eq true")


@pytest.mark.parametrize(
    ("text", "comparisons"),
    [
        ("", []),
        ("  type eq 'x'  ", [("type", "x")]),
        ("skuName eq 'it''s and eq'", [("skuName", "it's and eq")]),
        (
            "tierMinimumUnits eq 0 and isPrimaryMeterRegion eq false",
            [("tierMinimumUnits", 0.0), ("isPrimaryMeterRegion", False)],
        ),
    ],
)
def test_filter_is_parsed(text: str, comparisons: list[tuple[str, object]]) -> None:
    assert retail_prices.parse_filter(text) == comparisons


@pytest.mark.parametrize(
    "text",
    [
        "armRegionName",
        "armRegionName eq eastus",
        "armRegionName eq 'eastus",
        "armRegionName ne 'eastus'",
        "armRegionName eq 'eastus' or armRegionName eq 'westus'",
        "armRegionName eq 'eastus' armSkuName eq 'x'",
        "and armRegionName eq 'eastus'",
        "armRegionName eq 'eastus' and",
        "contains(armSkuName, 'NC')",
        "(armRegionName eq 'eastus')",
        "armregionname eq 'eastus'",
        "armRegionName eq 'eastus'x",
    ],
)
def test_invalid_price_filter_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="Invalid OData filter"):
        retail_prices.parse_filter(text)
