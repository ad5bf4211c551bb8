"""Names derived from a machine's name, ownership tags, and Azure's ids."""

from datetime import UTC, datetime

import pytest

from gpuinfra.models.plan import ARM_TYPES, Kind, Ref
from gpuinfra.provision import tags
from gpuinfra.provision.azure.fleet import ref_from_id
from gpuinfra.provision.observed_resource import same
from gpuinfra.provision.tags import name_of, ref_of
from tests.unit.provision_help import GROUP, NAME, SUBSCRIPTION

# https://learn.microsoft.com/azure/azure-resource-manager/management/resource-name-rules
LONGEST = {
    Kind.NSG: 80,
    Kind.VNET: 64,
    Kind.PUBLIC_IP: 80,
    Kind.NIC: 80,
    Kind.VM: 64,
    Kind.DISK: 80,
    Kind.SHUTDOWN_SCHEDULE: 90,
}


@pytest.mark.parametrize("kind", LONGEST)
def test_name_of_any_length_fits(kind: Kind) -> None:
    for length in (1, *range(50, 65)):
        name = name_of(kind, "n" * length)
        assert len(name) <= LONGEST[kind]
        assert name[0].isalnum()
        assert name[-1].isalnum()


def test_long_names_with_a_common_prefix_stay_distinct() -> None:
    for kind in LONGEST:
        assert len({name_of(kind, f"{'n' * 63}{end}") for end in "abc"}) == 3


def test_resource_names_derive_from_the_machine() -> None:
    assert [ref_of(kind, GROUP, NAME).name for kind in Kind] == [
        "gpuinfra-my-dsvm",
        "my-dsvm-nsg",
        "my-dsvm-vnet",
        "my-dsvm-ip",
        "my-dsvm-nic",
        "my-dsvm",
        "my-dsvm-disk",
        "shutdown-computevm-my-dsvm",
    ]


def test_resource_names_ignore_the_case_of_the_machine() -> None:
    name = "n" * 64
    assert same(ref_of(Kind.VNET, GROUP, name), ref_of(Kind.VNET, GROUP, name.upper()))


# Ids
def test_resource_id_round_trips_in_any_case() -> None:
    for kind in LONGEST:
        ref = ref_of(kind, GROUP, NAME)
        assert ref_from_id(ref.id(SUBSCRIPTION)) == ref
        loud = ref_from_id(ref.id(SUBSCRIPTION).upper())
        assert loud is not None
        assert same(loud, ref)


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}",
        f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}/providers/Microsoft.Storage/storageAccounts/x",
        f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}/providers/Microsoft.Compute/virtualMachines/x/extensions/y",
        f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}/providers/Microsoft.Resources/resourceGroups/x",
    ],
)
def test_unknown_resource_type_has_no_reference(text: str) -> None:
    assert ref_from_id(text) is None


def test_group_id_has_its_own_form() -> None:
    assert (
        Ref(Kind.RESOURCE_GROUP, GROUP, GROUP).id(SUBSCRIPTION)
        == f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}"
    )
    assert set(ARM_TYPES) == set(Kind)


def test_kind_distinguishes_equal_names() -> None:
    assert not same(Ref(Kind.DISK, "g", "n"), Ref(Kind.PUBLIC_IP, "g", "n"))
    assert same(Ref(Kind.DISK, "G", "n"), Ref(Kind.DISK, "g", "N"))


# Tags
@pytest.mark.parametrize(
    ("found", "ours"),
    [
        ({tags.NAME: NAME}, True),
        ({"GPUINFRA:Name": "MY-DSVM"}, True),
        ({tags.NAME: "my-dsvm-2"}, False),
        ({"name": NAME}, False),
        ({}, False),
        (None, False),
    ],
)
def test_tag_identifies_the_owner(found: dict[str, str] | None, ours: bool) -> None:
    assert tags.belongs_to(found, NAME) is ours


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-16T08:00:00Z", datetime(2026, 11, 16, 8, tzinfo=UTC)),
        ("2026-11-16T08:00:00", datetime(2026, 11, 16, 8, tzinfo=UTC)),
        ("2026-11-16T09:00:00+01:00", datetime(2026, 11, 16, 8, tzinfo=UTC)),
        ("tomorrow", None),
        ("", None),
    ],
)
def test_time_in_a_tag_is_read(text: str, expected: datetime | None) -> None:
    assert tags.moment({tags.LEASE_UNTIL: text}, tags.LEASE_UNTIL) == expected
