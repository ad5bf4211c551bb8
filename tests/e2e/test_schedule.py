"""`gpuinfra schedule` with the real cron and the real systemd, which really switch machines off."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuinfra.scheduling.crontab import BEGIN, END
from gpuinfra.scheduling.rendering import SERVICE, TIMER, UNITS
from tests.e2e.repository import commit_all
from tests.e2e.user import PROGRAM, User, inherited
from tests.private import Private, private
from tests.real import program

LONG_AGO = "2020-01-01T00:00:00Z"
OTHERS = "MAILTO=me\n0 3 * * * backup\n"


@pytest.fixture
def here(user: User) -> Iterator[Private]:
    """Private cron and systemd folders that only this test sees."""
    # Only the environment file says where the embedded Azure is.
    variables = {"HOME": str(user.home), "XDG_CONFIG_HOME": str(user.home / "settings")}
    with private({**inherited(), **variables}) as place:
        yield place


def does(here: Private, user: User, *words: str) -> dict[str, Any]:
    done = here(str(PROGRAM), *words, "--json", folder=user.workspace)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(done.stdout))


def create_expired_machine(user: User) -> None:
    """Create a machine past its lease. Its tag is older than its power-on, so that the guest agent ignores it."""
    user.up()
    machine = user.azure.machine()
    tags = {**machine["tags"], "gpuinfra:lease-until": LONG_AGO}
    status, _ = user.azure.send("PATCH", user.azure.id("Microsoft.Compute/virtualMachines", "my-dsvm"), {"tags": tags})
    assert status < 300
    user.azure.control("DELETE", "faults")
    assert user.azure.is_billed()


def settings_file(user: User) -> Path:
    """Write the environment file for schedulers, in a folder whose name has special characters."""
    folder = user.home / "it's [so] 100%"
    folder.mkdir()
    file = folder / "schedule.env"
    file.write_text(f"GPUINFRA_SANDBOX_HOME={user.azure.folder}\n")
    return file


def odd_specs(user: User) -> Path:
    folder = user.workspace / """sp ace's "so" ${HOME} %h;"""
    folder.mkdir()
    shutil.copy(user.workspace / "gpu.yaml", folder)
    commit_all(user, "specs", folder)
    return folder


# cron


def cron_command(crontab: str) -> str:
    """Return the command of our block, unescaped as described in crontab(5)."""
    block = crontab.partition(f"{BEGIN}\n")[2].partition(END)[0]
    (line,) = [line for line in block.splitlines() if line and not line.startswith("#")]
    return line.split(" ", 5)[5].replace(r"\%", "%")


def run_as_cron(user: User, command: str) -> subprocess.CompletedProcess[str]:
    # The whole environment of a cron job.
    given = {"HOME": str(user.home), "LOGNAME": "me", "SHELL": "/bin/sh", "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        ["/bin/sh", "-c", command], env=given, cwd=user.home, capture_output=True, text=True, timeout=60, check=False
    )


def test_cron_switches_an_expired_machine_off(here: Private, user: User) -> None:
    crontab = program("crontab", "cron")
    assert here(crontab, "-", folder=user.home, stdin=OTHERS).returncode == 0
    words = ["--specs", str(odd_specs(user)), "--environment-file", str(settings_file(user)), "--sandbox"]
    assert does(here, user, "schedule", "install", "--with", "cron", *words)["written"] == ["your crontab"]
    installed = here(crontab, "-l", folder=user.home).stdout
    assert installed.startswith(OTHERS)

    create_expired_machine(user)
    done = run_as_cron(user, cron_command(installed))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert user.azure.machine()["powerState"] == "PowerState/deallocated"

    assert does(here, user, "schedule", "install", "--with", "cron", *words)["unchanged"] == ["your crontab"]
    assert does(here, user, "schedule", "uninstall", "--with", "cron")["removed"] == ["your crontab"]
    assert here(crontab, "-l", folder=user.home).stdout == OTHERS
    assert does(here, user, "schedule", "uninstall", "--with", "cron")["removed"] == []


def test_cron_mails_a_failed_run(here: Private, user: User) -> None:
    broken = settings_file(user)
    told = user.home / "told"
    broken.write_text(f"GPUINFRA_CLOUD=nowhere\nGPUINFRA_ON_FAILURE=\"cat > '{told}'\"\n")
    rendered = does(here, user, "schedule", "render", "--with", "cron", "--environment-file", str(broken))
    done = run_as_cron(user, cron_command(f"{BEGIN}\n{rendered['files'][0]['content']}{END}\n"))
    assert done.returncode == 2
    assert "GPUINFRA_CLOUD is `nowhere`" in done.stdout
    assert "GPUINFRA_CLOUD is `nowhere`" in told.read_text()


def test_edited_crontab_lines_are_kept(here: Private, user: User) -> None:
    crontab = program("crontab", "cron")
    does(here, user, "schedule", "install", "--with", "cron")
    changed = here(crontab, "-l", folder=user.home).stdout.replace("*/15", "*/20")
    here(crontab, "-", folder=user.home, stdin=changed)
    for command in ("install", "uninstall"):
        done = here(str(PROGRAM), "schedule", command, "--with", "cron", folder=user.workspace)
        assert done.returncode == 2, done.stderr
        assert "not as gpuinfra wrote it" in done.stderr
        assert here(crontab, "-l", folder=user.home).stdout == changed
    does(here, user, "schedule", "install", "--with", "cron", "--yes")
    assert "*/15" in here(crontab, "-l", folder=user.home).stdout


# systemd


