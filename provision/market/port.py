"""The port to what Azure has on offer, and the values that it answers with: sizes, quota, images, prices, rights."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol

from gpuinfra.models.offer import Offer, Quota, Rate
from gpuinfra.provision.waiting.deadline import Deadline

# Quotas that are no family's.
CORES = "cores"
SPOT_CORES = "lowPriorityCores"


@dataclass(frozen=True)
class Catalogue:
    """What a region has: NC sizes by name, quotas by Azure's name for them."""

    region: str
    offers: Mapping[str, Offer] = field(default_factory=dict)
    quotas: Mapping[str, Quota] = field(default_factory=dict)

    def offer(self, size: str) -> Offer | None:
        """A size, if the region has it."""
        return self.offers.get(size)

    def quota(self, family: str) -> Quota | None:
        """A family's quota. Sizes and usages spell some names differently: `Standard NCASv3_T4 Family`."""
        return self._by_key.get(_key(family))

    @property
    def cores(self) -> Quota | None:
        """All vCPUs of the region, spot left out."""
        return self.quota(CORES)

    @property
    def spot_cores(self) -> Quota | None:
        """All vCPUs of spot machines in the region: they draw on this and on nothing else."""
        return self.quota(SPOT_CORES)

    @cached_property
    def _by_key(self) -> dict[str, Quota]:
        return {_key(name): quota for name, quota in self.quotas.items()}


def _key(name: str) -> str:
    return name.replace(" ", "").casefold()


class ImagePlan(NamedTuple):
    """What is bought with an image; its terms have to be accepted once in a subscription."""

    publisher: str
    name: str
    product: str


@dataclass(frozen=True, slots=True)
class Image:
    """An image in a region."""

    urn: str
    exists: bool
    version: str | None = None
    """The exact one, also where the name says `latest`."""
    generation: str | None = None
    plan: ImagePlan | None = None
    terms_accepted: bool | None = None
    """None where the image has no terms, or nobody knows."""
    trusted_launch: bool = True
    """Whether a machine with Trusted Launch can boot it."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What one role allows: actions with `*` in them, less those that it takes away again."""

    actions: tuple[str, ...]
    not_actions: tuple[str, ...] = ()

    def allows(self, action: str) -> bool:
        """Whether this role alone allows it."""
        return _matches(self.actions, action) and not _matches(self.not_actions, action)


@dataclass(frozen=True, slots=True)
class Permissions:
    """What the caller may do at a scope. Where nobody can say, all of it: Azure has the last word anyway."""

    grants: tuple[Grant, ...] = ()
    known: bool = True

    def allows(self, action: str) -> bool:
        """Whether any role allows it: what one takes away, another may give."""
        return not self.known or any(grant.allows(action) for grant in self.grants)


UNKNOWN_PERMISSIONS = Permissions(known=False)


def _matches(patterns: Iterable[str], action: str) -> bool:
    return any(
        re.fullmatch(".*".join(re.escape(part) for part in pattern.casefold().split("*")), action.casefold())
        for pattern in patterns
    )


@dataclass(frozen=True)
class Prices:
    """Prices by size and region. Where none is known there is none: a price is never a reason to fail."""

    rates: Mapping[tuple[str, str], Rate] = field(default_factory=dict)

    def rate(self, size: str, region: str) -> Rate:
        """Both prices of a size in a region."""
        return self.rates.get((size, region), Rate())

    def price(self, size: str, region: str, *, spot: bool = False) -> float | None:
        """One of them."""
        rate = self.rate(size, region)
        return rate.spot if spot else rate.regular


class Market(Protocol):
    """What Azure has on offer. Every method raises CloudError and nothing else; calls may come from many threads."""

    subscription: str

    def subscription_name(self) -> str:
        """What people call the subscription. The simplest question there is, so it is asked first."""

    def catalogue(self, region: str) -> Catalogue:
        """Sizes and quota of one region."""

    def offers(self, region: str | None = None) -> Mapping[tuple[str, str], Offer]:
        """NC sizes by size and region: of one region, or of all."""

    def quotas(self, region: str) -> Mapping[str, Quota]:
        """Quotas of one region by Azure's name for them; none where there is no such region."""

    def image(self, urn: str, region: str) -> Image:
        """An image by `publisher:offer:sku:version`."""

    def accept_terms(self, plan: ImagePlan) -> None:
        """Accept an image's terms, for the whole subscription."""

    def actions_allowed(self, group: str | None) -> Permissions:
        """What the caller may do in the subscription, or in one group of it."""

    def unregistered(self, namespaces: Iterable[str]) -> tuple[str, ...]:
        """Those of the resource providers that the subscription does not use yet."""

    def register(self, namespace: str, deadline: Deadline) -> None:
        """Have the subscription use a resource provider, and wait until it does."""

    def price(self, size: str, region: str, spot: bool = False) -> float | None:
        """US dollars an hour."""

    def prices(self, sizes: Iterable[str]) -> Prices:
        """Prices of many sizes, in every region at once. Never fails."""
