"""When it pays to compress."""

import os
import zlib
from collections.abc import Iterator

import pytest

from gpuinfra.runner.upload.send import BUFFERED, FAR_RATE, NEAR_RATE, Squeeze, pays

TEXT = memoryview(b"def function(argument):\n    return argument\n" * 5000)
NOISE = memoryview(os.urandom(len(TEXT)))
NEAR, FAR = 0.0001, 0.05


@pytest.mark.parametrize(
    ("link", "speed", "ratio", "expected"),
    [
        (1e6, 50e6, 0.3, True),
        (12e6, 50e6, 0.3, True),
        (150e6, 50e6, 0.01, False),
        (1e6, 50e6, 0.95, False),
        (1e6, 0.5e6, 0.3, False),
        (30e6, 50e6, 0.5, False),
    ],
)
def test_pays(link: float, speed: float, ratio: float, expected: bool) -> None:
    assert pays(link, speed, ratio) is expected


def ticking(step: float) -> Iterator[float]:
    now = 0.0
    while True:
        yield now
        now += step


def squeeze(delay: float, seconds: float = len(TEXT) / 100e6) -> Squeeze:
    found = Squeeze(delay, ticking(seconds).__next__)
    found.sent(BUFFERED, 0.0)
    return found


def test_the_first_guess_is_by_the_distance() -> None:
    assert squeeze(NEAR).link == NEAR_RATE
    assert squeeze(FAR).link == FAR_RATE


def test_what_only_fills_buffers_says_nothing_of_the_link() -> None:
    found = Squeeze(FAR)
    for _ in range(4):
        found.sent(BUFFERED // 4, 0.0001)
    assert found.link == FAR_RATE
    found.sent(BUFFERED // 4, 0.0001)
    assert found.link > FAR_RATE


def test_text_for_a_machine_far_away_is_compressed() -> None:
    small = squeeze(FAR).compress(TEXT)
    assert small is not None
    assert zlib.decompress(small) == TEXT


def test_text_for_a_machine_next_door_is_not() -> None:
    assert squeeze(NEAR).compress(TEXT) is None


def test_noise_is_never_compressed() -> None:
    assert squeeze(FAR).compress(NOISE) is None


def test_a_link_that_turns_out_slow_changes_the_mind() -> None:
    found = squeeze(NEAR)
    for _ in range(3):
        found.sent(1_000_000, 1.0)
    assert found.compress(TEXT) is not None


def test_a_link_that_turns_out_fast_changes_the_mind() -> None:
    found = squeeze(FAR)
    for _ in range(30):
        found.sent(1_000_000, 0.002)
    assert found.compress(TEXT) is None


def test_a_processor_that_turns_out_slow_changes_the_mind() -> None:
    found = squeeze(FAR, seconds=len(TEXT) / 1e6)
    tries = [found.compress(TEXT) is not None for _ in range(30)]
    assert tries[0]
    assert not tries[-1]


def test_a_part_that_took_no_time_does_not_count_for_ever() -> None:
    found = squeeze(FAR)
    found.sent(1_000_000, 0.0)
    for _ in range(10):
        found.sent(1_000_000, 1.0)
    assert found.link < 2e6


def test_the_least_of_data() -> None:
    assert squeeze(FAR).compress(memoryview(b"x")) is None
