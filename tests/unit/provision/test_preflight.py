"""Checks before the first write, with a fake market."""

import json
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from gpuinfra.diagnostics import Code, Diagnostic, Problem
from gpuinfra.models.plan import Candidate
from gpuinfra.models.sizes import Offer, Quota, Rate
from gpuinfra.models.spec import Spec
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.market import Catalogue, Grant, Image, ImagePlan, Permissions, Prices
from gpuinfra.provision.preflight import ACTIONS, Preflight, preflight
from gpuinfra.provision.waiting import Deadline, Silent

T4, A100 = "Standard_NC4as_T4_v3", "Standard_NC24ads_A100_v4"
FAMILIES = {T4: ("Standard NCASv3_T4 Family", 4), A100: ("StandardNCADSA100v4Family", 24)}


class Notes(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def end(self, step: str, outcome: str) -> None:
        self.lines.append(f"{step}: {outcome}")

    def fail(self, step: str, reason: str) -> None:
        self.lines.append(f"{step}: failed: {reason}")

    def note(self, text: str) -> None:
        self.lines.append(text)


@dataclass
class FakeMarket:
    """A market with everything in it, except the given problems."""

    subscription: str = "00000000-0000-0000-0000-000000000000"
    errors: dict[str, CloudError] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    rights: dict[str | None, Permissions] = field(default_factory=dict)
    restricted: tuple[str, ...] = ()
    missing_providers: tuple[str, ...] = ()
    asked: list[str] = field(default_factory=list)
    hold: threading.Event | None = None

    def _ask(self, what: str, about: str = "") -> None:
        self.asked.append(f"{what} {about}".strip())
        if self.hold and what == "catalogue":
            self.hold.wait(5)
        if what in self.errors:
            raise self.errors[what]

    def subscription_name(self) -> str:
        self._ask("subscription")
        return "My subscription"

    def catalogue(self, region: str) -> Catalogue:
        self._ask("catalogue", region)
        code = "NotAvailableForSubscription" if region in self.restricted else None
        offers = {
            size: Offer(size, region, ("1",), family, vcpus, 28.0, 1, ("V2",), spot_capable=True, restriction=code)
            for size, (family, vcpus) in FAMILIES.items()
        }
        quotas = {family: Quota(family, self.limits.get(region, 100), 0) for family, _ in FAMILIES.values()}
        return Catalogue(region, offers, quotas)

    def offers(self, region: str | None = None) -> dict[tuple[str, str], Offer]:
        self._ask("offers", region or "")
        regions = [region] if region else ["eastus", "westus2"]
        return {(offer.size, each): offer for each in regions for offer in self.catalogue(each).offers.values()}

    def quotas(self, region: str) -> dict[str, Quota]:
        self._ask("quotas", region)
        return dict(self.catalogue(region).quotas)

    def image(self, urn: str, region: str) -> Image:
        self._ask("image", f"{urn} {region}")
        return Image(urn, True, "25.06.18", "V2")

    def accept_terms(self, plan: ImagePlan) -> None:
        raise AssertionError("this is a write")

    def actions_allowed(self, group: str | None) -> Permissions:
        self._ask("rights", group or "")
        return self.rights.get(group, Permissions((Grant(("*",)),)))

    def schedule_regions(self) -> frozenset[str] | None:
        self._ask("schedules")
        return frozenset({"eastus"})

    def unregistered(self, namespaces: Iterable[str]) -> tuple[str, ...]:
        self._ask("providers")
        return tuple(name for name in namespaces if name in self.missing_providers)

    def register(self, namespace: str, deadline: Deadline) -> None:
        raise AssertionError("this is a write")

    def price(self, size: str, region: str, spot: bool = False) -> float | None:
        return self.prices([size]).price(size, region, spot=spot)

    def prices(self, sizes: Iterable[str]) -> Prices:
        self._ask("prices")
        return Prices({(size, "eastus"): Rate(0.526) for size in sizes})


def spec(**fields: Any) -> Spec:
    least = {"apiVersion": "gpuinfra/v1", "name": "my-dsvm", "regions": ["eastus", "westus2"], "sizes": [T4, A100]}
    return Spec.model_validate_json(json.dumps({**least, **fields}))


def run(shop: FakeMarket, wanted: Spec | None = None, seconds: float = 10) -> tuple[Preflight, list[str]]:
    notes = Notes()
    found = preflight(shop, wanted or spec(), Deadline.after(seconds), notes)
    return found, notes.lines


def problem(shop: FakeMarket, wanted: Spec | None = None, seconds: float = 10) -> Diagnostic:
    with pytest.raises(Problem) as caught:
        run(shop, wanted, seconds)
    (diagnostic,) = caught.value.diagnostics
    return diagnostic


def test_preflight_asks_everything_once() -> None:
    shop = FakeMarket(limits={"eastus": 20}, missing_providers=("Microsoft.DevTestLab",))
    found, notes = run(shop)
    assert found.viable == (Candidate("eastus", T4), Candidate("westus2", T4), Candidate("westus2", A100))
    assert [str(each.candidate) for each in found.rejected] == [f"{A100} in eastus"]
    assert found.unregistered == ("Microsoft.DevTestLab",)
    assert set(found.images) == {"eastus", "westus2"}
    assert found.schedule_regions == frozenset({"eastus"})
    assert (found.subscription_name, found.prices.price(T4, "eastus")) == ("My subscription", 0.526)
    urn = "microsoft-dsvm:ubuntu-2204:2204-gen2:latest"
    assert shop.asked[0] == "subscription"
    assert sorted(shop.asked[1:]) == sorted(
        [
            *("catalogue eastus", "catalogue westus2", f"image {urn} eastus", f"image {urn} westus2"),
            *("prices", "providers", "rights", "schedules"),
        ]
    )
    assert notes == ["preflight: checked, 3 of 4 candidates are available"]


def test_preflight_without_a_login_asks_nothing_else() -> None:
    shop = FakeMarket(errors={"subscription": CloudError(Fault.LOGIN, "CredentialUnavailable", "no")})
    found = problem(shop)
    assert (found.code, found.note) == (
        Code.LOGIN_FAILED,
        "looking for the subscription: CredentialUnavailable: no; nothing was created",
    )
    assert shop.asked == ["subscription"]


def test_missing_candidate_lists_every_reason_in_one_table() -> None:
    found = problem(FakeMarket(limits={"eastus": 0, "westus2": 2}), spec(zones=["2"]))
    assert (found.code, found.summary) == (Code.NO_CANDIDATE, "no candidate is available")
    lines = (found.note or "").splitlines()
    assert lines[:3] == [
        "nothing was created",
        f"{T4} in eastus, zone 2       no-zone  not offered in zone 2, only in 1",
        f"{'':43}  quota    needs 4 vCPUs of Standard NCASv3_T4 Family; 0 of 0 left",
    ]
    assert [line.split("  ")[0] for line in lines[3::2]] == [
        f"{A100} in eastus, zone 2",
        f"{T4} in westus2, zone 2",
        f"{A100} in westus2, zone 2",
    ]
    assert lines[-1].endswith("needs 24 vCPUs of StandardNCADSA100v4Family; 2 of 2 left")
    assert "`gpuinfra sizes --gpu T4 --with-quota`" in (found.help or "")


READER, CONTRIBUTOR = Permissions((Grant(("*/read",)),)), Permissions((Grant(("*",)),))


def test_missing_permissions_are_all_named() -> None:
    found = problem(FakeMarket(rights={None: READER, "gpuinfra-my-dsvm": READER}))
    assert found.code is Code.NOT_ALLOWED
    assert all(action in (found.note or "") for action in ACTIONS)
    assert "nothing was created" in (found.note or "")
    assert "--role Contributor --scope /subscriptions/00000000-0000-0000-0000-000000000000" in (found.help or "")


def test_permissions_in_the_group_are_enough() -> None:
    found, _ = run(FakeMarket(rights={None: READER, "gpuinfra-my-dsvm": CONTRIBUTOR}))
    assert found.viable


def test_missing_read_permissions_do_not_block() -> None:
    denied = CloudError(Fault.DENIED, "AuthorizationFailed", "no")
    found, notes = run(FakeMarket(errors=dict.fromkeys(("catalogue", "image", "providers"), denied)))
    assert len(found.viable) == 4
    assert (found.unregistered, found.images) == ((), {})
    assert "asking for sizes in eastus is not allowed, so it was not checked" in notes


def test_error_of_any_request_is_a_problem() -> None:
    found = problem(FakeMarket(errors={"catalogue": CloudError(Fault.THROTTLED, "TooManyRequests", "wait")}))
    assert found.code is Code.THROTTLED
    assert "asking for sizes in eastus" in (found.note or "")


def test_missing_prices_are_not_an_error() -> None:
    found, _ = run(FakeMarket(errors={"prices": CloudError(Fault.UNREACHABLE, "X", "y")}))
    assert found.prices == Prices()


def test_missing_response_times_out() -> None:
    hold = threading.Event()
    try:
        assert problem(FakeMarket(hold=hold), seconds=0).code is Code.TIMED_OUT
    finally:
        hold.set()
