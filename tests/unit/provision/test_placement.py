"""The place of an existing machine."""

from typing import Any

import pytest

from gpuinfra.models.plan import Candidate, Kind
from gpuinfra.provision import tags
from gpuinfra.provision.placement import present_place
from tests.unit.provision_help import GROUP, LARGE, NAME, SMALL, FakeCloud, made, spec


def place(cloud: FakeCloud, **fields: Any) -> Candidate | None:
    return present_place(spec(**fields), cloud.observe(NAME, GROUP))


@pytest.mark.parametrize(
    ("made_as", "wanted", "expected"),
    [
        ({}, {}, Candidate("eastus", SMALL)),
        ({}, {"regions": ("westus2", "eastus")}, Candidate("eastus", SMALL)),
        ({}, {"regions": ("westus2",)}, None),
        # It keeps its size as long as the spec has it; otherwise it gets the first.
        ({}, {"sizes": (LARGE, SMALL)}, Candidate("eastus", SMALL)),
        ({}, {"sizes": (LARGE,)}, Candidate("eastus", LARGE)),
        ({"zones": ("2",)}, {"zones": ("1", "2")}, Candidate("eastus", SMALL, "2")),
        ({"zones": ("2",)}, {"zones": ("1",)}, None),
        ({"zones": ("2",)}, {}, Candidate("eastus", SMALL)),
        ({}, {"zones": ("1",)}, None),
    ],
)
def test_machine_keeps_its_place_while_the_spec_allows_it(
    made_as: dict[str, Any], wanted: dict[str, Any], expected: Candidate | None
) -> None:
    assert place(made(spec(**made_as)), **wanted) == expected


def test_missing_machine_has_no_place() -> None:
    assert place(FakeCloud()) is None


def test_foreign_machine_has_no_place() -> None:
    cloud = made()
    cloud.body(Kind.VM)["tags"][tags.NAME] = "another"
    assert place(cloud) is None


def test_machine_whose_creation_failed_has_no_place() -> None:
    cloud = made()
    cloud.body(Kind.VM)["properties"]["provisioningState"] = "Failed"
    assert place(cloud) == Candidate("eastus", SMALL)
    del cloud.body(Kind.PUBLIC_IP)["tags"]["gpuinfra:ready"]
    assert place(cloud) is None
    cloud.remove(Kind.PUBLIC_IP)
    assert place(cloud) == Candidate("eastus", SMALL)
    cloud.remove(Kind.DISK)
    assert place(cloud) is None


def test_spelling_of_region_and_size_is_ignored() -> None:
    cloud = made()
    body = cloud.body(Kind.VM)
    body["location"], body["properties"]["hardwareProfile"]["vmSize"] = "East US", SMALL.lower()
    assert place(cloud) == Candidate("eastus", SMALL)