def test_systemd_catches_up_a_missed_run(here: Private, user: User, tmp_path: Path) -> None:
    settings, told = settings_file(user), user.home / "told"
    specs = odd_specs(user)
    words = ["--specs", str(specs), "--environment-file", str(settings), "--sandbox"]
    create_expired_machine(user)
    with here.systemd(tmp_path):
        # The computer was off for a day: the last run of the timer is as old as systemd's stamp file.
        stamp = user.home / ".local" / "share" / "systemd" / "timers" / f"stamp-{TIMER}"
        stamp.parent.mkdir(parents=True)
        stamp.touch()
        yesterday = time.time() - 86_400
        os.utime(stamp, (yesterday, yesterday))
        installed = does(here, user, "schedule", "install", "--with", "systemd", "--every", "1h", *words)
        assert installed["active"] is True, installed
        assert {Path(file).name for file in installed["written"]} == set(UNITS)
        await_true(lambda: user.azure.machine()["powerState"] == "PowerState/deallocated", "it was not switched off")
        assert result_of_service(here, user) == "success"

        again = does(here, user, "schedule", "install", "--with", "systemd", "--every", "2h", *words)
        assert [Path(file).name for file in again["written"]] == [TIMER]
        shown = here("systemctl", "--user", "show", TIMER, "--property=TimersCalendar", folder=tmp_path).stdout
        assert "00/2:00:00" in shown
        assert here("systemctl", "--user", "is-enabled", TIMER, folder=tmp_path).stdout == "enabled\n"

        # It refuses specs that are not committed.
        (specs / "new.yaml").touch()
        settings.write_text(f"{settings.read_text()}GPUINFRA_ON_FAILURE=\"touch '{told}'\"\n")
        assert here("systemctl", "--user", "start", SERVICE, folder=tmp_path).returncode != 0
        await_true(told.exists, "the failure was not reported")

        assert len(does(here, user, "schedule", "uninstall", "--with", "systemd")["removed"]) == 3
        assert here("systemctl", "--user", "is-active", TIMER, folder=tmp_path).stdout == "inactive\n"
    assert not list((user.home / "settings" / "systemd").rglob("*gpuinfra*"))


def await_true(holds: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.1)


def result_of_service(here: Private, user: User) -> str:
    deadline = time.monotonic() + 30
    while True:
        words = ("systemctl", "--user", "show", SERVICE, "--property=Result,ActiveState,ExecMainExitTimestamp")
        shown = dict(line.split("=", 1) for line in here(*words, folder=user.home).stdout.splitlines())
        if shown["ActiveState"] in {"inactive", "failed"} and shown["ExecMainExitTimestamp"]:
            return str(shown["Result"])
        assert time.monotonic() < deadline, shown
        time.sleep(0.1)


def test_install_without_systemd_lists_the_remaining_steps(user: User) -> None:
    installed = user.does("schedule", "install", "--with", "systemd", XDG_RUNTIME_DIR="/nonexistent", sandbox=False)
    assert installed["active"] is False
    assert installed["reason"]
    assert "systemctl --user daemon-reload" in installed["leftToDo"]
    assert f"systemctl --user restart {TIMER}" in installed["leftToDo"]
    assert (user.home / ".config" / "systemd" / "user" / TIMER).is_file()
    assert len(user.does("schedule", "uninstall", "--with", "systemd", sandbox=False)["removed"]) == 3


def test_install_without_cron_is_an_error(user: User) -> None:
    problem = user.fails("schedule", "install", "--with", "cron", code="no-scheduler", PATH="/nonexistent")
    assert "cron" in problem["help"]


# GitHub and Azure Pipelines


def test_workflow_is_written_to_the_root_of_the_repository(user: User) -> None:
    (user.workspace / ".git").mkdir()
    (user.workspace / "infra").mkdir()
    words = ["--with", "github-actions", "--workspace", "infra"]
    package = ["--package", "gpuinfra==1"]
    path = user.workspace / ".github" / "workflows" / "gpuinfra.yml"
    installed = user.does("schedule", "install", *words, *package, "--specs", "infra", sandbox=False)
    assert installed["written"] == [str(path)]
    assert "gpuinfra reap --specs infra --require-clean --json" in path.read_text()
    assert user.does("schedule", "install", *words, *package, "--specs", "infra", sandbox=False)["unchanged"] == [
        str(path)
    ]
    # An unchanged file is updated; an edited one only with --yes.
    assert user.does("schedule", "install", *words, *package, "--every", "30m", sandbox=False)["written"] == [str(path)]
    path.write_text(path.read_text() + "# mine\n")
    for command in (["install", *package], ["uninstall"]):
        user.fails("schedule", *command, *words, code="file-exists", exit_code=2, sandbox=False)
        assert path.read_text().endswith("# mine\n")
    assert user.does("schedule", "uninstall", *words, "--yes", sandbox=False)["removed"] == [str(path)]
    assert not path.exists()


def test_pipeline_is_written_to_the_root_of_the_repository(user: User) -> None:
    installed = user.does("schedule", "install", "--with", "azure-pipelines", "--package", "gpuinfra==1", sandbox=False)
    assert installed["written"] == [str(user.workspace / "azure-pipelines-gpuinfra.yml")]
    assert installed["active"] is None
    assert installed["leftToDo"]


def test_rendered_files_can_be_printed_or_written(user: User) -> None:
    printed = user("schedule", "render", "--with", "systemd", sandbox=False).stdout
    assert printed.startswith(f"# {SERVICE}\n")
    assert f"\n# {TIMER}\n" in printed
    assert str(PROGRAM) in printed
    user.does("schedule", "render", "--with", "systemd", "--output", "units", sandbox=False)
    assert {file.name for file in (user.workspace / "units").iterdir()} == set(UNITS)
