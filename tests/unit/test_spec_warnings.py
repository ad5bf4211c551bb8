"""Warnings about lifecycle fields that defeat each other."""

import pytest

from gpuinfra.app.spec_warnings import spec_warnings
from gpuinfra.parse.spec import load_bytes
from gpuinfra.provision.market import shipped_prices

START = "apiVersion: gpuinfra/v1\nname: a\nregion: southcentralus\nsize: Standard_NC4as_T4_v3\n"
ON = 'hours: {timezone: UTC, on: "mon-fri 08:00-19:00,20:00-21:00"}'


def warnings(lifecycle: str, more: str = "") -> list[str]:
    """Return the key that each warning points at, and its help."""
    loaded = load_bytes("gpu.yaml", f"{START}{more}lifecycle:\n{lifecycle}".encode())
    assert not loaded.diagnostics
    found = spec_warnings(loaded.specs, shipped_prices())
    assert all(each.severity == "warning" and each.label for each in found)
    return [f"{each.span.text.split(':')[0].strip() if each.span else ''}: {each.help}" for each in found]


def lines(*fields: str) -> str:
    return "".join(f"  {field}\n" for field in fields)


@pytest.mark.parametrize(
    ("fields", "keys"),
    [
        (("idle: 20m", "lease: 30d"), []),
        ((ON,), ["hours"]),
        ((ON, "idle: 11h"), []),
        ((ON, "idle: 20m"), []),
        ((ON, "idle: 20m", "lease: 11h"), []),
        ((ON, "idle: 20m", "lease: 12h"), ["lease"]),
        (('hours: {timezone: UTC, on: "daily 08:00-10:00"}', "idle: 2h"), ["hours"]),
        (('hours: {timezone: UTC, on: "daily 22:00-06:00"}', "idle: 8h", "lease: 8h"), []),
        (('hours: {timezone: UTC, on: "daily 00:00-24:00"}',), ["hours"]),
        (('hours: {timezone: UTC, on: "mon 00:00-24:00"}', "idle: 1d", "lease: 1d"), []),
        ((ON, "idle: 20m", "afterRun: delete"), ["afterRun"]),
        ((ON, "idle: 20m", "maxCost: 5 USD"), ["maxCost"]),
        ((ON, "idle: 20m", "maxCost: 8 USD"), []),
        ((ON, "maxCost: 1 USD", "lease: 30d"), ["hours", "lease", "maxCost"]),
    ],
)
def test_warning_points_at_the_field_and_has_a_fix(fields: tuple[str, ...], keys: list[str]) -> None:
    assert [each.split(":")[0] for each in warnings(lines(*fields))] == keys


def test_hours_of_a_machine_that_is_kept_off_have_no_effect() -> None:
    assert warnings(lines(ON), "power: deallocated\n") == ["hours: remove `power`, or the hours"]


def test_price_of_a_spot_machine_is_not_guessed() -> None:
    assert warnings(lines(ON, "idle: 1h", "maxCost: 1 USD"), "priority: spot\n") == []


def test_fix_for_the_default_idle_time_names_both_choices() -> None:
    (found,) = warnings(lines(ON))
    assert found == "hours: write `idle: 11h` to keep it on during its hours, or `idle: 20m` if it may go off"
