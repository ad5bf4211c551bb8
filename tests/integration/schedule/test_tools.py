"""Rendered files, checked by the schedulers' own programs."""

import re
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuinfra.scheduling.crontab import with_block
from gpuinfra.scheduling.rendering import Scheduler, cron_script, render
from gpuinfra.scheduling.schedule import EVEN, Interval
from tests.real import program
from tests.schedule_help import ODD, order

SCHEMAS = {
    Scheduler.GITHUB_ACTIONS: ["--builtin-schema", "vendor.github-workflows"],
    # Its patterns do not use Unicode mode, and Azure reads `${{ if }}` as keys.
    Scheduler.AZURE_PIPELINES: [
        *("--builtin-schema", "vendor.azure-pipelines"),
        *("--regex-variant", "nonunicode", "--data-transform", "azure-pipelines"),
    ],
}


def run(*words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, **more)


def verify(folder: Path, **environment: str) -> str:
    """Return systemd's complaints about all units in a folder; its exit code is 0 for most of them."""
    analyze = program("systemd-analyze", "systemd")
    units = [str(unit) for unit in sorted(folder.glob("gpuinfra-reap.*"))]
    # The user manager reads them, and needs a runtime folder.
    done = run(analyze, "verify", "--user", *units, env={"XDG_RUNTIME_DIR": str(folder), "HOME": str(folder)})
    return done.stdout + done.stderr


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    wanted = order(program=(sys.executable, "-m", "gpuinfra"), specs=ODD, environment_file=f"{ODD}/x.env")
    for file in render(Scheduler.SYSTEMD, wanted):
        (tmp_path / file.name).write_text(file.text)
    assert verify(tmp_path) == ""


def test_systemd_rejects_invalid_units(tmp_path: Path) -> None:
    for file in render(Scheduler.SYSTEMD, order(program=(sys.executable,))):
        (tmp_path / file.name).write_text(file.text.replace("Persistent=", "Persistant=").replace("*-*-*", "*-*-#"))
    said = verify(tmp_path)
    assert "Persistant" in said
    assert "OnCalendar" in said or "calendar" in said


def test_systemd_reads_every_calendar_as_intended() -> None:
    analyze = program("systemd-analyze", "systemd")
    calendars = [Interval(minutes).calendar() for minutes in EVEN]
    base = "2026-11-15 23:59:30"
    words = [analyze, "calendar", "--iterations=4", f"--base-time={base}", *calendars]
    done = run(*words, env={"TZ": "UTC"})
    assert done.returncode == 0, done.stderr
    blocks = done.stdout.split("\n\n")
    assert len(blocks) == len(EVEN)
    for minutes, block in zip(EVEN, blocks, strict=True):
        moments = re.findall(r"(?:Next elapse|Iter\. #\d+): \w+ (\S+ \S+) UTC", block)
        found = [datetime.fromisoformat(moment) for moment in moments]
        assert found == [datetime(2026, 11, 16) + n * timedelta(minutes=minutes) for n in range(4)], block


def check_crontab(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    file = folder / "crontab"
    file.write_text(text)
    return run(program("crontab", "cron"), "-n", str(file))


@pytest.mark.parametrize("minutes", [1, 15, 60, 120, 1440])
def test_cron_accepts_the_block_among_other_lines(tmp_path: Path, minutes: int) -> None:
    (file,) = render(Scheduler.CRON, order(every=Interval(minutes), specs=ODD))
    done = check_crontab(tmp_path, with_block("MAILTO=me\n0 3 * * * backup\n", file.text))
    assert done.returncode == 0, done.stderr


def test_cron_rejects_an_invalid_line(tmp_path: Path) -> None:
    (file,) = render(Scheduler.CRON, order())
    done = check_crontab(tmp_path, file.text.replace("*/15 *", "*/15 25"))
    assert done.returncode != 0
    assert "bad hour" in done.stderr


def check_schema(scheduler: Scheduler, file: Path) -> subprocess.CompletedProcess[str]:
    checker = Path(sys.executable).with_name("check-jsonschema")
    return run(str(checker), *SCHEMAS[scheduler], str(file))


@pytest.mark.parametrize("scheduler", SCHEMAS)
def test_workflows_fit_their_schemas(tmp_path: Path, scheduler: Scheduler) -> None:
    (rendered,) = render(scheduler, order(specs=".", start=True, delete=True, grace="2d", program=("gpuinfra",)))
    file = tmp_path / "rendered.yml"
    file.write_text(rendered.text)
    done = check_schema(scheduler, file)
    assert done.returncode == 0, done.stdout
    wrong = rendered.text.replace("    steps:", "    stops:")
    file.write_text(wrong)
    assert check_schema(scheduler, file).returncode == 1


def scripts_of(node: Any) -> list[str]:
    """Return every shell script in a workflow or pipeline."""
    if isinstance(node, list):
        return [script for each in node for script in scripts_of(each)]
    if not isinstance(node, dict):
        return []
    own = [str(node[key]) for key in ("run", "inlineScript") if key in node]
    # `script` is shell in a step of its own, and Python as an input of the Python task.
    own += [str(node["script"])] if "script" in node and "scriptSource" not in node else []
    return own + [script for each in node.values() for script in scripts_of(each)]


def rendered_scripts() -> list[tuple[str, str]]:
    found = [("sh", cron_script(order(specs=ODD)))]
    for scheduler in SCHEMAS:
        (file,) = render(scheduler, order(program=("gpuinfra",)))
        found += [("bash", script) for script in scripts_of(yaml.safe_load(file.text))]
    return found


def test_shellcheck_accepts_every_script(tmp_path: Path) -> None:
    checker = program("shellcheck", "shellcheck")
    scripts = rendered_scripts()
    assert len(scripts) == 18
    for number, (shell, script) in enumerate(scripts):
        (tmp_path / f"{number}.{shell}").write_text(f"#!/bin/{shell}\n{script}\n")
    # The environment file does not exist, and a `$` in the name of a folder is intended.
    done = run(checker, "--exclude=SC1091,SC2016", *map(str, sorted(tmp_path.iterdir())))
    assert done.returncode == 0, done.stdout
