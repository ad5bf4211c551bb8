"""VM images: `locations/{location}/publishers/…`, from publishers to versions."""

from dataclasses import dataclass, replace
from typing import Any

from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.errors import ArmError, invalid_parameter
from gpuinfra.sandbox.kernel.routes import SUBSCRIPTION, Service
from gpuinfra.sandbox.services.common import require_region

service = Service()

_PUBLISHERS = f"{SUBSCRIPTION}/providers/Microsoft.Compute/locations/{{location}}/publishers"
_OFFERS = f"{_PUBLISHERS}/{{publisher}}/artifacttypes/vmimage/offers"
_SKUS = f"{_OFFERS}/{{offer}}/skus"
_VERSIONS = f"{_SKUS}/{{sku}}/versions"
_ARTIFACT = "ArtifactTypes/VMImage"


@dataclass(frozen=True, slots=True)
class Plan:
    """The purchase plan of an image; a subscription has to accept its terms once."""

    publisher: str
    product: str
    name: str


@dataclass(frozen=True, slots=True)
class Image:
    """An image with all its versions, oldest first; `version` is one of them, or empty."""

    publisher: str
    offer: str
    sku: str
    versions: tuple[str, ...]
    generation: str
    size_gib: int
    sold: bool = False
    version: str = ""

    @property
    def plan(self) -> Plan | None:
        """The purchase plan, if the image is sold."""
        return Plan(self.publisher, self.offer, self.sku) if self.sold else None


DSVM = "microsoft-dsvm"
JAMMY = "0001-com-ubuntu-server-jammy"
# The images are Azure's. Of the versions, only those in the recordings and 25.06.18 are known to be real.
IMAGES = (
    Image(DSVM, "ubuntu-2204", "2204", ("25.03.25", "25.06.18"), "V1", 150),
    Image(DSVM, "ubuntu-2204", "2204-gen2", ("25.03.25", "25.06.18"), "V2", 150),
    Image(DSVM, "ubuntu-2004", "2004", ("24.04.18", "24.08.14"), "V1", 150),
    Image(DSVM, "ubuntu-2004", "2004-gen2", ("24.04.18", "24.08.14"), "V2", 150),
    Image(DSVM, "ubuntu-hpc", "2204", ("22.04.2025041101", "22.04.2025062301"), "V2", 150),
    Image("Canonical", JAMMY, "22_04-lts", ("22.04.202504040", "22.04.202506200"), "V1", 30),
    Image("Canonical", JAMMY, "22_04-lts-gen2", ("22.04.202504040", "22.04.202506200"), "V2", 30),
    Image("Canonical", "ubuntu-24_04-lts", "server", ("24.04.202504080", "24.04.202506190"), "V2", 30),
    Image("Canonical", "UbuntuServer", "18.04-LTS", ("18.04.202002180", "18.04.202401161"), "V1", 30),
    Image("fortinet", "fortinet_fortigate-vm_v5", "fortinet_fg-vm_payg", ("5.6.5",), "V1", 2, sold=True),
)


def find_images(publisher: str = "", offer: str = "", sku: str = "") -> list[Image]:
    """Return the images of a publisher, an offer or a SKU, in any case; of all without a name."""
    wanted = {"publisher": publisher, "offer": offer, "sku": sku}
    return [one for one in IMAGES if all(not name or _same(name, getattr(one, part)) for part, name in wanted.items())]


def image(publisher: str, offer: str, sku: str, version: str = "latest") -> Image | None:
    """Return one version of an image in the marketplace's own spelling, or None."""
    found = next(iter(find_images(publisher, offer, sku)), None)
    if found is None:
        return None
    exact = found.versions[-1] if _same(version, "latest") else version
    return replace(found, version=exact) if exact in found.versions else None


def publisher_items(subscription_id: str, location: str) -> list[dict[str, Any]]:
    """List publishers as ARM shows them: a bare array, like all lists of images."""
    names = dict.fromkeys(one.publisher for one in IMAGES)
    return [_item(subscription_id, location, name, f"Publishers/{name}") for name in names]


