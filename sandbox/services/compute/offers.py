"""What Microsoft.Compute offers: sizes, quota, images."""

from __future__ import annotations

import re
from typing import Any

from gpuinfra.sandbox.catalogue import images, quota, skus
from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.cloud import Effects
from gpuinfra.sandbox.kernel.errors import ArmError, invalid_parameter
from gpuinfra.sandbox.kernel.routes import SUBSCRIPTION, Routes
from gpuinfra.sandbox.services.common import require_subscription
from gpuinfra.sandbox.services.compute.quota_use import limits, used

routes = Routes()
effects = Effects()

_COMPUTE = f"{SUBSCRIPTION}/providers/Microsoft.Compute"
_LOCATION = f"{_COMPUTE}/locations/{{location}}"
_PUBLISHERS = f"{_LOCATION}/publishers"
_OFFERS = f"{_PUBLISHERS}/{{publisher}}/artifacttypes/vmimage/offers"
_SKUS = f"{_OFFERS}/{{offer}}/skus"
_VERSIONS = f"{_SKUS}/{{sku}}/versions"


def _location(call: Call) -> str:
    require_subscription(call)
    region = call.cloud.catalogue.region(call["location"])
    if region is None:
        message = f"The provided location '{call['location']}' is not available for resource type 'Microsoft.Compute'."
        raise ArmError(400, "NoRegisteredProviderFound", message)
    return region.name


@routes.add("GET", f"{_COMPUTE}/skus")
def list_skus(call: Call) -> Answer:
    """Sizes and kinds of disk, with what holds them back, in one region or in all."""
    require_subscription(call)
    location = _filtered_location(call.query.get("$filter", ""))
    catalogue = call.cloud.catalogue
    restricted = {
        (region.name, str(fault.get("resource") or ""))
        for fault in call.cloud.faults.all()
        if fault["name"] == "restricted"
        for region in catalogue.regions()
        if not fault.get("region") or fault["region"].lower() == region.name
    }
    restrictions = {
        (region, size.name): "NotAvailableForSubscription"
        for region, name in restricted
        for size in catalogue.sizes()
        if not name or name.lower() == size.name.lower()
    }
    return Answer(200, {"value": skus.sku_items(catalogue, location, restrictions)})


def _filtered_location(text: str) -> str | None:
    if not text:
        return None
    found = re.fullmatch(r"\s*location\s+eq\s+'([^']*)'\s*", text, re.IGNORECASE)
    if not found:
        raise invalid_parameter("$filter", f"The filter '{text}' is not supported: location eq '…' is.")
    return found.group(1)


@routes.add("GET", f"{_LOCATION}/usages")
def list_usages(call: Call) -> Answer:
    """How much of each quota is used."""
    location = _location(call)
    cloud = call.cloud
    return Answer(
        200, {"value": quota.usage_items(cloud.catalogue, location, used(cloud, location), limits(cloud, location))}
    )


@routes.add("GET", f"{_LOCATION}/vmSizes")
def list_sizes(call: Call) -> Answer:
    """Sizes by the older list, which has no restrictions."""
    return Answer(200, {"value": skus.vm_sizes(call.cloud.catalogue, _location(call))})


@routes.add("GET", _PUBLISHERS)
def list_publishers(call: Call) -> Answer:
    """Publishers of marketplace images."""
    location = _location(call)
    return Answer(200, images.publisher_items(call.cloud.subscription, location))


@routes.add("GET", _OFFERS)
def list_offers(call: Call) -> Answer:
    """A publisher's offers."""
    location = _location(call)
    return Answer(200, images.offer_items(call.cloud.subscription, location, call["publisher"]))


@routes.add("GET", _SKUS)
def list_image_skus(call: Call) -> Answer:
    """An offer's kinds."""
    location = _location(call)
    return Answer(200, images.image_sku_items(call.cloud.subscription, location, call["publisher"], call["offer"]))


@routes.add("GET", _VERSIONS)
def list_versions(call: Call) -> Answer:
    """Versions of an image, ordered and cut as asked for."""
    location = _location(call)
    expand = "properties" in call.query.get("$expand", "").lower()
    found: list[Any] = images.version_items(
        call.cloud.subscription, location, call["publisher"], call["offer"], call["sku"], expand=expand
    )
    if call.query.get("$orderby", "").lower().endswith("desc"):
        found.reverse()
    top = call.query.get("$top")
    if top is not None:
        if not top.isdigit():
            raise invalid_parameter("$top", f"The value '{top}' of the query parameter $top is invalid.")
        found = found[: int(top)]
    return Answer(200, found)


@routes.add("GET", f"{_VERSIONS}/{{version}}")
def get_version(call: Call) -> Answer:
    """One image."""
    location = _location(call)
    found = images.image(call["publisher"], call["offer"], call["sku"], call["version"])
    if found is None:
        urn = ":".join(call[part] for part in ("publisher", "offer", "sku", "version"))
        message = f"Artifact: VMImage was not found: {urn}."
        raise ArmError(404, "NotFound", message)
    return Answer(200, images.image_body(found, call.cloud.subscription, location))
