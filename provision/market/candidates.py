"""List the candidates for a machine in the spec's order, with every reason against each."""

from collections.abc import Iterator
from itertools import product

from gpuinfra.models.offer import Offer, Quota
from gpuinfra.models.plan import Candidate, RejectionReason
from gpuinfra.models.spec import Spec
from gpuinfra.provision.market.port import CORES, SPOT_CORES, Catalogue, Image

# Azure's reason codes as text: https://learn.microsoft.com/rest/api/compute/resource-skus/list
RESTRICTIONS = {
    "NotAvailableForSubscription": "Azure does not offer it to this subscription",
    "QuotaId": "this kind of subscription may not have it",
}

STANDARD = "`securityType: Standard` works with it"


def candidates(spec: Spec) -> tuple[Candidate, ...]:
    """Return every combination of region, size and zone. All candidates in the first region come first."""
    places = product(spec.regions, spec.candidate_sizes, spec.zones or (None,))
    return tuple(Candidate(region, size, zone) for region, size, zone in places)


def reasons_against(
    candidate: Candidate,
    spec: Spec,
    catalogue: Catalogue | None,
    image: Image | None,
    *,
    held: Candidate | None = None,
) -> tuple[RejectionReason, ...]:
    """Return every reason against a candidate. Unknown data (None) is not a reason.

    `held` is where the machine is now: a replacement frees the quota that it uses there.
    """
    reasons: list[RejectionReason] = []
    offer = catalogue.offer(candidate.size) if catalogue else None
    if catalogue and offer is None:
        what = candidate.size if catalogue.offers else "any NC size"
        reasons.append(RejectionReason("not-offered", f"{candidate.region} does not offer {what}"))
    if catalogue and offer:
        reasons += _of_offer(candidate, spec, offer)
        reasons += _of_quota(spec, catalogue, offer, _held(catalogue, held))
    if image:
        reasons += _of_image(candidate, spec, offer, image)
    return tuple(reasons)


def _of_offer(candidate: Candidate, spec: Spec, offer: Offer) -> Iterator[RejectionReason]:
    if offer.restriction:
        yield RejectionReason("restricted", _restricted(offer.restriction))
    if candidate.zone and candidate.zone not in offer.zones:
        zones = f"only in {', '.join(offer.zones)}" if offer.zones else "in no zone"
        yield RejectionReason("no-zone", f"not offered in zone {candidate.zone}, {zones}")
    elif candidate.zone and candidate.zone in offer.restricted_zones and not offer.restriction:
        yield RejectionReason("restricted", f"not offered to this subscription in zone {candidate.zone}")
    if spec.priority == "spot" and not offer.spot_capable:
        yield RejectionReason("no-spot", "not offered as spot")
    if spec.security_type == "TrustedLaunch" and not offer.trusted_launch:
        yield RejectionReason("size-security", "does not support Trusted Launch", help=STANDARD)


def _restricted(code: str) -> str:
    words = RESTRICTIONS.get(code)
    return f"{words} ({code})" if words else code


def _held(catalogue: Catalogue, held: Candidate | None) -> Offer | None:
    return catalogue.offer(held.size) if held and held.region == catalogue.region else None


def _of_quota(spec: Spec, catalogue: Catalogue, offer: Offer, held: Offer | None) -> Iterator[RejectionReason]:
    back = held.vcpus if held else 0
    of_family = back if held and held.family == offer.family else 0
    if spec.priority == "spot":
        drawn = [(SPOT_CORES, catalogue.spot_cores, back)]
    else:
        drawn = [
            (offer.family, catalogue.quota(offer.family), of_family),
            (f"{CORES}, the region's total", catalogue.cores, back),
        ]
    for name, quota, freed in drawn:
        if quota and _left(quota, freed) < offer.vcpus:
            left = _left(quota, freed)
            yield RejectionReason(
                "quota",
                f"needs {offer.vcpus} vCPUs of {name}; {left} of {quota.limit} left",
                help=f"ask for more at https://aka.ms/ProdportalCRP: {quota.name} in {catalogue.region}",
            )


def _left(quota: Quota, freed: int) -> int:
    return max(0, quota.limit - max(0, quota.used - freed))


def _of_image(candidate: Candidate, spec: Spec, offer: Offer | None, image: Image) -> Iterator[RejectionReason]:
    if not image.exists:
        yield RejectionReason("image-missing", f"{candidate.region} has no image {image.urn}")
        return
    if offer and image.generation and offer.generations and image.generation not in offer.generations:
        needed = " or ".join(offer.generations)
        yield RejectionReason(
            "image-generation",
            f"boots generation {needed}, and {image.urn} is {image.generation}",
            help="use an image whose name ends in `-gen2`, such as `dsvm-ubuntu-22.04`",
        )
    if spec.security_type == "TrustedLaunch" and not image.trusted_launch:
        yield RejectionReason("image-security", f"{image.urn} does not support Trusted Launch", help=STANDARD)
    if image.plan and image.terms_accepted is False and not spec.accept_image_terms:
        yield RejectionReason(
            "image-terms",
            f"{image.urn} has terms that are not accepted in this subscription",
            help="`acceptImageTerms: true` accepts them",
        )
