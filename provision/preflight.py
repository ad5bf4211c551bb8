"""Check everything before the first write: login, permissions, and every candidate with each reason against it."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field, replace
from itertools import product
from shlex import quote
from typing import TypeVar

from gpuinfra.diagnostics import Code, Diagnostic, Problem
from gpuinfra.models.images import ALIASES
from gpuinfra.models.plan import Candidate, RejectedCandidate, RejectionReason
from gpuinfra.models.sizes import SIZES, Offer, Quota
from gpuinfra.models.spec import Spec
from gpuinfra.provision.errors import CloudError, Fault, explain, not_allowed
from gpuinfra.provision.market import CORES, SPOT_CORES, Catalogue, Image, Market, Prices
from gpuinfra.provision.waiting import Deadline, Progress

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
    prices: Prices | None = None,
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
        reasons += quota_reasons(spec, catalogue, candidate, held)
    if too_dear := spot_price_problem(
        spec, prices.price(candidate.size, candidate.region, spot=True) if prices else None
    ):
        reasons.append(RejectionReason("spot-price", too_dear, help="raise `spot.maxPrice`, or remove it"))
    if image:
        reasons += _of_image(candidate, spec, offer, image)
    return tuple(reasons)


def spot_price_problem(spec: Spec, price: float | None) -> str:
    """Return that the spot price is above the spec's limit, or an empty string. Azure then starts no spot VM."""
    limit = spec.spot.max_price if spec.priority == "spot" else None
    if limit is None or price is None or price <= limit:
        return ""
    return f"spot costs ${price:.3f} an hour now, more than `spot.maxPrice: {limit:g}`"


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


@dataclass(frozen=True)
class Draw:
    """The vCPUs of one quota that a machine needs at a place."""

    label: str
    quota: Quota
    vcpus: int
    freed: int
    """What the machine uses now, and frees."""

    @property
    def more(self) -> int:
        """The vCPUs that it takes in addition to those that it frees."""
        return max(0, self.vcpus - self.freed)


@dataclass(frozen=True)
class Claim:
    """The vCPUs of one quota that an earlier machine of the same command takes."""

    machine: str
    quota: str
    vcpus: int


def draws(spec: Spec, catalogue: Catalogue, place: Candidate, held: Candidate | None) -> Iterator[Draw]:
    """Yield what a machine needs of each quota at a place, if the size and the quota are known."""
    offer, now = catalogue.offer(place.size), _held(catalogue, held)
    if offer is None:
        return
    back = now.vcpus if now else 0
    of_family = back if now and now.family == offer.family else 0
    if spec.priority == "spot":
        found = [(SPOT_CORES, catalogue.spot_cores, back)]
    else:
        found = [
            (offer.family, catalogue.quota(offer.family), of_family),
            (f"{CORES}, the region's total", catalogue.cores, back),
        ]
    yield from (Draw(label, quota, offer.vcpus, freed) for label, quota, freed in found if quota)


