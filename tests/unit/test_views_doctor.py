"""How what `doctor` found looks."""

import json

import pytest

from gpuinfra.models.checks import Examination, MachineChecks, Verdict, ok, problem, warning, worst
from gpuinfra.views.doctor import render, show, summary

CHECKS = (
    ok("login", "subscription mine"),
    ok("reaper", "not seen", "schedule it"),
)
BAD = MachineChecks(
    "my-dsvm",
    "gpuinfra-my-dsvm",
    (
        problem("lease", "lease is over\x1b[2J", "`gpuinfra down my-dsvm`"),
        warning("role", "none", "an administrator runs:", "az one", "az two"),
        ok("protection", "none"),
    ),
)


def test_a_line_a_check_and_what_to_do_below_it() -> None:
    text = render(Examination(CHECKS, (BAD,))).plain
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


def test_what_is_simulated_says_so() -> None:
    text = render(Examination(CHECKS, (BAD,), simulated=True)).plain
    assert text.splitlines()[0] == "account (simulated)"
    assert "gpuinfra-my-dsvm (simulated)" in text


def test_the_worst_counts() -> None:
    assert worst([]) is Verdict.OK
    assert Examination(CHECKS).verdict is Verdict.OK
    assert Examination((*CHECKS, BAD.checks[1])).verdict is Verdict.WARNING
    assert Examination(CHECKS, (BAD,)).verdict is Verdict.PROBLEM


@pytest.mark.parametrize(
    ("examination", "text"),
    [
        (Examination(CHECKS), "no problems, no warnings"),
        (Examination(CHECKS, (BAD,)), "1 problem, 1 warning"),
        (Examination(CHECKS, (BAD, BAD)), "2 problems, 2 warnings"),
    ],
)
def test_how_many_are_wrong(examination: Examination, text: str) -> None:
    assert summary(examination) == text


def test_data_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    show(Examination(CHECKS, (BAD,), simulated=True), json=True)
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


def test_a_command_is_never_broken_into_lines(capsys: pytest.CaptureFixture[str]) -> None:
    command = "az role assignment create " + "x" * 300
    show(Examination((warning("role", "none", "run:", command),)), json=False)
    assert command in capsys.readouterr().out
