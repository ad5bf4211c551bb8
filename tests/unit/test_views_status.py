"""The layout of machines."""

import io
import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gpuinfra.models.machine import AgentState, Machine, ScheduledChange
from gpuinfra.views.status import NONE, StatusWatch, render, show

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
ON = Machine(
    name="my-dsvm",
    power_state="running",
    provisioning_state="Succeeded",
    region="southcentralus",
    size="Standard_NC4as_T4_v3",
    group="gpuinfra-my-dsvm",
    since=NOW - timedelta(hours=2),
    price_per_hour=0.631,
    lease_until=NOW + timedelta(hours=2, minutes=5),
    next_change=ScheduledChange(NOW + timedelta(hours=2, minutes=5), "deallocated", "lease"),
)
OFF = Machine(
    name="night",
    power_state="deallocated",
    provisioning_state="Succeeded",
    region="eastus",
    zone="1",
    size="Standard_NC24ads_A100_v4",
    spot=True,
    group="g",
    since=NOW - timedelta(days=1),
    lease_until=NOW - timedelta(days=1),
    next_change=ScheduledChange(NOW + timedelta(hours=20), "running", "hours"),
)
LATE = Machine(
    name="late",
    power_state="stopped",
    provisioning_state="Succeeded",
    region="eastus",
    size="Standard_Odd",
    group="g",
    lease_until=NOW - timedelta(minutes=3),
    drift=("stopped, but billed", "lease is over"),
)
TABLE = (
    "NAME     STATE        SINCE              REGION          SIZE                              $/H   COST  LEASE      "
    "NEXT\n"
    "my-dsvm  running      2026-11-16 10:00Z  southcentralus  Standard_NC4as_T4_v3           $0.631  $1.26  2 h 5 min  "
    "off 14:05Z (lease)\n"
    "night    deallocated  2026-11-15 12:00Z  eastus/1        Standard_NC24ads_A100_v4 spot       -  $0.00  -          "
    "on 2026-11-17 08:00Z (hours)\n"
    "late     stopped      -                  eastus          Standard_Odd                        -      -  over       "
    "-\n"
    "late: stopped, but billed\n"
    "late: lease is over"
)


def test_status_has_one_line_per_machine() -> None:
    assert render([ON, OFF, LATE], NOW).plain == TABLE


def test_drift_is_red() -> None:
    text = render([LATE], NOW)
    drift = text.plain.index("stopped, but billed")
    assert any(span.start == drift and span.style == "bold red" for span in text.spans)


def test_simulated_costs_say_so() -> None:
    assert "COST (simulated)" in render([ON], NOW, simulated=True).plain


def test_empty_status_is_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    show([], NOW, json=False, simulated=False)
    assert capsys.readouterr() == ("", f"{NONE}\n")


def test_status_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    show([ON], NOW, json=True, simulated=False)
    assert json.loads(capsys.readouterr().out) == {"schemaVersion": 1, "machines": [ON.as_json(NOW)]}
    show([], NOW, json=True, simulated=True)
    out, err = capsys.readouterr()
    assert json.loads(out) == {"schemaVersion": 1, "machines": [], "simulated": True}
    assert err == ""


def test_watch_without_a_terminal_prints_tables(capsys: pytest.CaptureFixture[str]) -> None:
    with StatusWatch(json=False, simulated=False) as watch:
        watch.show([ON, OFF, LATE], NOW)
        watch.trouble("Azure does not answer: \x1b[2J")
        watch.show([], NOW + timedelta(seconds=5))
    out, err = capsys.readouterr()
    assert out == f"2026-11-16 12:00:00Z\n{TABLE}\n2026-11-16 12:00:05Z\n{NONE}\n"
    assert "\x1b" not in err
    assert err.startswith("Azure does not answer: ")


def test_watch_as_json_prints_one_object_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    with StatusWatch(json=True, simulated=True) as watch:
        watch.show([ON], NOW)
        watch.show([], NOW)
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["machines"] for line in lines] == [[ON.as_json(NOW)], []]
    assert json.loads(lines[0])["schemaVersion"] == 1


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_watch_on_a_terminal_is_redrawn_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stdout", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("NO_COLOR", "1")
    with StatusWatch(json=False, simulated=False) as watch:
        watch.show([ON, OFF], NOW)
        watch.trouble("Azure does not answer")
        watch.show([ON], NOW + timedelta(seconds=5))
    written = stream.getvalue()
    assert written.count("\x1b[?25l") == written.count("\x1b[?25h") == 1
    assert "\x1b[1A" in written  # up again, to overwrite the old lines
    assert all(len(re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line)) <= 60 for line in re.split(r"[\r\n]", written))


AGENT = AgentState(
    at=NOW - timedelta(seconds=3),
    power_on=NOW - timedelta(hours=2),
    until=NOW + timedelta(hours=2),
    cause="lease over",
    idle_since=None,
    idle_until=None,
    jobs=("r1", "r2"),
    sessions=1,
    gpu_utilization=87,
    action="watching",
    last_error=None,
    eviction_notice=False,
)
IDLE = replace(
    AGENT,
    at=NOW - timedelta(minutes=3),
    idle_since=NOW - timedelta(minutes=5),
    idle_until=NOW + timedelta(minutes=15),
    jobs=(),
    sessions=0,
    gpu_utilization=None,
    action="warning",
    last_error="403 \x1b[2J",
    eviction_notice=True,
)


def test_agent_forecast_names_the_rule_that_fires_first() -> None:
    running = replace(AGENT, ends_with=("r1", "r2"))
    assert (
        "off when run r1 and r2 has ended, 14:00Z at the latest (lease over)"
        in render([replace(ON, agent=running)], NOW).plain
    )
    ended = replace(IDLE, finished_until=NOW + timedelta(seconds=45))
    assert "off 12:00Z (job finished); idle since 11:55Z" in render([replace(ON, agent=ended)], NOW).plain


def test_agent_state_is_shown_below_the_table() -> None:
    assert render([replace(ON, agent=AGENT), OFF], NOW).plain.splitlines()[3:] == [
        "agent of my-dsvm: watching; off 14:00Z (lease over); jobs: r1, r2; 1 login; GPU 87 %"
    ]
    said, error = render([replace(ON, agent=IDLE)], NOW).plain.splitlines()[2:]
    assert said == (
        "agent of my-dsvm: warning; off 12:15Z (idle); idle since 11:55Z; jobs: none; "
        "0 logins; Azure is about to evict it; last update 3 min ago"
    )
    assert error.startswith("  last error: 403 ")
    assert "\x1b" not in error
    unknown = render([replace(ON, agent="no\x1banswer")], NOW).plain.splitlines()[2]
    assert unknown.startswith("agent of my-dsvm: unknown: no\N{REPLACEMENT CHARACTER}answer")
    assert "\x1b" not in unknown


def test_agent_state_as_json() -> None:
    assert ON.as_json(NOW)["agent"] is None
    assert replace(ON, agent=AGENT).as_json(NOW)["agent"]["jobs"] == ["r1", "r2"]
    assert replace(ON, agent="no answer").as_json(NOW)["agent"] == {"problem": "no answer"}


def test_control_characters_are_removed() -> None:
    assert "\x1b" not in render([replace(ON, name="a\x1b[2J", drift=("\x9b",))], NOW).plain
