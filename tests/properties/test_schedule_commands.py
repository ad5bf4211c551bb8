"""The program accepts every command that a scheduler runs."""

import re
import shlex
from pathlib import Path

import pytest

from gpuinfra.cli.main import COMMANDS, load_command
from gpuinfra.scheduling.rendering import Scheduler, cron_script, render
from gpuinfra.scheduling.schedule import ReapSchedule
from tests.schedule_help import ODD, order

BARE = {"specs": None, "program": ("gpuinfra",)}
FULL = {"start": True, "delete": True, "grace": "2d", "program": ("gpuinfra",)}
HERE = {**FULL, "specs": ODD, "workspace": ODD}


def commands(text: str) -> list[list[str]]:
    """Return the words after each `gpuinfra`, up to shell syntax."""
    found = re.findall(r"(?:^ *|script: |run: |[(=])gpuinfra (\w+(?: .*)?)$", text, re.MULTILINE)
    return [shlex.split(re.split(r" 2?> ?|\) ", command)[0]) for command in found]


def texts(scheduler: Scheduler, wanted: ReapSchedule) -> str:
    if scheduler is Scheduler.CRON:
        # The script that cron runs; another test checks that a crontab contains exactly this.
        return re.sub(r" 2>&1\).*", "", cron_script(wanted))
    text = "\n".join(file.text for file in render(scheduler, wanted))
    # Only these of systemd's special characters differ from a shell's.
    return text.replace("%%", "%").replace("$$", "$") if scheduler is Scheduler.SYSTEMD else text


@pytest.mark.parametrize(
    ("scheduler", "wanted"),
    [
        *((scheduler, order(**fields)) for scheduler in (Scheduler.CRON, Scheduler.SYSTEMD) for fields in (BARE, HERE)),
        *(
            (scheduler, order(**{**fields, "specs": "infra"}))
            for scheduler in (Scheduler.GITHUB_ACTIONS, Scheduler.AZURE_PIPELINES)
            for fields in (BARE, FULL)
        ),
    ],
)
def test_program_accepts_every_scheduled_command(scheduler: Scheduler, wanted: ReapSchedule) -> None:
    found = commands(texts(scheduler, wanted))
    names = ["reap", "validate", "plan"] if scheduler.in_repository else ["reap"]
    assert [name for name, *_ in found] == names
    for name, *words in found:
        entry = next(entry for entry in COMMANDS if entry.name == name)
        # This parses the words as the program would, and runs nothing.
        load_command(*entry).make_context(name, list(words))
    assert found[0] == list(wanted.reap[1:])


def test_invalid_command_is_found() -> None:
    entry = next(entry for entry in COMMANDS if entry.name == "validate")
    with pytest.raises(Exception, match="no-such-option"):
        load_command(*entry).make_context("validate", ["--no-such-option", str(Path.cwd())])
