"""The port to Azure's offers, and its values: sizes, quota, images, prices and permissions."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol

from gpuinfra.models.offer import Offer, Quota, Rate
from gpuinfra.provision.waiting import Deadline

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
