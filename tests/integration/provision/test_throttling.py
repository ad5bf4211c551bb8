"""Azure answers 429: commands wait as long as it asks, if there is time, and show the wait.

`tests/unit/provision/azure/test_clients.py` tests long and repeated waits with a fake clock.
"""

from datetime import datetime
from typing import Any

import pytest

from tests.integration.provision.harness import Harness, resources_of
from tests.variants import variant, variants

NAME = "slowed"
VM = "virtualMachines"
RETRY_AFTER = 1

PLACES: dict[str, dict[str, str]] = {
    "any GET": {"method": "GET"},
    "group": {"method": "PUT", "type": "resourceGroups"},
    "VM": {"method": "PUT", "type": VM},
    "operation": {"method": "GET", "type": "Microsoft.Compute/locations/operations"},
}


def pauses(requests: list[dict[str, Any]]) -> list[float]:
    """Return the seconds from each refusal to the next request for the same resource."""
    found = []
    for number, refused in enumerate(requests):
        if refused["status"] == 429:
            same = [each for each in requests[number + 1 :] if _key(each) == _key(refused)]
            assert same, f"not sent again: {_key(refused)}"
            found.append(_moment(same[0]["start"]) - _moment(refused["end"]))
    return found


def _key(request: dict[str, Any]) -> tuple[str, str, str]:
    return request["method"], request["path"], request["query"]


def _moment(text: str) -> float:
    return datetime.fromisoformat(text[:26] + text[27:]).timestamp()  # Azure has one digit more than Python


def test_up_waits_as_long_as_azure_asks(harness: Harness) -> None:
    spec = harness.spec(NAME)
    for fields in PLACES.values():
        harness.arm("TooManyRequests", retryAfter=RETRY_AFTER, **fields)
    result = harness.succeed("up", spec)
    waits = pauses(harness.requests())
    assert len(waits) == len(PLACES)
    # The header has whole seconds.
    assert min(waits) >= RETRY_AFTER - 0.1, waits
    assert "waiting 1 s: Azure is throttling" in result.err.replace("1.0 s", "1 s"), result.text
    assert harness.resources() == resources_of(NAME)
    assert harness.billed() == [NAME]


@pytest.mark.parametrize("words", [("down",), pytest.param(("down", "--delete"), marks=variant)], ids=" ".join)
def test_down_waits_as_long_as_azure_asks(harness: Harness, words: tuple[str, ...]) -> None:
    spec = harness.spec(NAME)
    harness.succeed("up", spec)
    last = harness.last_request()
    method = "DELETE" if "--delete" in words else "POST"
    harness.arm("TooManyRequests", retryAfter=RETRY_AFTER, method=method, type=VM)
    result = harness.succeed(*words, spec)
    assert "Azure is throttling" in result.err
    (wait,) = pauses(harness.requests(last))
    assert wait >= RETRY_AFTER - 0.1
    assert harness.billed() == []


@pytest.mark.parametrize("place", variants("any GET", "VM", "group", first=2))
def test_up_fails_at_once_when_the_wait_exceeds_its_timeout(harness: Harness, place: str) -> None:
    """A wait of ten minutes does not start with one minute left, and what was created is deleted again."""
    spec = harness.spec(NAME)
    harness.arm("TooManyRequests", retryAfter=600, count=1 if place == "any GET" else 0, **PLACES[place])
    result = harness.run("up", spec, "--timeout", "1m")
    assert result.code == 1, result.text
    assert "error: throttled by Azure" in result.err
    assert "600 s" in result.err
    assert "try again" in result.err
    assert harness.resources() == set()
    assert harness.billed() == []


@pytest.mark.parametrize("place", ["any GET", "VM"])
def test_json_has_the_code_throttled(harness: Harness, place: str) -> None:
    spec = harness.spec(NAME)
    harness.arm("TooManyRequests", retryAfter=600, count=1 if place == "any GET" else 0, **PLACES[place])
    result = harness.run("up", spec, "--timeout", "1m", "--json")
    assert result.code == 1, result.text
    assert '"code": "throttled"' in result.out
    assert harness.resources() == set()
