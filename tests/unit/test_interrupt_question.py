"""What the question after Ctrl-C says about each answer."""

from datetime import UTC, datetime, timedelta

import pytest

from gpuinfra.app.interrupt_question import MachineEnd, interrupt_question, question_about_all, time_after_detach
from gpuinfra.models.spec import Lifecycle

NOW = datetime(2026, 11, 19, 21, 0, tzinfo=UTC)
FOUR_HOURS = timedelta(hours=4)
DEALLOCATED = MachineEnd("my-dsvm", "deallocate", FOUR_HOURS, 0.526)


@pytest.mark.parametrize(
    ("machine", "detach", "cancel"),
    [
        (
            DEALLOCATED,
            "the job finishes, then the agent of my-dsvm switches the machine off, within 4h; if it cannot, Azure's "
            "schedule does within 4h35m (2026-11-20 01:35 UTC), for at most $2.41 more",
            "its outputs are fetched; my-dsvm is switched off",
        ),
        (
            MachineEnd("my-dsvm", "delete", FOUR_HOURS, 0.526, has_local_time=False),
            "off, within 4h; if it cannot, Azure's schedule does within 4h35m, for at most $2.41 more",
            "its outputs are fetched; my-dsvm is deleted",
        ),
        (
            MachineEnd("my-dsvm", "keep", FOUR_HOURS, None),
            "the job finishes; my-dsvm stays on until its lease ends: its agent switches it off within 4h; if it "
            "cannot, Azure's schedule does within 4h35m (2026-11-20 01:35 UTC)",
            "its outputs are fetched; my-dsvm stays on",
        ),
        (
            MachineEnd("my-dsvm", None, None, 0.5),
            "the job finishes; my-dsvm stays on as its lease says",
            "its outputs are fetched",
        ),
        (None, "the job finishes", "its outputs are fetched"),
    ],
)
def test_question_says_what_each_answer_leads_to(machine: MachineEnd | None, detach: str, cancel: str) -> None:
    lines = interrupt_question(machine, NOW).splitlines()
    assert next(line for line in lines if line.startswith("  d")).endswith(detach)
    assert next(line for line in lines if line.startswith("  c")).endswith(cancel)
    assert lines[-1] == "Ctrl-C again detaches, and so does no answer for two minutes. [d/c/g]"


def test_detach_gives_the_job_its_time_limit_and_time_for_its_outputs() -> None:
    assert time_after_detach(Lifecycle(), None) == FOUR_HOURS
    assert time_after_detach(Lifecycle(), 3600) == FOUR_HOURS
    assert time_after_detach(Lifecycle(), 8 * 3600) == timedelta(hours=8, minutes=10)


def test_question_about_several_machines_says_what_happens_to_each() -> None:
    kept, coming = MachineEnd("kept", "keep", FOUR_HOURS, 1.0), MachineEnd("coming", "delete", None, None)
    within = "within 4h; if it cannot, Azure's schedule does within 4h35m (2026-11-20 01:35 UTC), for at most"
    assert question_about_all([DEALLOCATED, kept], [coming], NOW).splitlines()[1:] == [
        "Ctrl-C: the jobs on my-dsvm, kept keep running. What next?",
        "  d  detach from all:",
        f"     my-dsvm: the job finishes, then the agent of my-dsvm switches the machine off, {within} $2.41 more",
        "     kept: the job finishes; kept stays on until its lease ends: its agent switches it off "
        f"{within} $4.58 more",
        "     coming: no job runs; coming is deleted",
        "  c  cancel all, and fetch their outputs:",
        "     my-dsvm: the job ends; my-dsvm is switched off",
        "     kept: the job ends; kept stays on",
        "     coming: no job runs; coming is deleted",
        "  g  go on following",
        "Ctrl-C again detaches, and so does no answer for two minutes. [d/c/g]",
    ]
