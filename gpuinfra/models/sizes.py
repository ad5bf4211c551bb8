"""The NC sizes with their GPUs, the successors of retired sizes, and where Azure offers them at which price."""

import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import WithJsonSchema
from pydantic_core import PydanticCustomError

from gpuinfra.diagnostics import Code, nearest
from gpuinfra.models.base import checked, rejection


@dataclass(frozen=True, slots=True)
class Size:
    """A size and its GPU. `gpus` below 1 is a part of a GPU."""

    name: str
    gpu_model: str
    gpus: float
    confidential: bool = False
    """Whether it boots only as a confidential VM. Specs cannot use such sizes."""


# For each GPU model from the smallest machine to the largest, which is also the order of prices.
SIZES = {
    size.name: size
    for size in (
        Size("Standard_NC4as_T4_v3", "T4", 1),
        Size("Standard_NC8as_T4_v3", "T4", 1),
        Size("Standard_NC16as_T4_v3", "T4", 1),
        Size("Standard_NC64as_T4_v3", "T4", 4),
        Size("Standard_NC24ads_A100_v4", "A100", 1),
        Size("Standard_NC48ads_A100_v4", "A100", 2),
        Size("Standard_NC96ads_A100_v4", "A100", 4),
        Size("Standard_NC40ads_H100_v5", "H100", 1),
        Size("Standard_NC80adis_H100_v5", "H100", 2),
        Size("Standard_NCC40ads_H100_v5", "H100", 1, confidential=True),
        Size("Standard_NC24lds_xl_RTXPRO6000BSE_v6", "RTXPRO6000", 0.25),
        Size("Standard_NC36lds_xl_RTXPRO6000BSE_v6", "RTXPRO6000", 0.25),
        Size("Standard_NC36ds_xl_RTXPRO6000BSE_v6", "RTXPRO6000", 0.25),
        Size("Standard_NC72lds_xl_RTXPRO6000BSE_v6", "RTXPRO6000", 0.5),
        Size("Standard_NC72ds_xl_RTXPRO6000BSE_v6", "RTXPRO6000", 0.5),
        Size("Standard_NC144lds_xl_RTXPRO6000BSE_v6", "RTXPRO6000", 1),
        Size("Standard_NC144ds_xl_RTXPRO6000BSE_v6", "RTXPRO6000", 1),
        Size("Standard_NC288lds_xl_RTXPRO6000BSE_v6", "RTXPRO6000", 2),
        Size("Standard_NC288ds_xl_RTXPRO6000BSE_v6", "RTXPRO6000", 2),
    )
}
# https://learn.microsoft.com/azure/virtual-machines/n-series-migration
# A few sovereign regions keep NCv3 until 2027-06; gpuinfra makes no exception for them.
RETIRED = {
    **{
        f"Standard_{name}{suffix}": (successor, "September 2023")
        for suffix in ("", "_Promo")
        for name, successor in (
            ("NC6", "Standard_NC4as_T4_v3"),
            ("NC12", "Standard_NC16as_T4_v3"),
            ("NC24", "Standard_NC64as_T4_v3"),
            ("NC24r", "Standard_NC64as_T4_v3"),
        )
    },
    **{
        f"Standard_{name}_{version}": (successor, month)
        for version, month in (("v2", "September 2023"), ("v3", "September 2025"))
        for name, successor in (
            ("NC6s", "Standard_NC24ads_A100_v4"),
            ("NC12s", "Standard_NC48ads_A100_v4"),
            ("NC24s", "Standard_NC96ads_A100_v4"),
            ("NC24rs", "Standard_NC96ads_A100_v4"),
        )
    },
}
# NC, NCv2 and NCv3.
RETIRED_GPUS = {"K80": ("T4", "September 2023"), "P100": ("A100", "September 2023"), "V100": ("A100", "September 2025")}
GPU_MODELS = tuple(dict.fromkeys(size.gpu_model for size in SIZES.values()))
# The minimum driver version of GPUs that need a newer driver than the aliased images have.
# https://learn.microsoft.com/azure/virtual-machines/linux/n-series-driver-setup: the GRID driver for NCv6.
NEEDED_DRIVERS = {"RTXPRO6000": 595}
# GPUs whose driver needs Secure Boot and vTPM off, by the same page: they cannot have Trusted Launch.
GPUS_WITHOUT_VTPM = ("RTXPRO6000",)


