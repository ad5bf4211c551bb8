"""Azure's offers: sizes, quota, permissions, prices."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from gpuinfra.models.sizes import Quota, Rate
from gpuinfra.provision.azure import market
from gpuinfra.provision.azure.prices import Cache, PriceService, cache_folder, rates_of
from gpuinfra.provision.market import UNKNOWN_PERMISSIONS, Catalogue, Grant, Permissions, Prices


def sku(name: str = "Standard_NC24ads_A100_v4", **changes: Any) -> dict[str, Any]:
    """An entry in Azure's format, with the relevant capabilities only."""
    capabilities = {"vCPUs": "24", "MemoryGB": "220", "GPUs": "1", "HyperVGenerations": "V2"}
    return {
        "resourceType": "virtualMachines",
        "name": name,
        "family": "StandardNCADSA100v4Family",
        "locations": ["SouthCentralUS"],
        "locationInfo": [{"location": "SouthCentralUS", "zones": ["3", "1"], "zoneDetails": []}],
        "capabilities": [
            *({"name": each, "value": value} for each, value in capabilities.items()),
            {"name": "LowPriorityCapable", "value": "True"},
        ],
        "restrictions": [],
        **changes,
    }


def test_size_is_read_from_its_capabilities() -> None:
    offer = market.offers([sku()])["Standard_NC24ads_A100_v4", "southcentralus"]
    assert (offer.vcpus, offer.memory_gib, offer.gpus, offer.family) == (24, 220, 1, "StandardNCADSA100v4Family")
    assert (offer.zones, offer.generations, offer.spot_capable) == (("1", "3"), ("V2",), True)
    assert (offer.restriction, offer.restricted_zones) == (None, ())


@pytest.mark.parametrize(("value", "supported"), [("True", False), ("False", True)])
def test_size_without_trusted_launch_is_read(value: str, supported: bool) -> None:
    (plain,) = market.offers([sku()]).values()
    (limited,) = market.offers([sku(capabilities=[{"name": "TrustedLaunchDisabled", "value": value}])]).values()
    assert (plain.trusted_launch, limited.trusted_launch) == (True, supported)


def test_only_nc_sizes_are_kept() -> None:
    others = [sku("Standard_D2s_v5"), sku("Standard_ND96asr_v4"), sku(resourceType="disks"), {"name": None}]
    assert list(market.offers([*others, sku("standard_nc4AS_t4_v3")])) == [("standard_nc4AS_t4_v3", "southcentralus")]


@pytest.mark.parametrize(
    ("restriction", "expected"),
    [
        (
            {
                "type": "Location",
                "values": ["southcentralus"],
                "restrictionInfo": {"locations": ["southcentralus"]},
                "reasonCode": "NotAvailableForSubscription",
            },
            ("NotAvailableForSubscription", ()),
        ),
        ({"type": "Location", "values": ["eastus"], "restrictionInfo": {"locations": ["eastus"]}}, (None, ())),
        (
            {
                "type": "Zone",
                "values": ["southcentralus"],
                "restrictionInfo": {"locations": ["southcentralus"], "zones": ["3", "2"]},
                "reasonCode": "NotAvailableForSubscription",
            },
            (None, ("2", "3")),
        ),
        ({"type": "Zone", "values": ["1"]}, (None, ("1",))),
        ({"type": "Zone", "restrictionInfo": {"locations": ["eastus"], "zones": ["1"]}}, (None, ())),
    ],
)
def test_restrictions_apply_to_a_region_or_its_zones(restriction: dict[str, Any], expected: Any) -> None:
    offer = market.offers([sku(restrictions=[restriction])])["Standard_NC24ads_A100_v4", "southcentralus"]
    assert (offer.restriction, offer.restricted_zones) == expected


def test_empty_entry_offers_nothing() -> None:
    bare = {"resourceType": "virtualMachines", "name": "Standard_NC1", "locations": ["eastus"]}
    (offer,) = market.offers([bare]).values()
    assert (offer.vcpus, offer.gpus, offer.zones, offer.generations, offer.spot_capable) == (0, 0, (), (), False)


