"""The layout of a receipt."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpuinfra.models.receipt import OFF_BEFORE, OffProof, Receipt, Residue
from gpuinfra.models.stay import Purpose, Reason, Stay
from gpuinfra.views.receipt import render, show

RECEIPT = Receipt(
    name="my-dsvm",
    verified=OffProof.DEALLOCATED,
    at=datetime(2026, 11, 16, 9, 30, 12, tzinfo=UTC),
    region="southcentralus",
    size="Standard_NC4as_T4_v3",
    billed_from=datetime(2026, 11, 16, 8, tzinfo=UTC),
    billed_to=datetime(2026, 11, 16, 9, 30, 10, tzinfo=UTC),
    price_per_hour=0.631,
    cause="gpuinfra down",
    left_on_until=datetime(2026, 11, 17, 8, tzinfo=UTC),
    residue=(Residue("disk", "my-dsvm-disk", 19.60), Residue("public-ip", "my-dsvm-ip", 3.65)),
)


def test_deallocation_is_verified() -> None:
    assert render(RECEIPT).plain == (
        "my-dsvm is off\n"
        "  machine     Standard_NC4as_T4_v3 in southcentralus\n"
        "  ended by    gpuinfra down\n"
        "  on          2026-11-16 08:00:00Z to 2026-11-16 09:30:10Z, 1 h 30 min\n"
        "  cost        $0.95 (list price, $0.631 an hour)\n"
        "  saved       $15.14 a day, compared with leaving it on\n"
        "              left on overnight, until 2026-11-17 08:00:00Z, it would have cost $14.20 more\n"
        "  still paid  disk my-dsvm-disk, about $19.60 a month\n"
        "              public-ip my-dsvm-ip, about $3.65 a month\n"
        "              about $23.25 a month in total\n"
        "  to remove   gpuinfra down my-dsvm --delete\n"
        "  verified    Azure reports PowerState/deallocated, at 2026-11-16 09:30:12Z"
    )


def test_deletion_is_verified_by_404() -> None:
    gone = replace(
        RECEIPT,
        verified=OffProof.ABSENT,
        residue=(),
        deleted=("vm my-dsvm", "disk my-dsvm-disk"),
        kept=("group gpu-team: it was there before",),
    )
    assert render(gone).plain == (
        "my-dsvm is gone\n"
        "  machine     Standard_NC4as_T4_v3 in southcentralus\n"
        "  ended by    gpuinfra down\n"
        "  on          2026-11-16 08:00:00Z to 2026-11-16 09:30:10Z, 1 h 30 min\n"
        "  cost        $0.95 (list price, $0.631 an hour)\n"
        "  saved       $15.14 a day, compared with leaving it on\n"
        "              left on overnight, until 2026-11-17 08:00:00Z, it would have cost $14.20 more\n"
        "  deleted     vm my-dsvm\n"
        "              disk my-dsvm-disk\n"
        "  kept        group gpu-team: it was there before\n"
        "  verified    Azure reports 404, the machine does not exist, at 2026-11-16 09:30:12Z"
    )


def test_unverified_receipt_is_red() -> None:
    shown = render(replace(RECEIPT, verified=None, billed_to=None, residue=(), cause=""))
    assert shown.plain == (
        "NOT VERIFIED: my-dsvm may still be on and billed\n"
        "  machine     Standard_NC4as_T4_v3 in southcentralus\n"
        "  on          since 2026-11-16 08:00:00Z\n"
        "  verified    no: Azure had not reported it off by 2026-11-16 09:30:12Z\n"
        "  run         gpuinfra down my-dsvm\n"
        "              gpuinfra status my-dsvm"
    )
    assert shown.style == "bold red"


def test_leftovers_are_highlighted() -> None:
    shown = render(Receipt("my-dsvm", OffProof.ABSENT, RECEIPT.at, left=("nic my-dsvm-nic",), deletes=True)).plain
    assert shown == (
        "NOT ALL DELETED: my-dsvm is off, but some resources remain and may be billed\n"
        "  left        nic my-dsvm-nic\n"
        "  verified    Azure reports 404, the machine does not exist, at 2026-11-16 09:30:12Z\n"
        "  run         gpuinfra down my-dsvm --delete\n"
        "              gpuinfra status my-dsvm"
    )


def test_unverified_cost_says_what_it_assumes() -> None:
    (line,) = [each for each in render(replace(RECEIPT, verified=None)).plain.splitlines() if "  cost " in each]
    assert line.startswith("  cost        $0.95 (")
    assert line.endswith("), if it was on until then"), "what Azure bills while it deallocates is not known"


def test_simulated_receipt_says_so() -> None:
    shown = render(replace(RECEIPT, simulated=True)).plain
    assert shown.startswith("my-dsvm is off (simulated)\n")
    assert "$0.95 (simulated, list price, $0.631 an hour)" in shown
    assert "gpuinfra down my-dsvm --delete --sandbox" in shown


def test_spot_machine_is_named() -> None:
    assert "  machine     Standard_NC4as_T4_v3 spot in southcentralus\n" in render(replace(RECEIPT, spot=True)).plain


def test_machine_that_was_off_before_saves_nothing() -> None:
    assert "saved" not in render(replace(RECEIPT, billed_from=None, billed_to=None)).plain


def test_unknown_price_is_shown() -> None:
    shown = render(replace(RECEIPT, price_per_hour=None, residue=(Residue("disk", "my-dsvm-disk", None),))).plain
    assert "  cost" not in shown
    assert "  still paid  disk my-dsvm-disk, price unknown\n" in shown


def test_receipts_are_printed_on_stdout_as_text_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    show([RECEIPT, RECEIPT], json=False)
    out, err = capsys.readouterr()
    assert (out, err) == (f"{render(RECEIPT).plain}\n\n{render(RECEIPT).plain}\n", "")
    show([RECEIPT], json=True)
    assert json.loads(capsys.readouterr().out) == {"schemaVersion": 1, "receipts": [RECEIPT.as_json()]}


def test_control_characters_are_removed() -> None:
    shown = render(replace(RECEIPT, kept=("group \x1b[2J",))).plain
    assert "\x1b" not in shown


def test_machine_that_was_off_before_was_not_ended_by_anything() -> None:
    text = render(replace(RECEIPT, cause=OFF_BEFORE)).plain
    assert "  state       it was off already\n" in text
    assert "ended by" not in text


LOOK = Stay(
    Purpose(Reason.FAILED_JOB, "r1"),
    since=datetime(2026, 11, 16, 9, 30, tzinfo=UTC),
    until=datetime(2026, 11, 16, 10, tzinfo=UTC),
    backstop=datetime(2026, 11, 16, 10, 35, tzinfo=UTC),
    has_agent=True,
    price_per_hour=0.631,
    after_run="deallocate",
    places=("container gpuinfra-r1", "folder /home/azureuser/p"),
)
STAYS = replace(RECEIPT, verified=None, billed_to=None, cost_usd=0.95, cause="", residue=(), stay=LOOK)


def test_machine_that_stays_on_for_a_look() -> None:
    assert render(STAYS).plain == (
        "my-dsvm stays on for a look at failed run r1, and is billed\n"
        "  machine     Standard_NC4as_T4_v3 in southcentralus\n"
        "  on          since 2026-11-16 08:00:00Z\n"
        "  cost        $0.95 so far (list price, $0.631 an hour)\n"
        "  goes off    2026-11-16 10:00:00Z, by its guest agent: $0.32 more\n"
        "              2026-11-16 10:35:00Z, by Azure's schedule if the agent cannot: at most $0.68 more\n"
        "  look        gpuinfra ssh my-dsvm\n"
        "              container gpuinfra-r1\n"
        "              folder /home/azureuser/p\n"
        "  end it now  gpuinfra down my-dsvm"
    )
    assert not STAYS.is_proof


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        (
            {"has_agent": False},
            ["2026-11-16 10:35:00Z, by Azure's schedule, because its guest agent lacks its role: at most $0.68 more"],
        ),
        ({"backstop": None}, ["2026-11-16 10:00:00Z, by its guest agent: at most $0.32 more"]),
        (
            {"purpose": Purpose(Reason.JOB, "r2"), "places": ()},
            [
                "when the job has finished, by its guest agent",
                "2026-11-16 10:00:00Z at the latest, by its guest agent: at most $0.32 more",
                "2026-11-16 10:35:00Z, by Azure's schedule if the agent cannot: at most $0.68 more",
            ],
        ),
        (
            {"purpose": Purpose(Reason.JOB, "r2"), "keep_on_failure": 1800.0},
            ["when the job has finished, 30 min later if it fails, by its guest agent"],
        ),
        (
            {"purpose": Purpose(Reason.JOB, "r2"), "has_agent": False, "price_per_hour": None},
            [
                "2026-11-16 10:35:00Z, by Azure's schedule, even if the job ends before, because its guest agent lacks "
                "its role"
            ],
        ),
        (
            {"purpose": Purpose(Reason.JOB, "r2"), "after_run": "keep", "backstop": None},
            [
                "when it is idle after the job, by its guest agent",
                "2026-11-16 10:00:00Z at the latest, by its guest agent: at most $0.32 more",
            ],
        ),
        (
            {"has_agent": False, "backstop": None},
            ["not by itself: it has no schedule, and its guest agent lacks its role"],
        ),
    ],
)
def test_what_ends_a_machine_that_stays_on(changes: dict[str, Any], lines: list[str]) -> None:
    shown = render(replace(STAYS, stay=replace(LOOK, **changes))).plain.splitlines()
    start = next(number for number, line in enumerate(shown) if line.startswith("  goes off"))
    assert [line[14:] for line in shown[start : start + len(lines)]] == lines
    # Costs until then: seconds from now, not from power-on.
    assert LOOK.most == pytest.approx(0.631 * timedelta(minutes=65).total_seconds() / 3600)
