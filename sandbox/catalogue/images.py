"""Images of the marketplace, and the terms of those that are sold."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

ARTIFACT = "ArtifactTypes/VMImage"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is bought with an image; its terms have to be accepted once in a subscription."""

    publisher: str
    product: str
    name: str


@dataclass(frozen=True, slots=True)
class Image:
    """A version of an image."""

    publisher: str
    offer: str
    sku: str
    version: str
    generation: str
    size_gib: int
    plan: Plan | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """An image's versions, from the oldest to the latest."""

    publisher: str
    offer: str
    sku: str
    versions: tuple[str, ...]
    generation: str
    size_gib: int
    sold: bool = False


DSVM = "microsoft-dsvm"
JAMMY = "0001-com-ubuntu-server-jammy"
# Which images there are is Azure's; of the versions, only those of the recordings and 25.06.18 are known to be real.
LINES = (
    Line(DSVM, "ubuntu-2204", "2204", ("25.03.25", "25.06.18"), "V1", 150),
    Line(DSVM, "ubuntu-2204", "2204-gen2", ("25.03.25", "25.06.18"), "V2", 150),
    Line(DSVM, "ubuntu-2004", "2004", ("24.04.18", "24.08.14"), "V1", 150),
    Line(DSVM, "ubuntu-2004", "2004-gen2", ("24.04.18", "24.08.14"), "V2", 150),
    Line(DSVM, "ubuntu-hpc", "2204", ("22.04.2025041101", "22.04.2025062301"), "V2", 150),
    Line("Canonical", JAMMY, "22_04-lts", ("22.04.202504040", "22.04.202506200"), "V1", 30),
    Line("Canonical", JAMMY, "22_04-lts-gen2", ("22.04.202504040", "22.04.202506200"), "V2", 30),
    Line("Canonical", "ubuntu-24_04-lts", "server", ("24.04.202504080", "24.04.202506190"), "V2", 30),
    Line("Canonical", "UbuntuServer", "18.04-LTS", ("18.04.202002180", "18.04.202401161"), "V1", 30),
    Line("fortinet", "fortinet_fortigate-vm_v5", "fortinet_fg-vm_payg", ("5.6.5",), "V1", 2, sold=True),
)


def publishers() -> list[str]:
    """Everybody with an image."""
    return list(dict.fromkeys(line.publisher for line in LINES))


def offers(publisher: str) -> list[str]:
    """What a publisher offers."""
    return list(dict.fromkeys(line.offer for line in LINES if _same(line.publisher, publisher)))


def skus(publisher: str, offer: str) -> list[str]:
    """The kinds of an offer."""
    return [line.sku for line in LINES if _same(line.publisher, publisher) and _same(line.offer, offer)]


def versions(publisher: str, offer: str, sku: str) -> list[str]:
    """The versions of an image, the latest last."""
    line = _line(publisher, offer, sku)
    return list(line.versions) if line else []


def image(publisher: str, offer: str, sku: str, version: str = "latest") -> Image | None:
    """A version of an image, in the marketplace's own spelling."""
    line = _line(publisher, offer, sku)
    if line is None:
        return None
    exact = line.versions[-1] if _same(version, "latest") else version
    if exact not in line.versions:
        return None
    plan = Plan(line.publisher, line.offer, line.sku) if line.sold else None
    return Image(line.publisher, line.offer, line.sku, exact, line.generation, line.size_gib, plan)


def publisher_items(subscription_id: str, location: str) -> list[dict[str, Any]]:
    """The list of publishers: a bare array, as all lists of images are."""
    return [_item(subscription_id, location, name, f"Publishers/{name}") for name in publishers()]


def offer_items(subscription_id: str, location: str, publisher: str) -> list[dict[str, Any]]:
    """The list of a publisher's offers."""
    return [
        _item(subscription_id, location, name, f"Publishers/{publisher}/{ARTIFACT}/Offers/{name}")
        for name in offers(publisher)
    ]


def image_sku_items(subscription_id: str, location: str, publisher: str, offer: str) -> list[dict[str, Any]]:
    """The list of an offer's kinds, which alone has properties."""
    within = f"Publishers/{publisher}/{ARTIFACT}/Offers/{offer}/Skus"
    return [
        {
            "properties": {"automaticOSUpgradeProperties": {"automaticOSUpgradeSupported": False}},
            **_item(subscription_id, location, name, f"{within}/{name}"),
        }
        for name in skus(publisher, offer)
    ]


