"""Which machines were switched on from a workspace and have no spec in it."""

from dataclasses import replace

from gpuinfra.app.down import without_spec
from gpuinfra.models.receipt import LedgerEntry, LedgerEntryKind
from tests.unit.provision_help import NOW, spec

ALPHA = LedgerEntry(LedgerEntryKind.ON, NOW, "alpha", "gpuinfra-alpha", "s")
OFF = replace(ALPHA, what=LedgerEntryKind.OFF)


def test_machine_that_is_on_and_has_no_spec_is_returned() -> None:
    changed = replace(ALPHA, what=LedgerEntryKind.CHANGED)
    assert without_spec([ALPHA, changed], [spec(name="beta")], {"beta"}) == [changed]
    assert without_spec([OFF, ALPHA], [spec(name="alpha", resource_group="team")], set()) == [ALPHA]
    assert without_spec([ALPHA, replace(OFF, group="team")], [], set()) == [ALPHA]


def test_machine_that_is_off_or_has_a_spec_or_is_named_is_not_returned() -> None:
    assert without_spec([ALPHA, OFF], [], set()) == []
    assert without_spec([ALPHA, replace(OFF, group=None)], [], set()) == []
    assert without_spec([ALPHA], [spec(name="alpha")], set()) == []
    assert without_spec([ALPHA], [], {"alpha"}) == []
