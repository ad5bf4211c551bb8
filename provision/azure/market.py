"""Query what Azure offers with the SDK, and convert its lists of sizes and quota."""

import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

from gpuinfra.models.sizes import Offer, Quota
from gpuinfra.provision.azure.clients import Clients, Requests, translated
from gpuinfra.provision.azure.prices import PriceService
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.market import UNKNOWN_PERMISSIONS, Catalogue, Grant, Image, ImagePlan, Permissions, Prices
from gpuinfra.provision.waiting import Deadline

PREFIX = "standard_nc"


def offers(items: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], Offer]:
    """Return the NC sizes in a list of SKUs by size and region. Other SKUs are ignored."""
    found = [offer for item in items if is_wanted(item) for offer in _offers_of(item)]
    return {(offer.size, offer.region): offer for offer in found}


def is_wanted(item: Mapping[str, Any]) -> bool:
    """Return whether the SKU is a VM size of the NC series."""
    return item.get("resourceType") == "virtualMachines" and str(item.get("name")).casefold().startswith(PREFIX)


def _offers_of(item: Mapping[str, Any]) -> list[Offer]:
    capabilities = {each["name"]: str(each["value"]) for each in item.get("capabilities") or []}
    zones = {_region(info["location"]): tuple(info.get("zones") or ()) for info in item.get("locationInfo") or []}
    return [
        Offer(
            size=item["name"],
            region=region,
            zones=tuple(sorted(zones.get(region, ()))),
            family=str(item.get("family") or ""),
            vcpus=int(capabilities.get("vCPUs", 0)),
            memory_gib=float(capabilities.get("MemoryGB", 0)),
            gpus=int(capabilities.get("GPUs", 0)),
            generations=tuple(part for part in capabilities.get("HyperVGenerations", "").split(",") if part),
            spot_capable=capabilities.get("LowPriorityCapable", "").casefold() == "true",
            restriction=_restriction(item, region),
            restricted_zones=_restricted_zones(item, region),
            trusted_launch=capabilities.get("TrustedLaunchDisabled", "").casefold() != "true",
        )
        for region in map(_region, item.get("locations") or zones)
    ]


def _restriction(item: Mapping[str, Any], region: str) -> str | None:
    for each in item.get("restrictions") or []:
        info = each.get("restrictionInfo") or {}
        where = map(_region, info.get("locations") or each.get("values") or ())
        if each.get("type") == "Location" and region in where:
            return str(each.get("reasonCode") or "Restricted")
    return None


def _restricted_zones(item: Mapping[str, Any], region: str) -> tuple[str, ...]:
    found: set[str] = set()
    for each in item.get("restrictions") or []:
        info = each.get("restrictionInfo") or {}
        where = [_region(location) for location in info.get("locations") or ()]
        if each.get("type") == "Zone" and (region in where or not where):
            # Here `values` has the region, and the zones are inside. Azure has swapped them before.
            found |= set(info.get("zones") or [zone for zone in each.get("values") or () if str(zone).isdigit()])
    return tuple(sorted(found))


def quotas(items: Iterable[Mapping[str, Any]]) -> dict[str, Quota]:
    """Return the quotas by Azure's name."""
    found = [
        Quota(item["name"]["value"], int(item.get("limit") or 0), int(item.get("currentValue") or 0)) for item in items
    ]
    return {quota.name: quota for quota in found}


def _region(name: str) -> str:
    # Older responses have capitals, as in `SouthCentralUS`.
    return name.replace(" ", "").lower()


SUBSCRIPTIONS_API = "2022-12-01"
PERMISSIONS_API = "2022-04-01"
SKUS_API = "2021-07-01"
TERMS_API = "2021-01-01"
PROVIDERS_API = "2021-04-01"
REGISTRATION_PAUSE = 2.0
# Azure's codes for a region that does not exist or is not open to this subscription.
NO_REGION = {"NoRegisteredProviderFound", "LocationNotAvailableForResourceType", "InvalidLocation", "LocationNotFound"}


