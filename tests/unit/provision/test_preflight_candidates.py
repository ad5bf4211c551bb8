"""Candidates for a machine, and every reason against each."""

import json
from dataclasses import replace
from typing import Any

import pytest

from gpuinfra.models.plan import Candidate
from gpuinfra.models.sizes import Offer, Quota, Rate
from gpuinfra.models.spec import Spec
from gpuinfra.provision.market import Catalogue, Image, ImagePlan, Prices
from gpuinfra.provision.preflight import candidates, reasons_against

SIZE = "Standard_NC24ads_A100_v4"
FAMILY = "StandardNCADSA100v4Family"
URN = "microsoft-dsvm:ubuntu-2204:2204-gen2:latest"
OFFER = Offer(SIZE, "eastus", ("1", "2"), FAMILY, 24, 220.0, 1, ("V2",), spot_capable=True)
IMAGE = Image(URN, True, "25.06.18", "V2")
PLENTY = (100, 0)


def spec(**fields: Any) -> Spec:
    least = {"apiVersion": "gpuinfra/v1", "name": "my-dsvm", "regions": ["eastus"], "sizes": [SIZE]}
    return Spec.model_validate_json(json.dumps({**least, **fields}))


def catalogue(
    offer: Offer | None = OFFER,
    *,
    family: tuple[int, int] = PLENTY,
    cores: tuple[int, int] = PLENTY,
    spot: tuple[int, int] = PLENTY,
) -> Catalogue:
    """A region with one size; quotas are limits and usage."""
    numbers = {FAMILY: family, "cores": cores, "lowPriorityCores": spot}
    return Catalogue(
        "eastus",
        {offer.size: offer} if offer else {},
        {name: Quota(name, limit, used) for name, (limit, used) in numbers.items()},
    )


def codes(
    spec: Spec,
    catalogue: Catalogue | None,
    image: Image | None = IMAGE,
    zone: str | None = None,
    held: Candidate | None = None,
) -> list[str]:
    reasons = reasons_against(Candidate("eastus", SIZE, zone), spec, catalogue, image, held=held)
    return [reason.code for reason in reasons]


def test_candidates_follow_the_order_of_the_spec() -> None:
    wanted = spec(
        regions=["southcentralus", "eastus"], sizes=["Standard_NC8as_T4_v3", "Standard_NC4as_T4_v3"], zones=["2", "1"]
    )
    assert [str(each) for each in candidates(wanted)][:5] == [
        "Standard_NC8as_T4_v3 in southcentralus, zone 2",
        "Standard_NC8as_T4_v3 in southcentralus, zone 1",
        "Standard_NC4as_T4_v3 in southcentralus, zone 2",
        "Standard_NC4as_T4_v3 in southcentralus, zone 1",
        "Standard_NC8as_T4_v3 in eastus, zone 2",
    ]
    assert candidates(spec()) == (Candidate("eastus", SIZE, None),)


def test_gpu_request_is_a_candidate_for_each_size() -> None:
    wanted = spec(sizes=None, gpu={"model": "T4"})
    assert [each.size for each in candidates(wanted)] == [
        "Standard_NC4as_T4_v3",
        "Standard_NC8as_T4_v3",
        "Standard_NC16as_T4_v3",
    ]


def test_available_candidate_has_no_reasons() -> None:
    assert codes(spec(), catalogue()) == []
    assert codes(spec(), catalogue(), zone="1") == []


def test_unknown_facts_are_not_a_reason() -> None:
    assert codes(spec(), None, None) == []
    assert codes(spec(), Catalogue("eastus", {SIZE: OFFER}, {}), None) == []
    assert codes(spec(), None, Image(URN, exists=False)) == ["image-missing"]
    assert codes(spec(), catalogue(), Image(URN, True, "1", None)) == []


def test_size_that_is_not_offered_is_a_reason() -> None:
    other = replace(OFFER, size="Standard_NC4as_T4_v3")
    (reason,) = reasons_against(Candidate("eastus", SIZE), spec(), catalogue(other), IMAGE)
    assert (reason.code, reason.text) == ("not-offered", f"eastus does not offer {SIZE}")
    (reason,) = reasons_against(Candidate("eastus", SIZE), spec(), catalogue(None), IMAGE)
    assert reason.text == "eastus does not offer any NC size"


def test_restricted_size_is_a_reason() -> None:
    restricted = catalogue(replace(OFFER, restriction="NotAvailableForSubscription", restricted_zones=("1",)))
    (reason,) = reasons_against(Candidate("eastus", SIZE, "1"), spec(), restricted, IMAGE)
    assert reason.code == "restricted"
    assert reason.text == "Azure does not offer it to this subscription (NotAvailableForSubscription)"
    assert (
        reasons_against(Candidate("eastus", SIZE), spec(), catalogue(replace(OFFER, restriction="New")), None)[0].text
        == "New"
    )


