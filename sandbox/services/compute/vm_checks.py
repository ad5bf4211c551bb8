"""Whether Azure would allocate a VM: its size, zone, quota, image, plan and price."""

import math
from typing import Any

from gpuinfra.sandbox.catalogue.catalogue import Size
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import ArmError, invalid_parameter
from gpuinfra.sandbox.kernel.routes import ResourceId, parse_id
from gpuinfra.sandbox.services.common import section
from gpuinfra.sandbox.services.compute.fields import choice, not_allowed, required, text
from gpuinfra.sandbox.services.compute.images import Image, image
from gpuinfra.sandbox.services.compute.quota import draws_on, limits, missing_quota, quota_message, used
from gpuinfra.sandbox.services.marketplace import terms_setting

SPOT = ("Spot", "Low")
"""`Low` is the older name of `Spot`; Azure keeps it as sent."""


def check_size(cloud: Cloud, properties: dict[str, Any], location: str) -> Size:
    """Return the size, if the region offers it to this subscription."""
    name = text(section(properties, "hardwareProfile").get("vmSize"), "vmSize")
    if not name:
        raise required("hardwareProfile.vmSize")
    size = cloud.catalogue.size(name)
    if size is None:
        valid = [one.name for one in cloud.catalogue.sizes() if cloud.catalogue.offered(one.name, location)]
        raise invalid_parameter(
            "vmSize",
            f"The value {name} provided for the VM size is not valid. The valid sizes in the current region are: "
            f"{','.join(valid)}. Find out more on the valid VM sizes in each region at https://aka.ms/azure-regions.",
        )
    # The fault `restricted` names a size where other faults name a resource.
    restricted = str(ResourceId(cloud.subscription, "any", "Microsoft.Compute", (("virtualMachines", size.name),)))
    if not cloud.catalogue.offered(size.name, location) or cloud.faults.look(
        "restricted", resource_id=restricted, region=location
    ):
        raise ArmError(
            409,
            "SkuNotAvailable",
            f"The requested VM size for resource 'Following SKUs have failed for Capacity Restrictions: {size.name}' "
            f"is currently not available in location '{location}'. Please try another size or deploy to a different "
            "location or different zone. See https://aka.ms/azureskunotavailable for details.",
        )
    return size


def check_zones(cloud: Cloud, body: dict[str, Any], vm_id: str, location: str, api_version: str) -> list[str]:
    """Return the zones: at most one, and one of the region's."""
    zones = section(body, "zones", list)
    if not zones:
        return []
    valid = cloud.catalogue.zones(location)
    if not valid:
        raise ArmError(
            400,
            "ResourceTypeNotSupportAvailabilityZones",
            f"The resource type 'virtualMachines' does not support availability zones at location '{location}' and "
            f"api-version '{api_version}'.",
        )
    named = ",".join(str(zone) for zone in zones)
    if any(zone not in valid for zone in zones):
        raise ArmError(
            400,
            "InvalidAvailabilityZone",
            f"The zone(s) '{named}' for resource 'Microsoft.Compute/virtualMachines/{parse_id(vm_id).name}' is "
            f"not supported. The supported zones for location '{location}' are '{','.join(valid)}'",
        )
    if len(zones) > 1:
        raise invalid_parameter("zones", f"A virtual machine is in one zone: the zones '{named}' are too many.")
    return list(zones)


def check_image(reference: dict[str, Any], location: str) -> Image:
    """Return the marketplace image that the body names."""
    image_id = text(reference.get("id"), "imageReference.id")
    if image_id:
        message = f"The Image '{image_id}' cannot be found in '{location}' region."
        raise ArmError(404, "ImageNotFound", message, target="imageReference")
    parts = {}
    for name in ("publisher", "offer", "sku", "version"):
        value = text(reference.get(name), f"imageReference.{name}")
        if not value:
            raise required(f"imageReference.{name}")
        parts[name] = value
    found = image(parts["publisher"], parts["offer"], parts["sku"], parts["version"])
    if found is None:
        raise ArmError(
            404,
            "PlatformImageNotFound",
            f"The platform image '{':'.join(parts.values())}' is not available. Verify that all fields in the storage "
            "profile are correct. For more details about storage profile information, please refer to "
            "https://aka.ms/storageprofile",
            target="imageReference",
        )
    return found


