"""Values in a spec, against plain arithmetic and against each other."""

import csv
import re
from datetime import timedelta
from pathlib import Path

import pytest

from gpuinfra.models.base import DURATION, format_duration, numbers_up_to, parse_duration, parse_money
from gpuinfra.models.hours import parse_window
from gpuinfra.models.names import REGIONS
from gpuinfra.models.sizes import GPU_MODELS, RETIRED, SIZES, gpu_counts, sizes_with

PRICES = Path(__file__).parents[3] / "shared" / "data" / "nc_prices_2026-06.csv"


@pytest.mark.parametrize("largest", [1, 9, 10, 23, 29, 30, 59, 99, 100, 719, 720, 1000, 4320])
def test_number_patterns_match_exactly(largest: int) -> None:
    pattern = re.compile(numbers_up_to(largest))
    accepted = [number for number in range(largest * 11 + 20) if pattern.fullmatch(str(number))]
    assert accepted == list(range(1, largest + 1))
    assert not pattern.fullmatch("01")


def test_durations_round_trip() -> None:
    for minutes in (1, 20, 59, 60, 90, 240, 1439, 1440, 1441, 2880, 43199, 43200):
        text = format_duration(timedelta(minutes=minutes))
        assert re.fullmatch(DURATION, text)
        assert parse_duration(text) == timedelta(minutes=minutes)


@pytest.mark.parametrize(
    ("text", "days", "ranges"),
    [
        ("mon-fri 08:00-19:00", (0, 1, 2, 3, 4), ((480, 1140),)),
        ("fri-mon 22:00-06:00", (0, 4, 5, 6), ((1320, 360),)),
        ("sun 00:00-24:00", (6,), ((0, 1440),)),
        ("daily 08:00-12:00,13:00-17:00", (0, 1, 2, 3, 4, 5, 6), ((480, 720), (780, 1020))),
        ("tue,mon-wed 08:00-09:00", (0, 1, 2), ((480, 540),)),
    ],
)
def test_hours_are_parsed(text: str, days: tuple[int, ...], ranges: tuple[tuple[int, int], ...]) -> None:
    window = parse_window(text)
    assert (window.days, window.ranges) == (days, ranges)
    assert parse_window(str(window)) == window


@pytest.mark.parametrize(
    ("text", "plain"), [("5 USD", "5 USD"), ("5.00 USD", "5 USD"), ("100 USD", "100 USD"), ("0.5 USD", "0.5 USD")]
)
def test_money_has_one_spelling(text: str, plain: str) -> None:
    assert str(parse_money(text)) == plain


def test_every_successor_exists() -> None:
    assert {successor for successor, _ in RETIRED.values()} <= set(SIZES)
    assert not set(RETIRED) & set(SIZES)


def test_every_gpu_request_has_sizes() -> None:
    for model in GPU_MODELS:
        assert 1 in gpu_counts(model), "the default count has to be among them"
        for count in gpu_counts(model):
            assert sizes_with(model, count)
    assert sizes_with("T4", 1) == ("Standard_NC4as_T4_v3", "Standard_NC8as_T4_v3", "Standard_NC16as_T4_v3")
    assert "Standard_NCC40ads_H100_v5" not in sizes_with("H100", 1)


# In the price list, but with no page in Azure's documentation: an A10 series, and previews of the RTX series.
UNDOCUMENTED = re.compile(
    r"Standard_NC\d+ads_A10_v4|Standard_NC(?:8|16|32|64|128|132|256|264|320|324)l?ds_xl_RTXPRO6000BSE_v6"
)


@pytest.mark.skipif(not PRICES.exists(), reason="the price list is not beside this checkout")
def test_sizes_and_regions_cover_the_price_list() -> None:
    with PRICES.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert {row["Region"] for row in rows} <= REGIONS
    sizes = {row["InstanceType"] for row in rows if not UNDOCUMENTED.fullmatch(row["InstanceType"])}
    assert sizes <= set(SIZES) | set(RETIRED)
    assert set(SIZES) <= sizes
    prices = {(row["InstanceType"], row["Region"]): float(row["OnDemandLinuxUSDPerHour"]) for row in rows}
    for model in GPU_MODELS:
        for count in gpu_counts(model):
            listed = [prices[size, "eastus"] for size in sizes_with(model, count)]
            assert listed == sorted(listed), "cheapest first"
