"""The layout of a plan."""

import io
import json

import pytest
from rich.console import Console

from gpuinfra.models.plan import (
    Action,
    Candidate,
    Change,
    Difference,
    Plan,
    Power,
    Price,
    RejectedCandidate,
    RejectionReason,
)
from gpuinfra.models.resource import Kind, Ref
from gpuinfra.views.plan import PLAIN_MARKS, render, show

CANDIDATE = Candidate("southcentralus", "Standard_NC4as_T4_v3")
PRICE = Price(0.631, 19.60, 3.65)
PASSED = (
    RejectedCandidate(
        Candidate("eastus", "Standard_NC4as_T4_v3", "1"),
        (
            RejectionReason("SkuNotAvailable", "not offered in this zone"),
            RejectionReason("QuotaExceeded", "needs 4 vCPUs, 0 of 0 left", "gpuinfra sizes --with-quota"),
        ),
    ),
    RejectedCandidate(
        Candidate("westus2", "Standard_NC8as_T4_v3"),
        (RejectionReason("QuotaExceeded", "0 left", "gpuinfra sizes --with-quota"),),
    ),
)


def change(action: Action, kind: Kind, name: str, *differences: Difference, **more: object) -> Change:
    return Change(action, Ref(kind, "gpuinfra-my-dsvm", name), differences=differences, **more)  # type: ignore[arg-type]


def plan(*changes: Change, price: Price = PRICE, **more: object) -> Plan:
    return Plan("my-dsvm", "subscription", "gpuinfra-my-dsvm", CANDIDATE, changes, price, **more)  # type: ignore[arg-type]


EVERYTHING = plan(
    change(Action.ADD, Kind.VM, "my-dsvm", summary="Standard_NC4as_T4_v3, southcentralus"),
    change(
        Action.CHANGE,
        Kind.NSG,
        "my-dsvm-nsg",
        Difference("ssh from", "203.0.113.7/32", "203.0.113.9/32"),
    ),
    change(
        Action.REPLACE,
        Kind.VM,
        "my-dsvm",
        Difference("image", "20.04", "22.04", replaces=True),
        Difference("size", "Standard_NC4as_T4_v3", "Standard_NC8as_T4_v3", needs_off=True),
        Difference("tag project", "", "mnist"),
    ),
    change(Action.CHANGE, Kind.VM, "my-dsvm", power=Power.START),
    change(Action.DESTROY, Kind.PUBLIC_IP, "my-dsvm-old"),
)


def text(shown: Plan, **options: bool) -> str:
    return "\n".join(line.plain for line in render(shown, **options))  # type: ignore[arg-type]


def test_every_kind_of_change_is_shown() -> None:
    assert text(EVERYTHING) == (
        "  + vm         my-dsvm       Standard_NC4as_T4_v3, southcentralus, $0.631/h\n"
        "  ~ nsg        my-dsvm-nsg   ssh from 203.0.113.7/32 -> 203.0.113.9/32\n"
        "  ± vm         my-dsvm       image: 20.04 -> 22.04   # forces replacement\n"
        "                             size: Standard_NC4as_T4_v3 -> Standard_NC8as_T4_v3   # needs a restart\n"
        "                             tag project: (none) -> mnist\n"
        "  ~ vm         my-dsvm       power: deallocated -> running\n"
        "  - public-ip  my-dsvm-old\n"
        "\n"
        "Plan: 1 to add, 2 to change, 1 to replace, 1 to destroy.\n"
        "Price: $0.631 an hour while on; about $23.25 a month for disk and address while off."
    )


def test_applied_changes_are_in_the_past_tense() -> None:
    assert "Done: 1 added, 2 changed, 1 replaced, 1 destroyed." in text(EVERYTHING, applied=True)


def test_empty_plan_is_shown() -> None:
    assert text(plan()) == (
        "No changes: Azure matches the file.\n"
        "Price: $0.631 an hour while on; about $23.25 a month for disk and address while off."
    )


def test_power_difference_is_shown_once() -> None:
    difference = Difference("power", "stopped", "deallocated")
    shown = text(plan(change(Action.CHANGE, Kind.VM, "m", difference, power=Power.DEALLOCATE)))
    assert shown.startswith("  ~ vm  m   power: stopped -> deallocated\n\n")


@pytest.mark.parametrize(
    ("price", "words"),
    [
        (Price(), "Price: unknown."),
        (Price(0.631), "Price: $0.631 an hour while on; unknown for disk and address while off."),
        (
            Price(None, 19.6, 0.0),
            "Price: unknown while on; about $19.60 a month for disk and address while off.",
        ),
        (
            Price(0.631, 19.6, 0.0, list_of="2026-06"),
            "Price: $0.631 an hour while on (from gpuinfra's price list of 2026-06; no other price is known)"
            "; about $19.60 a month for disk and address while off.",
        ),
    ],
)
def test_unknown_price_is_shown(price: Price, words: str) -> None:
    assert text(plan(price=price)).splitlines()[-1] == words


def test_marks_are_replaced_for_ascii_terminals() -> None:
    shown = [line.plain for line in render(EVERYTHING, PLAIN_MARKS)]
    assert shown[0].startswith("  +   vm         my-dsvm ")
    assert shown[2].startswith("  -/+ vm         my-dsvm ")
    assert "".join(shown).isascii()


def test_plan_is_on_stdout_and_notes_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    show([plan(rejected=PASSED, notes=("the image's terms are accepted",))], json=False)
    out, err = capsys.readouterr()
    assert out == text(plan()) + "\n"
    assert err == (
        "Passed over:\n"
        "  REGION   ZONE  SIZE                  REASON\n"
        "  eastus   1     Standard_NC4as_T4_v3  SkuNotAvailable: not offered in this zone\n"
        "                                       QuotaExceeded: needs 4 vCPUs, 0 of 0 left\n"
        "  westus2  -     Standard_NC8as_T4_v3  QuotaExceeded: 0 left\n"
        "help: gpuinfra sizes --with-quota\n"
        "note: the image's terms are accepted\n"
    )


def test_several_plans_have_headings(capsys: pytest.CaptureFixture[str]) -> None:
    show([plan(), plan()], json=False)
    out = capsys.readouterr().out
    total = "All 2 machines: $1.262 an hour while on; about $46.50 a month for disks and addresses while off."
    assert out == f"my-dsvm:\n{text(plan())}\n\nmy-dsvm:\n{text(plan())}\n\n{total}\n"


def test_plans_as_json_are_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    show([EVERYTHING, plan(rejected=PASSED)], json=True)
    out, err = capsys.readouterr()
    assert json.loads(out) == {"schemaVersion": 1, "plans": [EVERYTHING.as_json(), plan(rejected=PASSED).as_json()]}
    assert err == ""
    show([plan()], json=True, applied=True)
    assert json.loads(capsys.readouterr().out)["applied"] is True


def test_colours_depend_on_the_action() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, color_system="standard", width=200, no_color=False)
    for line in render(EVERYTHING):
        console.print(line)
    printed = stream.getvalue()
    assert all(f"\x1b[{colour}m" in printed for colour in (31, 32, 33, 35))


def test_control_characters_are_removed() -> None:
    evil = change(Action.CHANGE, Kind.VM, "m", Difference("tag a", "\x1b[2J", "\r\n"))
    assert "\x1b" not in text(plan(evil))
    assert "\r" not in text(plan(evil))
