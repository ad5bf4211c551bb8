"""The embedded Azure for one test."""

from collections.abc import Iterator

import pytest

from tests.integration.sandbox.servers import Sandbox, Servers

__all__ = ["Sandbox"]


@pytest.fixture
def sandbox(servers: Servers) -> Iterator[Sandbox]:
    """A sandbox with nothing in it, that the test has for itself."""
    with servers.lend() as lent:
        yield lent


@pytest.fixture
def server(sandbox: Sandbox) -> Sandbox:
    """A sandbox with quota for any number of machines."""
    sandbox.make_room()
    return sandbox
