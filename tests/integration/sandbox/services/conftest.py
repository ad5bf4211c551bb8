"""Places for resources in the embedded Azure."""

import pytest

from tests.integration.sandbox.machine_help import Place
from tests.integration.sandbox.servers import Sandbox


@pytest.fixture
def place(server: Sandbox) -> Place:
    return Place(server, group="group")


@pytest.fixture
def alone(sandbox: Sandbox) -> Place:
    """A place in a sandbox with its usual quota."""
    return Place(sandbox)