def check_plan(cloud: Cloud, body: dict[str, Any], vm_id: str, found: Image | None) -> dict[str, str] | None:
    """Return the image's purchase plan; its terms have to be accepted."""
    plan = found.plan if found else None
    given = section(body, "plan")
    names = {name: text(given.get(name), f"plan.{name}") or "" for name in ("name", "publisher", "product")}
    if plan is None:
        if any(names.values()):
            raise _invalid_plan(
                "The image of the virtual machine is not sold by a plan: Plan information is not allowed in the "
                f"request. VM: '{vm_id}'.",
            )
        return None
    if not any(names.values()):
        raise _invalid_plan(
            "Creating a virtual machine from Marketplace image or a custom image sourced from a Marketplace image "
            f"requires Plan information in the request. VM: '{vm_id}'.",
        )
    wanted = {"name": plan.name, "publisher": plan.publisher, "product": plan.product}
    if {name: value.casefold() for name, value in names.items()} != {n: v.casefold() for n, v in wanted.items()}:
        raise _invalid_plan(
            f"Unable to deploy from the Marketplace image: the plan is not that of the image. VM: '{vm_id}'.",
        )
    if not cloud.store.setting(terms_setting(plan), False):
        raise ArmError(
            400,
            "MarketplacePurchaseEligibilityFailed",
            "Marketplace purchase eligibilty check returned errors. See inner errors for details. ",
            details=[
                {
                    "code": "BadRequest",
                    "message": f"Offer with PublisherId: '{plan.publisher}', OfferId: '{plan.product}' cannot be "
                    "purchased due to validation errors. Legal terms have not been accepted for this item on this "
                    "subscription. Accept them at its agreements, or deploy via the Azure portal to accept the terms.",
                }
            ],
        )
    return wanted


def _invalid_plan(message: str) -> ArmError:
    return ArmError(400, "VMMarketplaceInvalidInput", message)


def check_generation(size: Size, generation: str) -> None:
    """Check that the size boots images of this generation."""
    if generation not in size.generations:
        number = generation.removeprefix("V")
        raise ArmError(
            400,
            "BadRequest",
            f"The selected VM size '{size.name}' cannot boot Hypervisor Generation '{number}'. If this was a Create "
            "operation please check that the Hypervisor Generation of the Image matches the Hypervisor Generation of "
            f"the selected VM Size. If this was an Update operation please select a Hypervisor Generation '{number}' "
            "VM Size. For more information, see https://aka.ms/azuregen2vm",
        )


def read_spot(cloud: Cloud, properties: dict[str, Any], size: Size, location: str, action: str) -> dict[str, Any]:
    """Return priority, eviction policy and maximum price as Azure shows them; nothing for a regular VM."""
    priority = choice(properties.get("priority"), "priority", ("Regular", *SPOT))
    policy = choice(properties.get("evictionPolicy"), "evictionPolicy", ("Deallocate", "Delete"))
    highest = section(properties, "billingProfile").get("maxPrice")
    if priority not in SPOT:
        if policy:
            raise ArmError(
                409,
                "EvictionPolicyCanBeSetOnlyOnAzureSpotVirtualMachines",
                "Eviction policy can be set only on Azure Spot Virtual Machines.",
            )
        if highest is not None:
            raise invalid_parameter("billingProfile", "Max price can be set only on Azure Spot Virtual Machines.")
        return {"priority": priority} if priority else {}
    price = cloud.catalogue.price(size.name, location, spot=True)
    if price is None:
        raise ArmError(
            409,
            "AzureSpotIsNotSupportedForThisVMSize",
            f"Azure Spot is not supported for this VM size {size.name}.",
        )
    return {
        "priority": priority,
        "evictionPolicy": policy or "Deallocate",
        "billingProfile": {"maxPrice": _highest_price(highest, price, size, action)},
    }


def _highest_price(value: Any, price: float, size: Size, action: str) -> float:
    if value is None:
        return -1.0
    valid = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not valid or (value != -1 and value <= 0):
        raise ArmError(
            400,
            "MaxPriceValueInvalid",
            "Max price value is invalid. The only supported values for max price are -1 or a decimal greater than "
            "zero. Max price value of -1 indicates the Azure Spot VM shall not be evicted for price reasons.",
        )
    if 0 < value < price:
        raise ArmError(
            409,
            "SpotPriceGreaterThanProvidedMaxPrice",
            f"Unable to perform operation '{action}' since the provided max price '{value} USD' is lower than the "
            f"current spot price '{price} USD' for Azure Spot VM size '{size.name}'. For more information, see "
            "https://aka.ms/AzureSpot/errormessages.",
        )
    return float(value)


def is_spot(properties: dict[str, Any]) -> bool:
    """Whether Azure may evict the VM."""
    return properties.get("priority") in SPOT


def check_quota(cloud: Cloud, size: Size, location: str, spot: bool, freed: tuple[Size, bool] | None = None) -> None:
    """Check that one more VM fits. `freed` is what the VM itself uses now and gives up.

    Used is what the usages list counts: every Spot VM, since a deallocated one still counts against its quota, and
    the regular VMs that are not deallocated.
    """
    counted = dict(used(cloud, location))
    if freed:
        for name in draws_on(*freed):
            counted[name] = counted.get(name, 0) - freed[0].vcpus
    shortfall = missing_quota(cloud.catalogue, size, location, spot, counted, limits(cloud, location))
    if shortfall:
        raise not_allowed(quota_message(shortfall))


def check_kept(properties: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that Azure keeps as sent and that mean nothing here."""
    kept = {}
    for name in ("diagnosticsProfile", "additionalCapabilities", "scheduledEventsPolicy"):
        if properties.get(name) is not None:
            kept[name] = section(properties, name)
    for name in ("licenseType", "extensionsTimeBudget"):
        value = text(properties.get(name), name)
        if value is not None:
            kept[name] = value
    return kept
