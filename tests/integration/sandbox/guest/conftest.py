"""A guest host and an SSH client for the tests of one module."""

import contextlib
from collections.abc import Iterator

import pytest

from tests.integration.sandbox.guest_host import Client, GuestHost


@pytest.fixture(scope="module")
def host() -> Iterator[GuestHost]:
    with contextlib.closing(GuestHost()) as host:
        yield host


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Client:
    return Client(tmp_path_factory.mktemp("client"))
