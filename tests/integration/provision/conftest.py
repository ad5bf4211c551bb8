"""One embedded Azure for the tests of provisioning, with the program's own access to it."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from gpuinfra.provision.azure.access import Access, ClientSecret
from gpuinfra.provision.azure.clients import Clients
from gpuinfra.provision.azure.market import AzureMarket
from tests.integration.provision.harness import (  # noqa: F401 - fixtures and a hook
    harness,
    pytest_generate_tests,
    report_cases,
    session_harness,
)
from tests.integration.sandbox.servers import Sandbox, Servers


def access_to(server: Sandbox) -> Access:
    """Return the program's access to an embedded Azure."""
    plan_input = server.server.cloud.store.setting
    return Access(
        subscription=server.subscription,
        arm=server.endpoint,
        authority=server.endpoint,
        ca=str(server.server.authority_file),
        prices=f"{server.endpoint}/api/retail/prices",
        client_secret=ClientSecret(plan_input("tenant"), plan_input("client-id"), plan_input("client-secret")),
        simulated=True,
    )


@pytest.fixture
def server(servers: Servers) -> Iterator[Sandbox]:
    """An empty server that the test does not share."""
    with servers.lend() as lent:
        yield lent


@pytest.fixture
def access(server: Sandbox) -> Access:
    """Access with the right credentials."""
    return access_to(server)


def close(clients: Clients) -> None:
    """Close connections: one that stays open is a warning, and an error here."""
    for name in ("compute", "network", "resource", "credential"):
        if name in vars(clients):
            getattr(clients, name).close()


class Markets:
    """Markets with changed access."""

    def __init__(self, access: Access) -> None:
        self._access, self._made = access, list[Clients]()

    def __call__(self, **changes: Any) -> AzureMarket:
        clients = Clients(dataclasses.replace(self._access, **changes))
        self._made.append(clients)
        return AzureMarket(clients)

    def close(self) -> None:
        for clients in self._made:
            close(clients)


@pytest.fixture
def markets(access: Access) -> Iterator[Markets]:
    """Create markets."""
    made = Markets(access)
    yield made
    made.close()


@pytest.fixture
def market(markets: Markets) -> AzureMarket:
    """The market as the program opens it."""
    return markets()
