"""Check everything before the first write: the login, the permissions, and where the machine is available."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from shlex import quote
from typing import TypeVar

from gpuinfra.diagnostics import Code, Diagnostic, Problem
from gpuinfra.models.images import ALIASES
from gpuinfra.models.plan import Candidate, RejectedCandidate
from gpuinfra.models.sizes import SIZES
from gpuinfra.models.spec import Spec
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.market.candidates import candidates, reasons_against
from gpuinfra.provision.market.port import Catalogue, Image, Market, Prices
from gpuinfra.provision.problems import explain, not_allowed
from gpuinfra.provision.progress import Progress
from gpuinfra.provision.waiting import Deadline

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
        viable, rejected = sort_out(spec, found, pictures, held)
        if not viable:
            raise no_candidate(spec, rejected)
        known = {region: image for region, image in pictures.items() if image}
        regions = get(schedules, "asking where Azure's daily schedule is offered")
        return Preflight(name, viable, rejected, unknown, known, _prices(prices, deadline), regions)
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
) -> tuple[tuple[Candidate, ...], tuple[RejectedCandidate, ...]]:
    """Return the viable candidates, and the others with every reason."""
    viable, rejected = [], []
    for each in candidates(spec):
        reasons = reasons_against(each, spec, catalogues.get(each.region), images.get(each.region), held=held)
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
