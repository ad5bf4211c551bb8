"""The layout of a plan."""

import io
import json

import pytest
from rich.console import Console

from gpuinfra.models.inventory import PlanReport, Reason, UnmanagedResource, totals_of
from gpuinfra.models.plan import (
    Action,
    Candidate,
    Change,
    Difference,
    Kind,
    Plan,
    Power,
    Price,
    Ref,
    RejectedCandidate,
    RejectionReason,
    ResolvedJob,
)
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


def report(*plans: Plan, **more: object) -> PlanReport:
    return PlanReport(plans, **more)  # type: ignore[arg-type]


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


@pytest.mark.parametrize("width", [60, 80, 120])
def test_lines_fit_the_terminal_and_no_word_is_cut(width: int) -> None:
    long = plan(
        change(Action.ADD, Kind.SHUTDOWN_SCHEDULE, "shutdown-computevm-my-dsvm", summary="daily stop at 04:57 UTC"),
        *EVERYTHING.changes,
    )
    found = text(long, width=width)  # type: ignore[arg-type]
    lines = found.splitlines()
    assert max(map(len, lines)) <= width, lines
    assert sorted(found.split()) == sorted(text(long).split())


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
    show(report(plan(rejected=PASSED, notes=("the image's terms are accepted",))), json=False)
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


def test_several_plans_have_headings_and_totals(capsys: pytest.CaptureFixture[str]) -> None:
    plans = (plan(hours_left=4.0), plan(hours_left=0.5))
    show(report(*plans, totals=totals_of(plans, [], [0.631])), json=False)
    out = capsys.readouterr().out
    head = f"my-dsvm:\n{text(plan())}\n\nmy-dsvm:\n{text(plan())}\n\nAll 2 machines:\n"
    assert out == head + (
        "  now         $0.631 an hour\n"
        "  all on      $1.262 an hour\n"
        "  worst case  $2.84, if each stays on until its lease ends\n"
        "  all off     about $46.50 a month for disks and addresses\n"
    )


OLD = UnmanagedResource(
    Ref(Kind.VM, "gpuinfra-old", "old"),
    Reason.NO_SPEC,
    "no spec in git since 2026-11-18 10:02Z",
    "gpuinfra down old --delete",
    "running",
    "Standard_NC4as_T4_v3",
    0.631,
    22.85,
)
DISK = UnmanagedResource(
    Ref(Kind.DISK, "gpuinfra-gone", "gone-disk"),
    Reason.NO_MACHINE,
    "it has no machine: gone",
    "gpuinfra down gone --delete",
    per_month=19.2,
)
FOREIGN = UnmanagedResource(
    Ref(Kind.VM, "team", "notebook"), Reason.FOREIGN, "not ours", None, "running", "Standard_NC8as_T4_v3", None
)


def test_what_is_in_no_spec_is_shown_in_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    found = (OLD, DISK, FOREIGN)
    plans = (plan(wants_running=False),)
    show(report(*plans, unmanaged=found, totals=totals_of(plans, found, []), simulated=True), json=False)
    lines = capsys.readouterr().out.split("\n\n", 1)[1]
    assert lines == (
        "In no spec (simulated):\n"
        "  vm old, group gpuinfra-old\n"
        "    running, Standard_NC4as_T4_v3, $0.631/h while on, $22.85 a month\n"
        "    no spec in git since 2026-11-18 10:02Z\n"
        "    end it: `gpuinfra down old --delete`\n"
        "  disk gone-disk, group gpuinfra-gone\n"
        "    $19.20 a month\n"
        "    it has no machine: gone\n"
        "    end it: `gpuinfra down gone --delete`\n"
        "  vm notebook, group team\n"
        "    running, Standard_NC8as_T4_v3, unknown price\n"
        "    not ours\n"
        "\n"
        "1 machine (simulated):\n"
        "  now         $0.631 an hour\n"
        "  all on      $0.000 an hour\n"
        "  worst case  $0.00, if each stays on until its lease ends\n"
        "  all off     about $42.05 a month for disks and addresses\n"
    )
    assert max(map(len, lines.splitlines())) <= 80


@pytest.mark.parametrize(("found", "pending"), [(OLD, True), (DISK, False), (FOREIGN, False)])
def test_only_a_machine_whose_spec_is_gone_is_pending(found: UnmanagedResource, *, pending: bool) -> None:
    assert report(plan(), unmanaged=(found,)).is_pending is pending


def test_unknown_price_makes_a_total_a_lower_bound(capsys: pytest.CaptureFixture[str]) -> None:
    plans = (plan(hours_left=1.0), plan(price=Price(None, 1.0, 1.0)))
    show(report(*plans, totals=totals_of(plans, [], [None])), json=False)
    out = capsys.readouterr().out
    assert "now         at least $0.000 an hour" in out
    assert "worst case  at least $0.63, if" in out


def test_plans_as_json_are_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    plans = (EVERYTHING, plan(rejected=PASSED))
    show(report(*plans, unmanaged=(DISK,), totals=totals_of(plans, [DISK], [])), json=True)
    out, err = capsys.readouterr()
    assert json.loads(out) == {
        "schemaVersion": 1,
        "plans": [EVERYTHING.as_json(), plan(rejected=PASSED).as_json()],
        "unmanaged": [DISK.as_json()],
        "totals": {
            "perHourNowUsd": 0.0,
            "perHourOnUsd": 1.262,
            "worstCaseUsd": 0.0,
            "perMonthOffUsd": 65.7,
            "complete": True,
        },
    }
    assert err == ""
    show(report(plan(simulated=True), simulated=True), json=True)
    assert json.loads(capsys.readouterr().out)["simulated"] is True


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


def test_job_is_shown_below_its_machine(capsys: pytest.CaptureFixture[str]) -> None:
    job = ResolvedJob(
        command=("/bin/sh", "-c", "set -e\npython train.py"),
        title="set -e\npython train.py",
        target="my_dsvm",
        type="remotedocker",
        image="own/image:1",
        packages="environment.yml",
        needs_gpu=True,
        variables={"A": "1"},
        secrets=("KEY", "TOKEN"),
        missing_secrets=("TOKEN",),
        outputs=("outputs/", "saved/"),
        timeout=6 * 3600.0,
        keep_on_failure=1800.0,
    )
    show(report(plan(job=job)), json=False)
    assert capsys.readouterr().out.partition("\n\nJob ")[2].splitlines() == [
        "on my_dsvm, for `gpuinfra run`:",
        "  command      set -e",
        "               python train.py",
        "  environment  own/image:1, with the packages of environment.yml",
        "  gpu          required",
        "  env          A=1",
        "  secrets      KEY, TOKEN (no value here)",
        "  outputs      outputs/, saved/",
        "  timeout      6h",
        "  on failure   on for 30m, for a look",
    ]
    show(
        report(plan(job=ResolvedJob(target="my_dsvm", problem="no such script: `a.py`", secrets=("KEY",)))), json=False
    )
    shown = capsys.readouterr().out.partition("\n\nJob ")[2].splitlines()
    assert shown[1:] == ["  problem      no such script: `a.py`", "  secrets      KEY"]
    show(report(plan(job=ResolvedJob(target="my_dsvm", type="remotedocker", packages="environment.yml"))), json=False)
    environment = "the newest base image for the machine's driver, with the packages of environment.yml"
    assert f"  environment  {environment}\n" in capsys.readouterr().out