def offer_items(subscription_id: str, location: str, publisher: str) -> list[dict[str, Any]]:
    """List a publisher's offers as ARM shows them."""
    names = dict.fromkeys(one.offer for one in find_images(publisher))
    within = f"Publishers/{publisher}/{_ARTIFACT}/Offers"
    return [_item(subscription_id, location, name, f"{within}/{name}") for name in names]


def image_sku_items(subscription_id: str, location: str, publisher: str, offer: str) -> list[dict[str, Any]]:
    """List an offer's SKUs as ARM shows them; only these have properties."""
    within = f"Publishers/{publisher}/{_ARTIFACT}/Offers/{offer}/Skus"
    properties = {"automaticOSUpgradeProperties": {"automaticOSUpgradeSupported": False}}
    names = [one.sku for one in find_images(publisher, offer)]
    return [{"properties": properties, **_item(subscription_id, location, name, f"{within}/{name}")} for name in names]


def version_items(
    subscription_id: str, location: str, publisher: str, offer: str, sku: str, expand: bool = False
) -> list[dict[str, Any]]:
    """List an image's versions as ARM shows them, latest last; `expand` adds their properties."""
    found = [replace(one, version=version) for one in find_images(publisher, offer, sku) for version in one.versions]
    bodies = [image_body(one, subscription_id, location) for one in found]
    return bodies if expand else [{name: body[name] for name in body if name != "properties"} for body in bodies]


def image_body(found: Image, subscription_id: str, location: str) -> dict[str, Any]:
    """Return one version of an image as ARM shows it."""
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
    path = f"Publishers/{found.publisher}/{_ARTIFACT}/Offers/{found.offer}/Skus/{found.sku}/Versions/{found.version}"
    return {"properties": properties, **_item(subscription_id, location, found.version, path)}


@service.route("GET", _PUBLISHERS)
def _list_publishers(call: Call) -> Answer:
    return Answer(200, publisher_items(call.cloud.subscription, require_region(call)))


@service.route("GET", _OFFERS)
def _list_offers(call: Call) -> Answer:
    return Answer(200, offer_items(call.cloud.subscription, require_region(call), call["publisher"]))


@service.route("GET", _SKUS)
def _list_skus(call: Call) -> Answer:
    region = require_region(call)
    return Answer(200, image_sku_items(call.cloud.subscription, region, call["publisher"], call["offer"]))


@service.route("GET", _VERSIONS)
def _list_versions(call: Call) -> Answer:
    region = require_region(call)
    expand = "properties" in call.query.get("$expand", "").lower()
    found = version_items(call.cloud.subscription, region, call["publisher"], call["offer"], call["sku"], expand=expand)
    if call.query.get("$orderby", "").lower().endswith("desc"):
        found.reverse()
    top = call.query.get("$top")
    if top is not None:
        if not top.isdigit():
            raise invalid_parameter("$top", f"The value '{top}' of the query parameter $top is invalid.")
        found = found[: int(top)]
    return Answer(200, found)


@service.route("GET", f"{_VERSIONS}/{{version}}")
def _get_version(call: Call) -> Answer:
    region = require_region(call)
    found = image(call["publisher"], call["offer"], call["sku"], call["version"])
    if found is None:
        urn = ":".join(call[part] for part in ("publisher", "offer", "sku", "version"))
        raise ArmError(404, "NotFound", f"Artifact: VMImage was not found: {urn}.")
    return Answer(200, image_body(found, call.cloud.subscription, region))


def _item(subscription_id: str, location: str, name: str, path: str) -> dict[str, Any]:
    within = f"/Subscriptions/{subscription_id}/Providers/Microsoft.Compute/Locations/{location}"
    return {"location": location, "name": name, "id": f"{within}/{path}"}


def _same(one: str, other: str) -> bool:
    return one.casefold() == other.casefold()
