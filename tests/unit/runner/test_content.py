"""Whether parts of an upload are compressed."""

import os
import zlib
from collections.abc import Iterator

import pytest

from gpuinfra.runner.content import BUFFERED, FAR_RATE, NEAR_RATE, Compressor, pays

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
def test_compression_pays_on_slow_links(link: float, speed: float, ratio: float, expected: bool) -> None:
    assert pays(link, speed, ratio) is expected


def ticking(step: float) -> Iterator[float]:
    now = 0.0
    while True:
        yield now
        now += step


def compressor(delay: float, seconds: float = len(TEXT) / 100e6) -> Compressor:
    found = Compressor(delay, ticking(seconds).__next__)
    found.note_sent(BUFFERED, 0.0)
    return found


def test_first_estimate_of_the_rate_depends_on_the_delay() -> None:
    assert compressor(NEAR).link == NEAR_RATE
    assert compressor(FAR).link == FAR_RATE


def test_first_bytes_do_not_change_the_estimate() -> None:
    found = Compressor(FAR)
    for _ in range(4):
        found.note_sent(BUFFERED // 4, 0.0001)
    assert found.link == FAR_RATE
    found.note_sent(BUFFERED // 4, 0.0001)
    assert found.link > FAR_RATE


def test_text_is_compressed_for_a_distant_machine() -> None:
    small = compressor(FAR).compress(TEXT)
    assert small is not None
    assert zlib.decompress(small) == TEXT


def test_text_is_not_compressed_for_a_nearby_machine() -> None:
    assert compressor(NEAR).compress(TEXT) is None


def test_noise_is_never_compressed() -> None:
    assert compressor(FAR).compress(NOISE) is None


def test_slow_link_starts_compression() -> None:
    found = compressor(NEAR)
    for _ in range(3):
        found.note_sent(1_000_000, 1.0)
    assert found.compress(TEXT) is not None


def test_fast_link_stops_compression() -> None:
    found = compressor(FAR)
    for _ in range(30):
        found.note_sent(1_000_000, 0.002)
    assert found.compress(TEXT) is None


def test_slow_processor_stops_compression() -> None:
    found = compressor(FAR, seconds=len(TEXT) / 1e6)
    tries = [found.compress(TEXT) is not None for _ in range(30)]
    assert tries[0]
    assert not tries[-1]


def test_infinite_rate_does_not_dominate_the_average() -> None:
    found = compressor(FAR)
    found.note_sent(1_000_000, 0.0)
    for _ in range(10):
        found.note_sent(1_000_000, 1.0)
    assert found.link < 2e6


def test_tiny_part_is_not_compressed() -> None:
    assert compressor(FAR).compress(memoryview(b"x")) is None