def quota_reasons(
    spec: Spec, catalogue: Catalogue, place: Candidate, held: Candidate | None, claims: Sequence[Claim] = ()
) -> Iterator[RejectionReason]:
    """Yield a reason for each quota that does not suffice, after the claims of earlier machines."""
    for draw in draws(spec, catalogue, place, held):
        taken = [claim for claim in claims if claim.quota == draw.quota.name and claim.vcpus]
        left = max(0, _left(draw.quota, draw.freed) - sum(claim.vcpus for claim in taken))
        if left < draw.vcpus:
            after = f" after {', '.join(claim.machine for claim in taken)}" if taken else ""
            yield RejectionReason(
                "quota",
                f"needs {draw.vcpus} vCPUs of {draw.label}; {left} of {draw.quota.limit} left{after}",
                help=f"ask for more at https://aka.ms/ProdportalCRP: {draw.quota.name} in {catalogue.region}",
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


PROVIDERS = ("Microsoft.Compute", "Microsoft.Network", "Microsoft.DevTestLab")
ACTIONS = (
    "Microsoft.Resources/subscriptions/resourceGroups/write",
    "Microsoft.Network/networkSecurityGroups/write",
    "Microsoft.Network/virtualNetworks/write",
    "Microsoft.Network/publicIPAddresses/write",
    "Microsoft.Network/networkInterfaces/write",
    "Microsoft.Compute/virtualMachines/write",
    "Microsoft.Compute/virtualMachines/start/action",
    "Microsoft.Compute/virtualMachines/deallocate/action",
    "Microsoft.Compute/virtualMachines/delete",
)
STEP = "preflight"
THREADS = 8
# A price is optional, so the wait for it is shorter than for the rest.
PRICE_SECONDS = 10
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Preflight:
    """The result of the checks, with at least one viable candidate."""

    subscription_name: str
    viable: tuple[Candidate, ...]
    rejected: tuple[RejectedCandidate, ...] = ()
    unregistered: tuple[str, ...] = ()
    """Resource providers to register before the first write."""
    images: dict[str, Image] = field(default_factory=dict)
    """By region; a region that could not be queried is absent."""
    prices: Prices = field(default_factory=Prices)
    catalogues: dict[str, Catalogue] = field(default_factory=dict)
    """By region, as `images`."""
    schedule_regions: frozenset[str] | None = None
    """The regions that offer Azure's daily shutdown schedule; None if unknown."""


def preflight(
    market: Market, spec: Spec, deadline: Deadline, progress: Progress, held: Candidate | None = None
) -> Preflight:
    """Check everything in parallel. Raise Problem with all reasons if no candidate is viable.

    `held` is where the machine is now: a replacement frees the quota that it uses there.
    """
    progress.begin(STEP, "checking")
    try:
        found = _preflight(market, spec, deadline, progress, held)
    except Problem as problem:
        progress.fail(STEP, problem.diagnostics[0].summary)
        raise
    count = len(found.viable) + len(found.rejected)
    progress.end(STEP, f"checked, {len(found.viable)} of {count} candidates are available")
    return found


def _preflight(market: Market, spec: Spec, deadline: Deadline, progress: Progress, held: Candidate | None) -> Preflight:
    # First and alone: the others would fail the same way, and each would look for credentials and import the SDK.
    try:
        name = market.subscription_name()
    except CloudError as error:
        raise explain(error, "looking for the subscription", "nothing was created") from error
    urn = ALIASES.get(spec.image, spec.image)
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="preflight")
    try:
        missing = pool.submit(missing_actions, market, spec.group_name)
        unregistered = pool.submit(market.unregistered, PROVIDERS)
        schedules = pool.submit(market.schedule_regions)
        catalogues = {region: pool.submit(market.catalogue, region) for region in spec.regions}
        images = {region: pool.submit(market.image, urn, region) for region in spec.regions}
        prices = pool.submit(market.prices, spec.candidate_sizes)

        def get(future: Future[Answer], doing: str) -> Answer | None:
            return _get(future, doing, deadline, progress)

        if actions := get(missing, "asking what is allowed"):
            raise not_allowed(actions, market.subscription, spec.group_name)
        unknown = get(unregistered, "asking for resource providers") or ()
        found = {region: get(each, f"asking for sizes in {region}") for region, each in catalogues.items()}
        pictures = {region: get(each, f"asking for the image in {region}") for region, each in images.items()}
        known_prices = _prices(prices, deadline)
        viable, rejected = sort_out(spec, found, pictures, held, known_prices)
        if not viable:
            raise no_candidate(spec, rejected)
        known = {region: image for region, image in pictures.items() if image}
        regions = get(schedules, "asking where Azure's daily schedule is offered")
        offered = {region: catalogue for region, catalogue in found.items() if catalogue}
        return Preflight(name, viable, rejected, unknown, known, known_prices, offered, regions)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def missing_actions(market: Market, group: str) -> tuple[str, ...]:
    """Return those of ACTIONS that the caller may do neither in the subscription nor in the group."""
    missing = _not_allowed(market.actions_allowed(None).allows, ACTIONS)
    return _not_allowed(market.actions_allowed(group).allows, missing) if missing else ()


def _not_allowed(allows: Callable[[str], bool], actions: Iterable[str]) -> tuple[str, ...]:
    return tuple(action for action in actions if not allows(action))


def _get(future: Future[Answer], doing: str, deadline: Deadline, progress: Progress) -> Answer | None:
    """Return a result, or None if the caller may not query it: rights in one group suffice to create a machine."""
    try:
        return future.result(timeout=deadline.left)
    except CloudError as error:
        if error.fault is Fault.DENIED:
            progress.note(f"{doing} is not allowed, so it was not checked")
            return None
        raise explain(error, doing, "nothing was created") from error
    except FutureTimeoutError as error:
        late = CloudError(Fault.TIMEOUT, "Timeout", "Azure did not answer in time")
        raise explain(late, doing, "nothing was created") from error


def _prices(future: Future[Prices], deadline: Deadline) -> Prices:
    try:
        return future.result(timeout=deadline.within(PRICE_SECONDS).left)
    except (CloudError, FutureTimeoutError):
        return Prices()


