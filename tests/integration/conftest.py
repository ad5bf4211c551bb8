"""Fixtures that the tests of `sandbox` and of `provision` share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.integration.sandbox.servers import Servers


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """The embedded Azures of this worker, each started once and lent to one test or module at a time."""
    from tests.integration.sandbox.servers import Servers  # it imports the SDK, which takes a second

    made = Servers(tmp_path_factory.mktemp("servers"))
    yield made
    made.stop()