def test_missing_or_restricted_zone_is_a_reason() -> None:
    limited = catalogue(replace(OFFER, restricted_zones=("2",)))
    assert codes(spec(), limited, zone="1") == []
    assert codes(spec(), limited, zone="2") == ["restricted"]
    assert codes(spec(), limited, zone="3") == ["no-zone"]
    assert codes(spec(), limited) == []
    (reason,) = reasons_against(Candidate("eastus", SIZE, "1"), spec(), catalogue(replace(OFFER, zones=())), IMAGE)
    assert reason.text == "not offered in zone 1, in no zone"


def test_missing_quota_of_family_or_region_is_a_reason() -> None:
    (reason,) = reasons_against(Candidate("eastus", SIZE), spec(), catalogue(family=(0, 0)), IMAGE)
    assert (reason.code, reason.text) == ("quota", f"needs 24 vCPUs of {FAMILY}; 0 of 0 left")
    assert FAMILY in (reason.help or "")
    (reason,) = reasons_against(Candidate("eastus", SIZE), spec(), catalogue(cores=(100, 80)), IMAGE)
    assert reason.text == "needs 24 vCPUs of cores, the region's total; 20 of 100 left"
    assert codes(spec(), catalogue(family=(24, 0), cores=(24, 0))) == []
    assert codes(spec(), catalogue(family=(23, 0), cores=(23, 0))) == ["quota", "quota"]
    assert codes(spec(), catalogue(spot=(0, 0))) == []


def test_spot_has_its_own_quota() -> None:
    spot = spec(priority="spot")
    assert codes(spot, catalogue(family=(0, 0), cores=(0, 0))) == []
    (reason,) = reasons_against(Candidate("eastus", SIZE), spot, catalogue(spot=(10, 0)), IMAGE)
    assert reason.text == "needs 24 vCPUs of lowPriorityCores; 10 of 10 left"
    assert codes(spot, catalogue(replace(OFFER, spot_capable=False))) == ["no-spot"]


def test_vcpus_of_the_existing_machine_count_as_free() -> None:
    full = catalogue(family=(24, 24), cores=(24, 24))
    assert codes(spec(), full) == ["quota", "quota"]
    assert codes(spec(), full, held=Candidate("eastus", SIZE)) == []
    lowered = catalogue(family=(20, 24))
    assert codes(spec(), lowered, held=Candidate("eastus", SIZE)) == ["quota"]


def test_unsuitable_image_is_a_reason() -> None:
    assert codes(spec(), catalogue(), Image(URN, exists=False)) == ["image-missing"]
    assert codes(spec(), catalogue(), replace(IMAGE, generation="V1")) == ["image-generation"]
    both = catalogue(replace(OFFER, generations=("V1", "V2")))
    assert codes(spec(), both, replace(IMAGE, generation="V1")) == []


@pytest.mark.parametrize(
    ("accepted", "consent", "expected"),
    [
        (False, False, ["image-terms"]),
        (False, True, []),
        (True, False, []),
        (None, False, []),
    ],
)
def test_image_terms_that_are_not_accepted_are_a_reason(
    accepted: bool | None, consent: bool, expected: list[str]
) -> None:
    sold = replace(IMAGE, plan=ImagePlan("fortinet", "payg", "fortigate"), terms_accepted=accepted)
    assert codes(spec(acceptImageTerms=consent), catalogue(), sold) == expected


def test_trusted_launch_needs_a_size_and_an_image_that_support_it() -> None:
    size, image = catalogue(replace(OFFER, trusted_launch=False)), replace(IMAGE, trusted_launch=False)
    assert codes(spec(securityType="TrustedLaunch"), catalogue()) == []
    assert codes(spec(securityType="TrustedLaunch"), size, image) == ["size-security", "image-security"]
    assert codes(spec(), size, image) == []


def test_all_reasons_are_listed_at_once() -> None:
    worst = catalogue(replace(OFFER, restriction="NotAvailableForSubscription", spot_capable=False), spot=(0, 0))
    found = codes(spec(priority="spot"), worst, replace(IMAGE, generation="V1"), zone="3")
    assert found == ["restricted", "no-zone", "no-spot", "quota", "image-generation"]


@pytest.mark.parametrize(("rate", "expected"), [(0.31, ["spot-price"]), (0.3, []), (None, [])])
def test_spot_price_above_the_limit_is_a_reason(rate: float | None, expected: list[str]) -> None:
    prices, place = Prices({(SIZE, "eastus"): Rate(3.6, rate)}), Candidate("eastus", SIZE)
    limited = spec(priority="spot", spot={"maxPrice": 0.3})
    assert [each.code for each in reasons_against(place, limited, catalogue(), IMAGE, prices=prices)] == expected
    for other in (spec(priority="spot"), spec()):
        assert reasons_against(place, other, catalogue(), IMAGE, prices=prices) == ()