def sort_out(
    spec: Spec,
    catalogues: dict[str, Catalogue | None],
    images: dict[str, Image | None],
    held: Candidate | None = None,
    prices: Prices | None = None,
) -> tuple[tuple[Candidate, ...], tuple[RejectedCandidate, ...]]:
    """Return the viable candidates, and the others with every reason."""
    viable, rejected = [], []
    for each in candidates(spec):
        reasons = reasons_against(
            each, spec, catalogues.get(each.region), images.get(each.region), held=held, prices=prices
        )
        if reasons:
            rejected.append(RejectedCandidate(each, reasons))
        else:
            viable.append(each)
    return tuple(viable), tuple(rejected)


def no_candidate(spec: Spec, rejected: Sequence[RejectedCandidate], state: str = "nothing was created") -> Problem:
    """Return the Problem for a spec without a viable candidate, with all reasons. `state` is the current state."""
    helps = list(dict.fromkeys(reason.help for each in rejected for reason in each.reasons if reason.help))
    models = dict.fromkeys(SIZES[size].gpu_model for size in spec.candidate_sizes)
    sizes = " or ".join(f"`gpuinfra sizes --gpu {quote(model)} --with-quota`" for model in models)
    return Problem(
        Diagnostic(
            Code.NO_CANDIDATE,
            "no candidate is available",
            note="\n".join([state, *reason_table(rejected)]),
            help="; ".join([f"{sizes} lists regions with quota", *helps]),
        )
    )


def reason_table(rejected: Sequence[RejectedCandidate]) -> list[str]:
    """Return candidate, code and reason in columns. A candidate with two reasons has two lines."""
    rows = [
        (str(each.candidate) if number == 0 else "", reason.code, reason.text)
        for each in rejected
        for number, reason in enumerate(each.reasons)
    ]
    first, second = (max((len(row[column]) for row in rows), default=0) for column in (0, 1))
    return [f"{place:{first}}  {code:{second}}  {text}" for place, code, text in rows]


@dataclass(frozen=True)
class Demand:
    """A machine that needs quota: its places in order, and the result of its own preflight."""

    spec: Spec
    subscription: str
    places: tuple[Candidate, ...]
    checked: Preflight
    held: Candidate | None = None
    """Where the machine is now: a replacement frees the quota that it uses there."""


Claims = dict[tuple[str, str], list[Claim]]
"""What the machines so far take, by subscription and region."""


def allocate(demands: Sequence[Demand]) -> list[Preflight | Problem]:
    """Return for each machine its preflight with only the places that have quota left, or a Problem if none is left.

    Machines count in their order: each takes the quota of its first place that fits. One that does not fit takes none.
    """
    claims: Claims = defaultdict(list)
    lacking = [_claim(demand, claims) for demand in demands]
    pairs = list(zip(demands, lacking, strict=True))
    fits = [demand.spec.name for demand, rejected in pairs if len(rejected) < len(demand.places)]
    return [_limited(demand, rejected, fits) for demand, rejected in pairs]


def _claim(demand: Demand, claims: Claims) -> tuple[RejectedCandidate, ...]:
    """Return the places that lack quota, and claim that of the first other place."""
    reasons = {place: tuple(_reasons(demand, place, claims)) for place in demand.places}
    first = next((place for place in demand.places if not reasons[place]), None)
    if first and (catalogue := demand.checked.catalogues.get(first.region)):
        claims[demand.subscription, first.region] += [
            Claim(demand.spec.name, draw.quota.name, draw.more)
            for draw in draws(demand.spec, catalogue, first, demand.held)
        ]
    return tuple(RejectedCandidate(place, found) for place, found in reasons.items() if found)


def _reasons(demand: Demand, place: Candidate, claims: Claims) -> Iterable[RejectionReason]:
    catalogue = demand.checked.catalogues.get(place.region)
    if catalogue is None:
        return ()
    return quota_reasons(demand.spec, catalogue, place, demand.held, claims[demand.subscription, place.region])


def _limited(demand: Demand, rejected: tuple[RejectedCandidate, ...], fits: Sequence[str]) -> Preflight | Problem:
    checked, lacking = demand.checked, {each.candidate for each in rejected}
    all_rejected = (*checked.rejected, *rejected)
    if len(lacking) < len(demand.places):
        viable = tuple(each for each in checked.viable if each not in lacking)
        return replace(checked, viable=viable, rejected=all_rejected)
    state = f"{demand.spec.name} was not changed" if demand.held else "nothing was created for it"
    return no_candidate(
        demand.spec, all_rejected, f"{state}; of this command, the quota suffices for {', '.join(fits)}"
    )