class AzureMarket:
    """Sizes, quota, images, permissions and prices of one subscription."""

    def __init__(self, clients: Clients) -> None:
        self.clients = clients
        self.subscription = clients.access.subscription
        self._lock = threading.Lock()
        self._requests = Requests(clients)

    @cached_property
    def _prices(self) -> PriceService:
        return PriceService(self.clients.access.prices, self.clients.access.ca)

    def subscription_name(self) -> str:
        body = self._requests.send("GET", f"/subscriptions/{self.subscription}", SUBSCRIPTIONS_API)
        return str(body.get("displayName") or self.subscription)

    def catalogue(self, region: str) -> Catalogue:
        with ThreadPoolExecutor(1, thread_name_prefix="quota") as pool:
            quotas = pool.submit(self.quotas, region)
            offers = {size: offer for (size, where), offer in self.offers(region).items() if where == region}
            return Catalogue(region, offers, quotas.result())

    def offers(self, region: str | None = None) -> dict[tuple[str, str], Offer]:
        where = {"$filter": f"location eq '{region}'"} if region else {}
        # Not with the SDK's list: it builds thousands of objects, which takes seconds.
        return offers(self._requests.pages(f"{self._provider('Microsoft.Compute')}/skus", SKUS_API, where))

    def quotas(self, region: str) -> dict[str, Quota]:
        try:
            with translated(f"quota in {region}"):
                return quotas(item.as_dict() for item in self.clients.compute.usage.list(region))
        except CloudError as error:
            if error.code in NO_REGION:
                return {}
            raise

    def image(self, urn: str, region: str) -> Image:
        publisher, offer, sku, version = urn.split(":")
        images = self.clients.compute.virtual_machine_images
        try:
            with translated(f"image {urn} in {region}"):
                if version == "latest":
                    found = [str(each.name) for each in images.list(region, publisher, offer, sku)]
                    if not found:
                        return Image(urn, exists=False)
                    version = max(found, key=_version_key)
                body = images.get(region, publisher, offer, sku, version).as_dict()
        except CloudError as error:
            if error.fault is Fault.ABSENT or error.code in NO_REGION:
                return Image(urn, exists=False)
            raise
        properties = body.get("properties") or {}
        plan = _plan(properties.get("plan"))
        accepted = self._terms_accepted(plan) if plan else None
        generation = properties.get("hyperVGeneration")
        return Image(urn, True, version, generation, plan, accepted, _supports_trusted_launch(properties))

    def _terms_accepted(self, plan: ImagePlan) -> bool | None:
        try:
            return bool(self._requests.send("GET", self._terms(plan), TERMS_API)["properties"]["accepted"])
        except (CloudError, KeyError, TypeError):
            return None  # unknown: Azure checks it when the VM is created

    def accept_terms(self, plan: ImagePlan) -> None:
        terms = self._requests.send("GET", self._terms(plan), TERMS_API)
        terms["properties"] = {**(terms.get("properties") or {}), "accepted": True}
        self._requests.send("PUT", self._terms(plan), TERMS_API, terms)

    def _terms(self, plan: ImagePlan) -> str:
        return (
            f"/subscriptions/{self.subscription}/providers/Microsoft.MarketplaceOrdering/offerTypes/virtualmachine"
            f"/publishers/{plan.publisher}/offers/{plan.product}/plans/{plan.name}/agreements/current"
        )

    def actions_allowed(self, group: str | None) -> Permissions:
        scope = f"/subscriptions/{self.subscription}" + (f"/resourceGroups/{group}" if group else "")
        path = f"{scope}/providers/Microsoft.Authorization/permissions"
        try:
            grants = [
                Grant(tuple(each.get("actions") or ()), tuple(each.get("notActions") or ()))
                for each in self._requests.pages(path, PERMISSIONS_API)
            ]
        except CloudError as error:
            # In a group that does not exist yet, no permission is assigned.
            return Permissions() if error.code == "ResourceGroupNotFound" else _unknown_or_raise(error)
        return Permissions(tuple(grants))

    def unregistered(self, namespaces: Iterable[str]) -> tuple[str, ...]:
        wanted = tuple(namespaces)
        with ThreadPoolExecutor(max(1, len(wanted)), thread_name_prefix="providers") as pool:
            states = list(pool.map(self._registration, wanted))
        return tuple(name for name, state in zip(wanted, states, strict=True) if state != "Registered")

    def schedule_regions(self) -> frozenset[str] | None:
        kinds = self._requests.send("GET", self._provider("Microsoft.DevTestLab"), PROVIDERS_API).get("resourceTypes")
        for kind in kinds or ():
            if str(kind.get("resourceType")).casefold() == "schedules" and kind.get("locations"):
                # Azure writes `South Central US` for southcentralus.
                return frozenset("".join(str(place).casefold().split()) for place in kind["locations"])
        return None

    def register(self, namespace: str, deadline: Deadline) -> None:
        self._requests.send("POST", f"{self._provider(namespace)}/register", PROVIDERS_API)
        while self._registration(namespace) != "Registered":
            if deadline.is_over:
                subject = f"provider {namespace}"
                raise CloudError(Fault.TIMEOUT, "Timeout", f"{namespace} is still being registered", subject=subject)
            self.clients.limits.interrupt.sleep(min(REGISTRATION_PAUSE, deadline.left))

    def _registration(self, namespace: str) -> str:
        return str(self._requests.send("GET", self._provider(namespace), PROVIDERS_API).get("registrationState") or "")

    def _provider(self, namespace: str) -> str:
        return f"/subscriptions/{self.subscription}/providers/{namespace}"

    def price(self, size: str, region: str, spot: bool = False) -> float | None:
        return self.prices([size]).price(size, region, spot=spot)

    def prices(self, sizes: Iterable[str]) -> Prices:
        with self._lock:
            service = self._prices
        return service.prices(sizes)


def _unknown_or_raise(error: CloudError) -> Permissions:
    if error.fault in {Fault.DENIED, Fault.ABSENT} or error.code == "NotInSandbox":
        return UNKNOWN_PERMISSIONS
    raise error


def _plan(body: dict[str, Any] | None) -> ImagePlan | None:
    return ImagePlan(body["publisher"], body["name"], body["product"]) if body else None


def _supports_trusted_launch(properties: dict[str, Any]) -> bool:
    """Return whether the image's features include Trusted Launch, alone or with confidential VMs."""
    features = {str(each.get("name")): str(each.get("value")) for each in properties.get("features") or []}
    return "TrustedLaunch" in features.get("SecurityType", "")


def _version_key(version: str) -> tuple[tuple[int, str], ...]:
    # 25.06.18 is newer than 25.6.9, and 22.04.202506200 than 22.04.99.
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in version.split("."))