@pytest.mark.parametrize("family", ["Standard NCASv3_T4 Family", "StandardNCASv3_T4Family", "standardncasv3_t4family"])
def test_quota_is_found_by_any_spelling_of_its_family(family: str) -> None:
    items: list[dict[str, Any]] = [
        {"limit": 64, "currentValue": 60, "name": {"value": "Standard NCASv3_T4 Family"}},
        {"limit": 100, "currentValue": 120, "name": {"value": "cores"}},
        {"limit": 8, "currentValue": 0, "name": {"value": "lowPriorityCores"}},
    ]
    catalogue = Catalogue("eastus", quotas=market.quotas(items))
    found = catalogue.quota(family)
    assert found == Quota("Standard NCASv3_T4 Family", 64, 60)
    assert found.left == 4
    assert catalogue.cores is not None
    assert catalogue.cores.left == 0
    assert catalogue.spot_cores == Quota("lowPriorityCores", 8, 0)
    assert catalogue.quota("unheard of") is None


READ, WRITE = "Microsoft.Compute/virtualMachines/read", "Microsoft.Compute/virtualMachines/write"


@pytest.mark.parametrize(
    ("grants", "action", "allowed"),
    [
        ([Grant(("*",))], WRITE, True),
        ([Grant(("*/read",))], READ, True),
        ([Grant(("*/read",))], WRITE, False),
        ([Grant(("microsoft.compute/VIRTUALMACHINES/*",))], WRITE, True),
        ([Grant(("Microsoft.Compute/*/write",))], WRITE, True),
        ([Grant((WRITE,))], f"{WRITE}x", False),
        ([Grant(("Microsoft.Compute.virtualMachines/write",))], WRITE, False),
        ([Grant(("*",), ("*/write",))], WRITE, False),
        ([Grant(("*",), ("*/write",)), Grant((WRITE,))], WRITE, True),
        ([], READ, False),
    ],
)
def test_not_actions_are_subtracted_from_a_role(grants: list[Grant], action: str, allowed: bool) -> None:
    assert Permissions(tuple(grants)).allows(action) is allowed


def test_unknown_permissions_allow_everything() -> None:
    assert UNKNOWN_PERMISSIONS.allows(WRITE)


def price(retail: float, **changes: Any) -> dict[str, Any]:
    return {
        "currencyCode": "USD",
        "retailPrice": retail,
        "armRegionName": "eastus",
        "effectiveStartDate": "2026-06-01T00:00:00Z",
        "meterName": "NC4as T4 v3",
        "productName": "Virtual Machines NCasT4 v3 Series",
        "skuName": "NC4as T4 v3",
        "unitOfMeasure": "1 Hour",
        "armSkuName": "Standard_NC4as_T4_v3",
        **changes,
    }


def test_prices_are_for_linux() -> None:
    items = [
        price(0.7, productName="Virtual Machines NCasT4 v3 Series Windows"),
        price(0.8, productName="NCads H100 v5 Series Win"),
        price(0.1, skuName="NC4as T4 v3 Low Priority"),
        price(0.1, meterName="NC4as T4 v3 Low Priority"),
        price(0.9, productName="NCasT4 v3 Series CloudServices"),
        price(0.2, skuName="NC4as T4 v3 Spot"),
        price(0.5, effectiveStartDate="2024-06-01T00:00:00Z"),
        price(0.526),
        price(0.5, effectiveStartDate="2025-06-01T00:00:00Z"),
        price(400, unitOfMeasure="1 Year"),
        price(0.4, currencyCode="EUR"),
        price(0.6, armRegionName=""),
        price(0.631, armRegionName="southcentralus"),
    ]
    assert rates_of(items) == {"eastus": Rate(0.526, 0.2), "southcentralus": Rate(0.631, None)}


class FakePriceService:
    """A price service that answers from a table, and counts requests."""

    def __init__(self, *pages: Mapping[str, Any] | Exception) -> None:
        self.pages, self.links = list(pages), list[str]()

    def __call__(self, link: str) -> Mapping[str, Any]:
        self.links.append(link)
        page = self.pages.pop(0)
        if isinstance(page, Exception):
            raise page
        return page


