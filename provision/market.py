"""The port to Azure's offers: sizes, quota, images, prices and permissions; the prices that gpuinfra ships."""

import csv
import re
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import NamedTuple, Protocol

from gpuinfra.models.sizes import SIZES, Offer, PricedOffer, Quota, Quotas, Rate, Size, SizeOffers
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.waiting import Deadline
from gpuinfra.templates import read_template

# Quotas that do not belong to a VM family.
CORES = "cores"
SPOT_CORES = "lowPriorityCores"


@dataclass(frozen=True)
class Catalogue:
    """A region's NC sizes by name, and its quotas by Azure's name."""

    region: str
    offers: Mapping[str, Offer] = field(default_factory=dict)
    quotas: Mapping[str, Quota] = field(default_factory=dict)

    def offer(self, size: str) -> Offer | None:
        """Return a size, or None if the region does not have it."""
        return self.offers.get(size)

    def quota(self, family: str) -> Quota | None:
        """Return a family's quota. Sizes and usages spell some names differently: `Standard NCASv3_T4 Family`."""
        return self._by_key.get(_key(family))

    @property
    def cores(self) -> Quota | None:
        """The quota for all vCPUs in the region, except spot."""
        return self.quota(CORES)

    @property
    def spot_cores(self) -> Quota | None:
        """The quota for all spot vCPUs in the region, the only quota that spot machines use."""
        return self.quota(SPOT_CORES)

    @cached_property
    def _by_key(self) -> dict[str, Quota]:
        return {_key(name): quota for name, quota in self.quotas.items()}


def _key(name: str) -> str:
    return name.replace(" ", "").casefold()


class ImagePlan(NamedTuple):
    """The marketplace plan of an image. Its terms must be accepted once per subscription."""

    publisher: str
    name: str
    product: str


@dataclass(frozen=True, slots=True)
class Image:
    """An image in a region."""

    urn: str
    exists: bool
    version: str | None = None
    """The exact version, even if the name says `latest`."""
    generation: str | None = None
    plan: ImagePlan | None = None
    terms_accepted: bool | None = None
    """None if the image has no terms, or the answer is unknown."""
    trusted_launch: bool = True
    """Whether a VM with Trusted Launch can boot it."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The actions that one role allows, with `*` as wildcard, and its exceptions."""

    actions: tuple[str, ...]
    not_actions: tuple[str, ...] = ()

    def allows(self, action: str) -> bool:
        """Return whether this role alone allows the action."""
        return _matches(self.actions, action) and not _matches(self.not_actions, action)


@dataclass(frozen=True, slots=True)
class Permissions:
    """The caller's permissions at a scope. If unknown, everything counts as allowed: Azure decides in the end."""

    grants: tuple[Grant, ...] = ()
    known: bool = True

    def allows(self, action: str) -> bool:
        """Return whether any role allows the action. An exception in one role does not restrict another role."""
        return not self.known or any(grant.allows(action) for grant in self.grants)


UNKNOWN_PERMISSIONS = Permissions(known=False)


def _matches(patterns: Iterable[str], action: str) -> bool:
    return any(
        re.fullmatch(".*".join(re.escape(part) for part in pattern.casefold().split("*")), action.casefold())
        for pattern in patterns
    )


@dataclass(frozen=True)
class Prices:
    """Prices by size and region. A missing price is never an error."""

    rates: Mapping[tuple[str, str], Rate] = field(default_factory=dict)

    def rate(self, size: str, region: str) -> Rate:
        """Return the regular and the spot price of a size in a region."""
        return self.rates.get((size, region), Rate())

    def price(self, size: str, region: str, *, spot: bool = False) -> float | None:
        """Return the regular or the spot price of a size in a region, or None if unknown."""
        rate = self.rate(size, region)
        return rate.spot if spot else rate.regular


class Market(Protocol):
    """Azure's offers. Every method raises only CloudError and is thread-safe."""

    subscription: str

    def subscription_name(self) -> str:
        """Return the subscription's display name. This is the simplest request, so it comes first."""

    def catalogue(self, region: str) -> Catalogue:
        """Return sizes and quota of one region."""

    def offers(self, region: str | None = None) -> Mapping[tuple[str, str], Offer]:
        """Return the NC sizes by size and region, of one region or of all."""

    def quotas(self, region: str) -> Mapping[str, Quota]:
        """Return the quotas of one region by Azure's name, or nothing if the region does not exist."""

    def image(self, urn: str, region: str) -> Image:
        """Return an image by `publisher:offer:sku:version`."""

    def accept_terms(self, plan: ImagePlan) -> None:
        """Accept an image's terms for the whole subscription."""

    def actions_allowed(self, group: str | None) -> Permissions:
        """Return the caller's permissions in the subscription, or in one of its groups."""

    def schedule_regions(self) -> frozenset[str] | None:
        """Return the regions that offer Azure's daily shutdown schedule, or None if unknown."""

    def unregistered(self, namespaces: Iterable[str]) -> tuple[str, ...]:
        """Return those of the resource providers that the subscription has not registered."""

    def register(self, namespace: str, deadline: Deadline) -> None:
        """Register a resource provider, and wait until it is registered."""

    def price(self, size: str, region: str, spot: bool = False) -> float | None:
        """Return the price in US dollars per hour, or None if unknown."""

    def prices(self, sizes: Iterable[str]) -> Prices:
        """Return the prices of these sizes in all regions. Never raises."""