def version_items(
    subscription_id: str, location: str, publisher: str, offer: str, sku: str, expand: bool = False
) -> list[dict[str, Any]]:
    """The list of an image's versions, the latest last; with `$expand` as full as one by one."""
    found = [image(publisher, offer, sku, version) for version in versions(publisher, offer, sku)]
    bodies = [image_body(one, subscription_id, location) for one in found if one]
    if not expand:
        for body in bodies:
            del body["properties"]
    return bodies


def image_body(found: Image, subscription_id: str, location: str) -> dict[str, Any]:
    """A version of an image, as GET answers it."""
    properties: dict[str, Any] = {
        "hyperVGeneration": found.generation,
        "architecture": "x64",
        "replicaType": "Managed",
        "replicaCount": 10,
        "disallowed": {"vmDiskType": "Unmanaged"},
        "automaticOSUpgradeProperties": {"automaticOSUpgradeSupported": False},
        "imageDeprecationStatus": {"imageState": "Active"},
        "features": [
            {"name": "IsAcceleratedNetworkSupported", "value": "True"},
            {"name": "DiskControllerTypes", "value": "SCSI, NVMe"},
            {"name": "IsHibernateSupported", "value": "True"},
        ],
        "osDiskImage": {
            "operatingSystem": "Linux",
            "sizeInGb": found.size_gib,
            # A virtual hard disk has a footer of one sector.
            "sizeInBytes": found.size_gib * 1024**3 + 512,
        },
        "dataDiskImages": [],
    }
    if found.generation == "V2":
        properties["features"].insert(0, {"name": "SecurityType", "value": "TrustedLaunchSupported"})
    if found.plan:
        properties["plan"] = {
            "publisher": found.plan.publisher,
            "name": found.plan.name,
            "product": found.plan.product,
        }
    path = f"Publishers/{found.publisher}/{ARTIFACT}/Offers/{found.offer}/Skus/{found.sku}/Versions/{found.version}"
    return {"properties": properties, **_item(subscription_id, location, found.version, path)}


def find_plan(publisher: str, product: str, name: str) -> Plan | None:
    """The plan of an image that is sold; of no other are there terms."""
    found = image(publisher, product, name)
    return found.plan if found else None


def terms_body(plan: Plan, subscription_id: str, accepted: bool, now: str) -> dict[str, Any]:
    """The terms of a plan, and whether this subscription has accepted them. `now` is a time in ISO 8601."""
    base = f"/subscriptions/{subscription_id}/providers/Microsoft.MarketplaceOrdering/offerTypes/VirtualMachine"
    terms = f"https://example.invalid/marketplace/{plan.publisher}/{plan.product}/{plan.name}"
    whose = "00000000-0000-0000-0000-000000000000"
    return {
        "id": f"{base}/publishers/{plan.publisher}/offers/{plan.product}/plans/{plan.name}/agreements/current",
        "name": plan.name,
        "type": "Microsoft.MarketplaceOrdering/offertypes",
        "properties": {
            "publisher": plan.publisher,
            "product": plan.product,
            "plan": plan.name,
            "licenseTextLink": f"{terms}/license.txt",
            "privacyPolicyLink": f"{terms}/privacy.txt",
            "marketplaceTermsLink": f"{terms}/terms.txt",
            "retrieveDatetime": now,
            "signature": hashlib.sha256(terms.encode()).hexdigest().upper(),
            "accepted": accepted,
        },
        "systemData": {
            "createdBy": whose,
            "createdByType": "ManagedIdentity",
            "createdAt": now,
            "lastModifiedBy": whose,
            "lastModifiedByType": "ManagedIdentity",
            "lastModifiedAt": now,
        },
    }


def _item(subscription_id: str, location: str, name: str, path: str) -> dict[str, Any]:
    within = f"/Subscriptions/{subscription_id}/Providers/Microsoft.Compute/Locations/{location}"
    return {"location": location, "name": name, "id": f"{within}/{path}"}


def _line(publisher: str, offer: str, sku: str) -> Line | None:
    wanted = (publisher, offer, sku)
    for line in LINES:
        if all(map(_same, (line.publisher, line.offer, line.sku), wanted)):
            return line
    return None


def _same(one: str, other: str) -> bool:
    return one.casefold() == other.casefold()
