"""Proxies in the user's Docker settings, for a build on another machine."""

from types import SimpleNamespace
from typing import Any

import pytest

from gpuinfra.runner.environment.build import proxies_for

PUBLIC = {"HTTP_PROXY": "http://proxy.example:3128", "NO_PROXY": "localhost"}
SECRET = {"HTTPS_PROXY": "http://me:hunter2@proxy.example:3128", "https_proxy": "me:hunter2@proxy.example:3128"}


def engine_with(proxies: dict[str, str], *, shares: bool) -> Any:
    settings = SimpleNamespace(get_environment=lambda: proxies)
    api = SimpleNamespace(_proxy_configs=settings)
    return SimpleNamespace(api=api, shares_credentials=shares, withheld=lambda what: f"{what} not sent")


@pytest.mark.parametrize(("shares", "sent"), [(True, PUBLIC | SECRET), (False, PUBLIC)])
def test_proxy_with_a_password_is_sent_only_to_trusted_engines(shares: bool, sent: dict[str, str]) -> None:
    notes: list[str] = []
    progress: Any = SimpleNamespace(note=notes.append)
    assert proxies_for(engine_with(PUBLIC | SECRET, shares=shares), progress) == sent
    assert len(notes) == (0 if shares else 1)
    assert "hunter2" not in "".join(notes)


def test_proxies_without_passwords_need_no_note() -> None:
    notes: list[str] = []
    progress: Any = SimpleNamespace(note=notes.append)
    assert proxies_for(engine_with(PUBLIC, shares=False), progress) == PUBLIC
    assert notes == []
