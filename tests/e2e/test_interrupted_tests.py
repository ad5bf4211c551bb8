"""What an interrupted test run leaves behind."""

from tests.conftest import sandboxes_below
from tests.e2e.azure import Azure


def test_sandboxes_of_an_interrupted_test_run_are_found(azure: Azure) -> None:
    """Ctrl-C ends the workers before they can stop their sandboxes."""
    assert sandboxes_below(azure.folder.parent) == [azure.description.pid]
