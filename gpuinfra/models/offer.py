"""Sizes that Azure offers, by region, with quota and prices, as in `gpuinfra sizes`."""

from dataclasses import dataclass
from typing import Any

from gpuinfra.models.sizes import Size


@dataclass(frozen=True, slots=True)
class Offer:
    """A size in a region, as Azure lists it for this subscription."""

    size: str
    region: str
    zones: tuple[str, ...]
    family: str
    """The name of its quota."""
    vcpus: int
    memory_gib: float
    gpus: int
    """The number of devices; a part of a GPU is one device."""
    generations: tuple[str, ...]
    """The image generations that it boots: V1, V2."""
    spot_capable: bool
    restriction: str | None = None
    """Why this subscription cannot use it in the region, such as `NotAvailableForSubscription`."""
    restricted_zones: tuple[str, ...] = ()
    """Zones in which this subscription cannot use it."""
    trusted_launch: bool = True
    """Whether the size supports Trusted Launch."""


@dataclass(frozen=True, slots=True)
class Quota:
    """A limit, usually of vCPUs, and its current use."""

    name: str
    limit: int
    used: int

    @property
    def left(self) -> int:
        """The unused part; 0 if the limit is below the use."""
        return max(0, self.limit - self.used)

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "limit": self.limit, "used": self.used, "left": self.left}


@dataclass(frozen=True, slots=True)
class Rate:
    """US dollars per hour on Linux; None without a price."""

    regular: float | None = None
    spot: float | None = None


@dataclass(frozen=True, slots=True)
class Quotas:
    """The quotas that apply to a size in a region; None if Azure has no such quota."""

    family: Quota | None
    region: Quota | None
    """All vCPUs in the region, without spot."""
    spot: Quota | None
    """The quota of spot machines."""

    def as_json(self) -> dict[str, Any]:
        parts = {"family": self.family, "region": self.region, "spot": self.spot}
        return {name: quota.as_json() if quota else None for name, quota in parts.items()}


@dataclass(frozen=True, slots=True)
class PricedOffer:
    """An offer with its prices, and its quotas if requested."""

    offer: Offer
    rate: Rate = Rate()
    quotas: Quotas | None = None

    @property
    def fits(self) -> bool:
        """Whether quota and restrictions allow one more machine. Azure may still lack capacity."""
        drawn = (self.quotas.family, self.quotas.region) if self.quotas else ()
        return self.offer.restriction is None and all(
            quota is None or quota.left >= self.offer.vcpus for quota in drawn
        )

    def as_json(self) -> dict[str, Any]:
        offer = self.offer
        quotas = {"quota": self.quotas.as_json()} if self.quotas else {}
        return {
            "region": offer.region,
            "zones": list(offer.zones),
            "restriction": offer.restriction,
            "restrictedZones": list(offer.restricted_zones),
            "pricePerHourUsd": self.rate.regular,
            "spotPricePerHourUsd": self.rate.spot,
            **quotas,
        }


@dataclass(frozen=True, slots=True)
class SizeOffers:
    """A size and its offers, best first."""

    size: Size
    places: tuple[PricedOffer, ...]

    @property
    def vcpus(self) -> int:
        """The number of vCPUs, equal in all regions."""
        return self.places[0].offer.vcpus

    @property
    def memory_gib(self) -> float:
        """The memory, equal in all regions."""
        return self.places[0].offer.memory_gib

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.size.name,
            "gpu": {"model": self.size.gpu_model, "count": self.size.gpus},
            "vcpus": self.vcpus,
            "memoryGiB": self.memory_gib,
            "regions": [place.as_json() for place in self.places],
        }
