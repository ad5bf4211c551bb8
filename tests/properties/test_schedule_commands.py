"""Every command that a scheduler is given is one that this program takes."""

import re
import shlex
from pathlib import Path

import pytest

from gpuinfra.cli.commands import COMMANDS
from gpuinfra.cli.lazy_group import load_command
from gpuinfra.scheduling.order import Order
from gpuinfra.scheduling.rendering import Scheduler, cron_script, render
from tests.schedule_help import ODD, order

BARE = {"specs": None, "program": ("gpuinfra",)}
FULL = {"start": True, "delete": True, "grace": "2d", "program": ("gpuinfra",)}
HERE = {**FULL, "specs": ODD, "workspace": ODD}


def commands(text: str) -> list[list[str]]:
    """The words behind each `gpuinfra`, up to what is the shell's own."""
    found = re.findall(r"(?:^ *|script: |run: |[(=])gpuinfra (\w+(?: .*)?)$", text, re.MULTILINE)
    return [shlex.split(re.split(r" 2?> ?|\) ", command)[0]) for command in found]


def texts(scheduler: Scheduler, wanted: Order) -> str:
    if scheduler is Scheduler.CRON:
        # What cron has a shell run; that a crontab holds just this is tested elsewhere.
        return re.sub(r" 2>&1\).*", "", cron_script(wanted))
    text = "\n".join(file.text for file in render(scheduler, wanted))
    # Of systemd's own signs only these differ from a shell's.
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
def test_the_program_takes_every_command(scheduler: Scheduler, wanted: Order) -> None:
    found = commands(texts(scheduler, wanted))
    names = ["reap", "validate", "plan"] if scheduler.in_repository else ["reap"]
    assert [name for name, *_ in found] == names
    for name, *words in found:
        entry = next(entry for entry in COMMANDS if entry.name == name)
        # This reads the words as the program would, and runs nothing.
        load_command(*entry).make_context(name, list(words))
    assert found[0] == list(wanted.reap[1:])


def test_a_command_that_is_none_would_be_found() -> None:
    entry = next(entry for entry in COMMANDS if entry.name == "validate")
    with pytest.raises(Exception, match="no-such-option"):
        load_command(*entry).make_context("validate", ["--no-such-option", str(Path.cwd())])