# Linux VMs per hour, as the API returned them in this month. Spot prices are missing because they change daily.
DATE = "2026-06"
FILE = f"prices-{DATE}.csv"
# Disks and public IPs in East US, from Azure's price pages in late 2025. Other regions differ slightly.
# A disk is billed as the next larger of these sizes, in GiB. The prices are per month.
_SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096)
_PRICES: dict[str, tuple[float, ...]] = {
    "Standard": (1.54, 3.01, 5.89, 11.33, 21.76, 40.96, 77.83, 143.36),
    "StandardSSD": (2.40, 4.80, 9.60, 19.20, 38.40, 76.80, 153.60, 307.20),
    "Premium": (5.28, 10.21, 19.71, 38.02, 73.22, 135.17, 259.05, 495.57),
}
_ZONE_REDUNDANT = 1.5
_ADDRESS_PER_HOUR = 0.005
_HOURS_A_MONTH = 730


@cache
def shipped_prices() -> Prices:
    """Return the shipped prices by size and region."""
    rows = csv.DictReader(read_template(FILE).splitlines())
    return Prices({(row["size"], row["region"]): Rate(float(row["usdPerHour"])) for row in rows})


def disk_per_month(size_gib: int, sku: str) -> float | None:
    """Return a disk's price per month, or None for an unknown kind."""
    family, _, redundancy = sku.partition("_")
    for size, price in zip(_SIZES, _PRICES.get(family, ()), strict=False):
        if size_gib <= size:
            return round(price * (_ZONE_REDUNDANT if redundancy == "ZRS" else 1), 2)
    return None


def disk_price(disk: ObservedResource) -> float | None:
    """Return the price per month of a disk in Azure, or None for an unknown kind."""
    return disk_per_month(int(disk.properties.get("diskSizeGB") or 0), disk.sku)


def address_per_month() -> float:
    """Return the price of a static public IP per month."""
    return round(_ADDRESS_PER_HOUR * _HOURS_A_MONTH, 2)


THREADS = 8
Offers = Mapping[tuple[str, str], Offer]


def list_sizes(
    market: Market, gpu: str | None = None, regions: Collection[str] = (), *, with_quota: bool = False
) -> tuple[SizeOffers, ...]:
    """Return the sizes that a spec can name, filtered by GPU and regions if given."""
    wanted = [size for size in SIZES.values() if gpu in {None, size.gpu_model} and not size.confidential]
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="sizes")
    try:
        prices = pool.submit(market.prices, [size.name for size in wanted])
        # Send the first request alone, so that the next ones find the credential ready.
        asked_for: list[str | None] = [*regions] or [None]
        offers = dict(market.offers(asked_for[0]))
        for more in pool.map(market.offers, asked_for[1:]):
            offers |= more
        found = _places(wanted, regions, offers)
        asked = sorted({offer.region for offer in found}) if with_quota else []
        quotas = dict(zip(asked, pool.map(market.quotas, asked), strict=True))
        return tuple(_listed(wanted, found, prices.result(), quotas))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _places(wanted: Iterable[Size], regions: Collection[str], offers: Offers) -> list[Offer]:
    names = {size.name for size in wanted}
    return [offer for (size, region), offer in offers.items() if size in names and (not regions or region in regions)]


def _listed(
    wanted: Iterable[Size], offers: Collection[Offer], prices: Prices, quotas: Mapping[str, Mapping[str, Quota]]
) -> Iterable[SizeOffers]:
    catalogues = {region: Catalogue(region, quotas=found) for region, found in quotas.items()}
    for size in wanted:
        places = [
            PricedOffer(offer, prices.rate(size.name, offer.region), _quotas(offer, catalogues.get(offer.region)))
            for offer in offers
            if offer.size == size.name
        ]
        if places:
            yield SizeOffers(size, tuple(sorted(places, key=_order)))


def _quotas(offer: Offer, catalogue: Catalogue | None) -> Quotas | None:
    if catalogue is None:
        return None
    return Quotas(catalogue.quota(offer.family), catalogue.cores, catalogue.spot_cores)


def _order(place: PricedOffer) -> tuple[bool, float, str]:
    """Sort offers that fit first, then by price."""
    price = place.rate.regular
    return not place.fits, float("inf") if price is None else price, place.offer.region