def needed_driver(size: str) -> int | None:
    """Return the driver version that a size needs and aliased images lack, or None."""
    return NEEDED_DRIVERS.get(SIZES[size].gpu_model) if size in SIZES else None


def retired_gpu(text: str) -> tuple[str, str] | None:
    """Return why a GPU is not available and what to write instead, or None if Azure has not retired it."""
    found = re.fullmatch(rf"(?:nvidia[ -])?(?:tesla[ -])?({'|'.join(RETIRED_GPUS)})", text, re.IGNORECASE)
    if found is None:
        return None
    model = found[1].upper()
    successor, month = RETIRED_GPUS[model]
    return f"Azure retired its NC sizes with {model} in {month}", f"its successor is `gpu: {{model: {successor}}}`"


def check_gpu_model(text: str) -> None:
    """Reject a GPU that Azure has retired, with its successor."""
    if found := retired_gpu(text):
        raise rejection(Code.RETIRED_SIZE, "retired GPU", *found)


def check_size(name: str) -> None:
    """Reject names that are not NC sizes which Azure still offers."""
    if name in SIZES:
        if SIZES[name].confidential:
            raise _confidential(SIZES[name])
        return
    if retired := retired_gpu(name):
        raise rejection(Code.RETIRED_SIZE, "retired GPU", *retired)
    # Compare without the common prefix, which people often omit.
    known = {_bare(size): size for size in (*SIZES, *RETIRED)}
    bare = nearest(_bare(name), known)
    meant = known[bare] if bare else None
    if meant in SIZES and SIZES[meant].confidential:
        raise _confidential(SIZES[meant])
    if meant in RETIRED and _bare(meant) == _bare(name):
        successor, month = RETIRED[meant]
        raise rejection(
            Code.RETIRED_SIZE,
            "retired VM size",
            f"Azure retired it in {month}",
            f"its successor is `{successor}`",
        )
    if meant in RETIRED:
        meant = RETIRED[meant][0]  # do not suggest a retired size
    raise rejection(
        Code.UNKNOWN_SIZE,
        "unknown VM size",
        "not an NC size that Azure offers",
        f"did you mean `{meant}`?" if meant else "for example `Standard_NC4as_T4_v3`",
    )


def _confidential(size: Size) -> PydanticCustomError:
    same = sizes_with(size.gpu_model, int(size.gpus))[0]
    return rejection(
        Code.UNSUPPORTED_SIZE,
        "unsupported VM size",
        "it boots only as a confidential VM (`securityType: ConfidentialVM`), which gpuinfra does not create",
        f"`{same}` has the same GPU",
    )


def _bare(name: str) -> str:
    return name.casefold().removeprefix("standard_")


def sizes_with(gpu_model: str, gpus: int) -> tuple[str, ...]:
    """Return the sizes with this GPU, cheapest first."""
    return tuple(
        size.name
        for size in SIZES.values()
        if size.gpu_model == gpu_model and size.gpus == gpus and not size.confidential
    )


def gpu_counts(gpu_model: str) -> tuple[int, ...]:
    """Return how many of this GPU a machine can have."""
    counts = {
        int(size.gpus)
        for size in SIZES.values()
        if size.gpu_model == gpu_model and size.gpus >= 1 and not size.confidential
    }
    return tuple(sorted(counts))


USABLE = tuple(size.name for size in SIZES.values() if not size.confidential)
SizeName = Annotated[str, checked(check_size), WithJsonSchema({"type": "string", "enum": list(USABLE)})]


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
