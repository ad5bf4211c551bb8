"""Proxies of the user's Docker settings in a build on another machine."""

from types import SimpleNamespace
from typing import Any

import pytest

from gpuinfra.runner.environment.build import proxies_for

OPEN = {"HTTP_PROXY": "http://proxy.example:3128", "NO_PROXY": "localhost"}
CLOSED = {"HTTPS_PROXY": "http://me:hunter2@proxy.example:3128", "https_proxy": "me:hunter2@proxy.example:3128"}


def engine_with(proxies: dict[str, str], *, shares: bool) -> Any:
    settings = SimpleNamespace(get_environment=lambda: proxies)
    api = SimpleNamespace(_proxy_configs=settings)
    return SimpleNamespace(api=api, shares_credentials=shares, withheld=lambda what: f"{what} not sent")


@pytest.mark.parametrize(("shares", "sent"), [(True, OPEN | CLOSED), (False, OPEN)])
def test_proxy_with_a_password_goes_only_to_engines_that_may_have_it(shares: bool, sent: dict[str, str]) -> None:
    notes: list[str] = []
    progress: Any = SimpleNamespace(note=notes.append)
    assert proxies_for(engine_with(OPEN | CLOSED, shares=shares), progress) == sent
    assert len(notes) == (0 if shares else 1)
    assert "hunter2" not in "".join(notes)


def test_nothing_is_said_where_no_proxy_has_a_password() -> None:
    notes: list[str] = []
    progress: Any = SimpleNamespace(note=notes.append)
    assert proxies_for(engine_with(OPEN, shares=False), progress) == OPEN
    assert notes == []
