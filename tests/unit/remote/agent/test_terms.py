"""Terms and times in tags, and the agent's configuration."""

from datetime import timedelta
from typing import Any

import pytest

from gpuinfra.provision import lease as provision_terms
from gpuinfra.remote.agent.terms import Terms, read_config, read_moment, read_terms, stamp
from tests.unit.remote.agent.world import HOUR, MINUTE


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-11-16T08:00:00Z", 1_794_816_000.0),
        ("2026-11-16T08:00:00.1234567+00:00", 1_794_816_000.0),
        ("2026-11-16T08:00:00", 1_794_816_000.0),
        *((text, None) for text in ("", "tomorrow", "2026-13-16T08:00:00Z", "2026-11-16T08:00:00+05:00", None, 7)),
    ],
)
def test_time_in_a_tag_is_read(text: Any, moment: float | None) -> None:
    assert read_moment(text) == moment
    assert moment is None or stamp(moment) == "2026-11-16T08:00:00Z"


@pytest.mark.parametrize(
    ("tag", "terms"),
    [
        ("lease=4h idle=20m cap=9h30m", Terms(4 * HOUR, 20 * MINUTE, 9.5 * HOUR)),
        ("lease=2d1h idle=1m", Terms(49 * HOUR, MINUTE)),
        *((tag, Terms(1, 2, 3)) for tag in ("", "lease=4h", "lease= idle=", "lease=0m idle=0m", "idle lease", "=;=")),
    ],
)
def test_terms_in_a_tag_are_read(tag: str, terms: Terms) -> None:
    assert read_terms(tag, Terms(1, 2, 3)) == terms


def test_terms_written_by_provision_are_read_by_the_agent() -> None:
    written = provision_terms.Terms(timedelta(days=1, minutes=5), timedelta(minutes=20), timedelta(hours=9, minutes=30))
    assert read_terms(provision_terms.terms_to_tag(written), Terms()) == Terms(86700.0, 1200.0, 34200.0)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"lease": 60, "idle": 30, "cap": null, "home": "/home/a"}', (Terms(60, 30), "/home/a")),
        ('{"lease": 60, "idle": 30, "cap": 90}', (Terms(60, 30, 90), "")),
        *((text, (Terms(), "")) for text in ("", "[]", "{", '{"lease": "4h", "idle": true, "cap": -1, "home": 7}')),
    ],
)
def test_invalid_configuration_is_ignored(text: str, found: tuple[Terms, str]) -> None:
    assert read_config(text) == found
