"""The Retail Prices service, which needs no token: https://learn.microsoft.com/rest/api/cost-management/retail-prices."""

import hashlib
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote
from uuid import NAMESPACE_URL, uuid5

from gpuinfra.sandbox.catalogue.catalogue import Catalogue, Region, Size
from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.clock import stamp
from gpuinfra.sandbox.kernel.errors import ArmError
from gpuinfra.sandbox.kernel.routes import Service

service = Service()


@service.route("GET", "/api/retail/prices")
def _list_prices(call: Call) -> Answer:
    skip = call.query.get("$skip", "0")
    if not skip.isdigit():
        raise ArmError(400, "BadRequest", f"The value '{skip}' of $skip is invalid.")
    try:
        body = retail_page(
            call.cloud.catalogue, call.query.get("$filter", ""), int(skip), call.base_url, stamp(call.cloud.now)
        )
    except ValueError as error:
        raise ArmError(400, "BadRequest", str(error)) from None
    return Answer(200, body)


PAGE_SIZE = 1000
SERVICE_ID = "DZH313Z7MMC8"
# Filter fields whose name differs in the items.
ALIASES = {"priceType": "type"}
FIELDS = frozenset(
    """currencyCode tierMinimumUnits retailPrice unitPrice armRegionName location effectiveStartDate meterId meterName
    productId skuId availabilityId productName skuName serviceName serviceId serviceFamily unitOfMeasure type
    isPrimaryMeterRegion armSkuName""".split()
)
# One comparison, and the `and` before it where it is not the first. A quote inside a string is doubled.
COMPARISON = re.compile(
    r"\s*(?P<joined>and\s+)?(?P<field>\w+)\s+eq\s+(?P<value>'(?:[^']|'')*'|true|false|-?\d+(?:\.\d+)?)(?=\s|$)"
)

Value = str | bool | float


def retail_page(catalogue: Catalogue, filter_text: str, skip: int, base_url: str, now: str) -> dict[str, Any]:
    """Return a page of prices. `now` is a time in ISO 8601; prices are valid since the first of its month."""
    wanted = parse_filter(filter_text)
    since = f"{now[:7]}-01T00:00:00Z"
    found = [
        item
        for item in _items(catalogue, since, dict(wanted).get("armSkuName"))
        if all(field in item and item[field] == value for field, value in wanted)
    ]
    page = found[skip : skip + PAGE_SIZE]
    following = skip + PAGE_SIZE
    asked = f"$filter={quote(filter_text)}&" if filter_text.strip() else ""
    return {
        "BillingCurrency": "USD",
        "CustomerEntityId": "Default",
        "CustomerEntityType": "Retail",
        "Items": page,
        "NextPageLink": f"{base_url}?{asked}$skip={following}" if following < len(found) else None,
        "Count": len(page),
    }


def parse_filter(text: str) -> list[tuple[str, Value]]:
    """Return the comparisons of a filter: only `eq`, joined by `and`. Names and values are case-sensitive."""
    comparisons: list[tuple[str, Value]] = []
    position = 0
    while text[position:].strip():
        match = COMPARISON.match(text, position)
        if match is None or bool(match["joined"]) != bool(comparisons):
            rest = text[position:].strip()
            raise ValueError(f"Invalid OData filter near '{rest}': expected comparisons with `eq`, joined by `and`")
        field = ALIASES.get(match["field"], match["field"])
        if field not in FIELDS:
            raise ValueError(f"Invalid OData filter: there is no field '{match['field']}'")
        comparisons.append((field, _value(match["value"])))
        position = match.end()
    return comparisons


def _value(text: str) -> Value:
    if text.startswith("'"):
        return text[1:-1].replace("''", "'")
    return text == "true" if text in {"true", "false"} else float(text)


def _items(catalogue: Catalogue, since: str, name: Value | None) -> Iterator[dict[str, Any]]:
    """Yield every price, or only those of one size if its name is given: most requests name one."""
    for size in catalogue.sizes():
        if name not in {None, size.name}:
            continue
        series = catalogue.series_table[size.family]
        for region in catalogue.regions():
            price = catalogue.price(size.name, region.name)
            if price is None:
                continue
            windows = round(price + catalogue.windows_price_per_vcpu * size.vcpus, 6)
            # Azure lists all of these; clients distinguish them by the ends of their names.
            yield _item(catalogue, size, region, price, since, product=series.product)
            yield _item(catalogue, size, region, windows, since, product=series.windows_product)
            spot = catalogue.price(size.name, region.name, spot=True)
            if spot is not None:
                for suffix in (" Spot", " Low Priority"):
                    yield _item(catalogue, size, region, spot, since, product=series.product, suffix=suffix)


def _item(
    catalogue: Catalogue, size: Size, region: Region, price: float, since: str, *, product: str, suffix: str = ""
) -> dict[str, Any]:
    short = size.name.removeprefix("Standard_")
    arm_names = catalogue.series_table[size.family].arm_names
    meter_name = (short if arm_names else short.replace("_", " ")) + suffix
    product_id = f"DZH318Z{hashlib.sha256(product.encode()).hexdigest()[:5].upper()}"
    sku_name = (size.name + suffix) if arm_names else meter_name
    return {
        "currencyCode": "USD",
        "tierMinimumUnits": 0.0,
        "retailPrice": price,
        "unitPrice": price,
        "armRegionName": region.name,
        "location": region.price_location,
        "effectiveStartDate": since,
        "meterId": str(uuid5(NAMESPACE_URL, f"{region.name}/{product}/{meter_name}")),
        "meterName": meter_name,
        "productId": product_id,
        "skuId": f"{product_id}/{hashlib.sha256(sku_name.encode()).hexdigest()[:4].upper()}",
        "availabilityId": None,
        "productName": product,
        "skuName": sku_name,
        "serviceName": "Virtual Machines",
        "serviceId": SERVICE_ID,
        "serviceFamily": "Compute",
        "unitOfMeasure": "1 Hour",
        "type": "Consumption",
        "isPrimaryMeterRegion": True,
        "armSkuName": size.name,
    }
