"""The layout of `doctor`."""

import json

import pytest

from gpuinfra.models.health import CheckStatus, HealthReport, MachineHealth, ok, problem, warning, worst
from gpuinfra.views.doctor import render, show, summary

CHECKS = (
    ok("login", "subscription mine"),
    ok("reaper", "not seen", "schedule it"),
)
BAD = MachineHealth(
    "my-dsvm",
    "gpuinfra-my-dsvm",
    (
        problem("lease", "lease is over\x1b[2J", "`gpuinfra down my-dsvm`"),
        warning("role", "none", "an administrator runs:", "az one", "az two"),
        ok("protection", "none"),
    ),
)


def test_doctor_shows_one_line_per_check_and_its_fix() -> None:
    text = render(HealthReport(CHECKS, (BAD,))).plain
    assert text == (
        "account\n"
        "  ok       login       subscription mine\n"
        "  ok       reaper      not seen\n"
        "                       schedule it\n"
        "\n"
        "machine my-dsvm, group gpuinfra-my-dsvm\n"
        "  problem  lease       lease is over\ufffd[2J\n"
        "                       `gpuinfra down my-dsvm`\n"
        "  warning  role        none\n"
        "                       an administrator runs:\n"
        "                         az one\n"
        "                         az two\n"
        "  ok       protection  none"
    )


def test_simulated_result_says_so() -> None:
    text = render(HealthReport(CHECKS, (BAD,), simulated=True)).plain
    assert text.splitlines()[0] == "account (simulated)"
    assert "gpuinfra-my-dsvm (simulated)" in text


def test_worst_verdict_counts() -> None:
    assert worst([]) is CheckStatus.OK
    assert HealthReport(CHECKS).verdict is CheckStatus.OK
    assert HealthReport((*CHECKS, BAD.checks[1])).verdict is CheckStatus.WARNING
    assert HealthReport(CHECKS, (BAD,)).verdict is CheckStatus.PROBLEM


@pytest.mark.parametrize(
    ("examination", "text"),
    [
        (HealthReport(CHECKS), "no problems, no warnings"),
        (HealthReport(CHECKS, (BAD,)), "1 problem, 1 warning"),
        (HealthReport(CHECKS, (BAD, BAD)), "2 problems, 2 warnings"),
    ],
)
def test_summary_counts_problems(examination: HealthReport, text: str) -> None:
    assert summary(examination) == text


def test_doctor_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    show(HealthReport(CHECKS, (BAD,), simulated=True), json=True)
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["schemaVersion"], found["verdict"], found["simulated"], err) == (1, "problem", True, "")
    assert found["checks"][0] == {
        "name": "login",
        "verdict": "ok",
        "seen": "subscription mine",
        "fix": None,
        "commands": [],
    }
    (machine,) = found["machines"]
    assert (machine["name"], machine["resourceGroup"]) == ("my-dsvm", "gpuinfra-my-dsvm")
    assert machine["checks"][1]["commands"] == ["az one", "az two"]


def test_command_is_never_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    command = "az role assignment create " + "x" * 300
    show(HealthReport((warning("role", "none", "run:", command),)), json=False)
    assert command in capsys.readouterr().out
