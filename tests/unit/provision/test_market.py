"""The list of sizes: selection, order and layout."""

import io

import pytest
from rich.console import Console

from gpuinfra.models.sizes import SizeOffers
from gpuinfra.provision.market import list_sizes
from gpuinfra.views import sizes as view
from tests.unit.provision.test_preflight import A100, T4, FakeMarket

SHOWN = f"""\
SIZE                      GPU   GPUS  VCPUS  MEMORY    FROM  SPOT FROM  REGIONS
{T4}      T4       1      4  28 GiB  $0.526          -  eastus, westus2
{A100}  A100     1     24  28 GiB  $0.526          -  eastus, westus2
"""


def show(sizes: tuple[SizeOffers, ...], *, by_region: bool = False, with_quota: bool = False) -> None:
    view.show(sizes, by_region=by_region, with_quota=with_quota, simulated=False, json=False)


def test_sizes_are_listed_one_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    shop = FakeMarket()
    show(list_sizes(shop))
    assert capsys.readouterr().out == SHOWN
    assert sorted(each for each in shop.asked if not each.startswith("catalogue")) == ["offers", "prices"]


def test_regions_wrap_in_their_column_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=76, highlight=False, soft_wrap=True)
    monkeypatch.setattr(view, "results", lambda: console)
    monkeypatch.setattr(view, "MIN_WIDTH", 8)
    show(list_sizes(FakeMarket(), "T4"))
    lines = stream.getvalue().splitlines()
    assert lines[1:] == [f"{T4}  T4      1      4  28 GiB  $0.526          -  eastus,", " " * 67 + "westus2"]


def test_sizes_are_filtered_by_gpu_and_region() -> None:
    (listed,) = list_sizes(FakeMarket(), "A100", ["westus2", "eastus"])
    assert (listed.size.name, [place.offer.region for place in listed.places]) == (A100, ["eastus", "westus2"])
    (listed,) = list_sizes(FakeMarket(), "A100", ["westus2"])
    assert [place.offer.region for place in listed.places] == ["westus2"]
    assert list_sizes(FakeMarket(), "H100") == ()


def test_regions_with_quota_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    found = list_sizes(FakeMarket(limits={"eastus": 2}), "T4", with_quota=True)
    show(found, by_region=True, with_quota=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("  ")[-1] == "SPOT LEFT"
    assert [line.split()[6] for line in lines[1:]] == ["westus2", "eastus"]
    assert "100 of 100" in lines[1]
    assert "2 of 2" in lines[2]
    assert found[0].as_json()["regions"][0]["quota"]["family"]["left"] == 100


def test_restricted_region_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    shop = FakeMarket(restricted=("eastus",))
    show(list_sizes(shop, "T4"))
    shown = capsys.readouterr()
    assert "westus2, eastus*\n" in shown.out
    assert shown.err == "* not available to this subscription\n"


def test_empty_list_prints_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    show(())
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "no NC size is available there\n")


@pytest.mark.parametrize(("gpus", "shown"), [(0.25, "1/4"), (0.5, "1/2"), (1, "1"), (4, "4")])
def test_partial_gpu_is_a_fraction(gpus: float, shown: str) -> None:
    assert view._count(gpus) == shown
