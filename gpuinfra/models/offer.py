"""What Azure offers: sizes by region, with quota and prices. `gpuinfra sizes` lists it."""

from __future__ import annotations

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
    """The name of its quota, as Azure spells it here."""
    vcpus: int
    memory_gib: float
    gpus: int
    """Devices; a part of a GPU is one as well."""
    generations: tuple[str, ...]
    """The generations of image that it boots: V1, V2."""
    spot_capable: bool
    restriction: str | None = None
    """Why this subscription may not have it anywhere in the region, such as `NotAvailableForSubscription`."""
    restricted_zones: tuple[str, ...] = ()
    """Zones that this subscription may not have it in."""
    trusted_launch: bool = True
    """Whether a machine of this size can have Trusted Launch."""


@dataclass(frozen=True, slots=True)
class Quota:
    """A limit, mostly of vCPUs, and how much of it is used."""

    name: str
    limit: int
    used: int

    @property
    def left(self) -> int:
        """What can still be had. A limit that was lowered below its use leaves nothing."""
        return max(0, self.limit - self.used)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {"name": self.name, "limit": self.limit, "used": self.used, "left": self.left}


@dataclass(frozen=True, slots=True)
class Rate:
    """US dollars an hour on Linux; None where there is no such price."""

    regular: float | None = None
    spot: float | None = None


@dataclass(frozen=True, slots=True)
class Quotas:
    """What a size draws on in a region; None where Azure names no such quota."""

    family: Quota | None
    region: Quota | None
    """All vCPUs there, spot left out."""
    spot: Quota | None
    """All that spot machines draw on, and nothing else does."""

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        parts = {"family": self.family, "region": self.region, "spot": self.spot}
        return {name: quota.as_json() if quota else None for name, quota in parts.items()}


@dataclass(frozen=True, slots=True)
class Place:
    """A size in a region with its prices, and with its quotas where they were asked for."""

    offer: Offer
    rate: Rate = Rate()
    quotas: Quotas | None = None

    @property
    def fits(self) -> bool:
        """Whether one more machine could be had, as far as is known: quota is no capacity."""
        drawn = (self.quotas.family, self.quotas.region) if self.quotas else ()
        return self.offer.restriction is None and all(
            quota is None or quota.left >= self.offer.vcpus for quota in drawn
        )

    def as_json(self) -> dict[str, Any]:
        """For programs."""
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
class Listed:
    """A size and every place that has it, the best first."""

    size: Size
    places: tuple[Place, ...]

    @property
    def vcpus(self) -> int:
        """The same everywhere."""
        return self.places[0].offer.vcpus

    @property
    def memory_gib(self) -> float:
        """The same everywhere."""
        return self.places[0].offer.memory_gib

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "name": self.size.name,
            "gpu": {"model": self.size.gpu_model, "count": self.size.gpus},
            "vcpus": self.vcpus,
            "memoryGiB": self.memory_gib,
            "regions": [place.as_json() for place in self.places],
        }
