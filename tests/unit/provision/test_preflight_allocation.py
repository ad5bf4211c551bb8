"""The quota that is left is shared among the machines of one command."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpuinfra.diagnostics import Problem
from gpuinfra.models.plan import Candidate
from gpuinfra.models.sizes import Offer, Quota
from gpuinfra.models.spec import Spec
from gpuinfra.provision.market import Catalogue
from gpuinfra.provision.preflight import Demand, Preflight, allocate

FAMILY = "Standard NCASv3_T4 Family"
CORES = {"Standard_NC4as_T4_v3": 4, "Standard_NC8as_T4_v3": 8, "Standard_NC16as_T4_v3": 16}
SMALL, LARGE, _ = CORES
PLENTY = 10_000


def demand(
    name: str, *places: tuple[str, str], held: str | None = None, subscription: str = "s", **quotas: Any
) -> Demand:
    """Return a machine that may be at these places, each a region and a size, in regions with these quotas."""
    candidates = tuple(Candidate(region, size) for region, size in places)
    sizes = tuple(dict.fromkeys(size for _, size in places))
    spot = quotas.pop("is_spot", False)
    least = {"apiVersion": "gpuinfra/v1", "name": name, "regions": ("eastus",), "sizes": sizes}
    spec = Spec.model_validate({**least, **({"priority": "spot"} if spot else {})})
    catalogues = {region: _catalogue(region, **quotas) for region, _ in places}
    held_at = Candidate(places[0][0], held) if held else None
    return Demand(spec, subscription, candidates, Preflight("", candidates, catalogues=catalogues), held_at)


def _catalogue(region: str, family: int = PLENTY, cores: int = PLENTY, spot: int = PLENTY, used: int = 0) -> Catalogue:
    numbers = {FAMILY: family, "cores": cores, "lowPriorityCores": spot}
    offers = {
        size: Offer(size, region, (), FAMILY, vcpus, 28.0, 1, ("V2",), spot_capable=True)
        for size, vcpus in CORES.items()
    }
    return Catalogue(region, offers, {name: Quota(name, limit, used) for name, limit in numbers.items()})


def sizes_of(*demands: Demand) -> list[str | None]:
    """Return the first viable place of each machine, or None for one that does not fit."""
    return [None if isinstance(each, Problem) else str(each.viable[0]) for each in allocate(demands)]


def test_earlier_machines_take_their_quota_first() -> None:
    for quota in ("family", "cores"):
        limits: dict[str, Any] = {quota: 8}
        one, two = demand("a", ("eastus", SMALL), **limits), demand("b", ("eastus", LARGE), **limits)
        assert sizes_of(one, two) == [f"{SMALL} in eastus", None]
        assert sizes_of(two, one) == [f"{LARGE} in eastus", None]
        assert sizes_of(two, one, one) == [f"{LARGE} in eastus", None, None]


def test_machine_that_does_not_fit_leaves_the_quota_to_later_ones() -> None:
    large, small = demand("a", ("eastus", LARGE), family=7), demand("b", ("eastus", SMALL), family=7)
    assert sizes_of(large, small) == [None, f"{SMALL} in eastus"]
    (refused, _) = allocate([large, small])
    assert isinstance(refused, Problem)
    assert "the quota suffices for b" in str(refused.diagnostics[0].note)


def test_next_place_is_used_where_the_first_lacks_quota() -> None:
    one = demand("a", ("eastus", SMALL), family=4)
    two = demand("b", ("eastus", SMALL), ("westus2", SMALL), family=4)
    assert sizes_of(one, two, two) == [f"{SMALL} in eastus", f"{SMALL} in westus2", None]
    (_, second, _) = allocate([one, two, two])
    assert not isinstance(second, Problem)
    (rejected,) = second.rejected
    assert rejected.reasons[0].text == f"needs 4 vCPUs of {FAMILY}; 0 of 4 left after a"


def test_spot_and_regular_machines_and_subscriptions_have_separate_quotas() -> None:
    regular, spot = demand("a", ("eastus", SMALL), family=4), demand("b", ("eastus", SMALL), is_spot=True, spot=4)
    assert None not in sizes_of(regular, spot)
    assert sizes_of(spot, spot) == [f"{SMALL} in eastus", None]
    other = demand("c", ("eastus", SMALL), family=4, subscription="t")
    assert None not in sizes_of(regular, other)


def test_replaced_machine_takes_only_what_it_uses_in_addition() -> None:
    replaced = demand("a", ("eastus", SMALL), held=SMALL, family=8, used=4)
    resized = demand("a", ("eastus", LARGE), held=SMALL, family=8, used=4)
    new = demand("b", ("eastus", SMALL), family=8, used=4)
    assert None not in sizes_of(replaced, new)
    assert sizes_of(resized, new) == [f"{LARGE} in eastus", None]
    (_, refused) = allocate([new, resized])
    assert isinstance(refused, Problem)
    assert "a was not changed" in str(refused.diagnostics[0].note)


@given(st.integers(0, 60), st.lists(st.sampled_from(list(CORES)), max_size=8))
def test_machines_that_fit_never_need_more_than_the_quota(limit: int, sizes: list[str]) -> None:
    left, expected = limit, list[bool]()
    for size in sizes:
        expected.append(CORES[size] <= left)
        left -= CORES[size] if expected[-1] else 0
    demands = [demand(f"m{number}", ("eastus", size), family=limit) for number, size in enumerate(sizes)]
    assert [not isinstance(each, Problem) for each in allocate(demands)] == expected