ENDPOINT = "https://prices.example.com/api/retail/prices"
SIZE = "Standard_NC4as_T4_v3"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_price_is_requested_once_and_cached_for_a_day(tmp_path: Path) -> None:
    more = "https://prices.example.com:443/api/retail/prices?$skip=1000"
    prices_service = FakePriceService(
        {"Items": [price(0.526)], "NextPageLink": more},
        {"Items": [price(0.2, skuName="NC4as T4 v3 Spot")], "NextPageLink": None},
    )
    service = PriceService(ENDPOINT, fetch=prices_service)
    expected = Prices({(SIZE, "eastus"): Rate(0.526, 0.2)})
    assert service.prices([SIZE, SIZE]) == expected
    assert service.prices([SIZE]) == expected
    first, second = prices_service.links
    assert f"armSkuName eq '{SIZE}'" in parse_qs(urlsplit(first).query)["$filter"][0]
    assert second == more
    again = FakePriceService({"Items": []})
    assert PriceService(ENDPOINT, fetch=again).prices([SIZE]).price(SIZE, "eastus", spot=True) == 0.2
    assert again.links == []
    kept = tmp_path / "cache" / "gpuinfra" / "prices-prices.example.com.json"
    os.utime(kept, (1, 1))
    assert PriceService(ENDPOINT, fetch=again).prices([SIZE]) == Prices()
    assert len(again.links) == 1


def test_rewritten_cache_keeps_its_age(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "prices.json", now=lambda: 100_000)
    cache.write({SIZE: {"eastus": Rate(1.0)}})
    os.utime(cache.path, (50_000, 50_000))
    cache.write({SIZE: {"eastus": Rate(1.0)}, "Standard_NC8as_T4_v3": {"eastus": Rate(2.0, 0.5)}})
    assert cache.path.stat().st_mtime == 50_000
    assert cache.read()["Standard_NC8as_T4_v3"] == {"eastus": Rate(2.0, 0.5)}
    assert Cache(cache.path, now=lambda: 50_000 + 86_400).read() == {}
    assert Cache(cache.path, now=lambda: 49_000).read() == {}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"sizes": {"a": 1}}', '{"sizes": {"a": {"b": ["x", null]}}}'])
def test_broken_cache_is_ignored(tmp_path: Path, text: str) -> None:
    path = tmp_path / "prices.json"
    path.write_text(text, "utf-8")
    os.utime(path, (100, 100))
    assert Cache(path, now=lambda: 100).read() == {}


def test_unwritable_cache_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be", "utf-8")
    prices_service = FakePriceService({"Items": [price(0.526)]})
    assert PriceService(ENDPOINT, fetch=prices_service).prices([SIZE]).price(SIZE, "eastus") == 0.526


@pytest.mark.parametrize("host", ["localhost:1234", "127.0.0.1"])
def test_prices_of_a_loopback_server_are_not_cached(tmp_path: Path, host: str) -> None:
    service = PriceService(f"https://{host}/api/retail/prices", fetch=FakePriceService({"Items": [price(0.526)]}))
    assert service.prices([SIZE]).price(SIZE, "eastus") == 0.526
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    "page",
    [
        OSError("no route to host"),
        json.JSONDecodeError("no", "", 0),
        {},
        {"Items": [{"armRegionName": "eastus", "currencyCode": "USD", "unitOfMeasure": "1 Hour"}]},
        {"Items": [], "NextPageLink": "https://elsewhere.example.com/"},
    ],
)
def test_price_failure_is_not_an_error(page: Any) -> None:
    assert PriceService(ENDPOINT, fetch=FakePriceService(page)).prices([SIZE]) == Prices()


def test_no_price_service_means_no_prices() -> None:
    assert PriceService(None).prices([SIZE]).price(SIZE, "eastus") is None


def test_prices_are_requested_over_tls_only() -> None:
    assert PriceService("http://prices.example.com").prices([SIZE]) == Prices()


def test_relative_cache_folder_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", "/home/alice")
    assert cache_folder() == Path("/home/alice/.cache/gpuinfra")
