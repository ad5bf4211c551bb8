"""The options of `gpuinfra schedule`, parsed and checked before anything is written."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpuinfra import __version__
from gpuinfra.app.settings import Settings, grace_of, seconds_of
from gpuinfra.diagnostics import Code, Exit, Problem, did_you_mean, listed, problem

if TYPE_CHECKING:
    from gpuinfra.scheduling.rendering import Scheduler
    from gpuinfra.scheduling.schedule import Interval, ReapSchedule

# Characters that need no quoting in YAML, a shell, and the expressions of both services.
PATH_WORD, BRANCH_WORD = r"[A-Za-z0-9._][A-Za-z0-9._/-]*", r"[A-Za-z0-9._/-]+"
CONNECTION_WORD, PACKAGE_WORD = r"[A-Za-z0-9._ ()-]+", r"[A-Za-z0-9._+@:/=<>~!,\[\]#&?-]+"


@dataclass(frozen=True)
class Words:
    """The options as given."""

    every: str = "15m"
    specs: Path | None = None
    start: bool = False
    delete: bool = False
    grace: str | None = None
    environment_file: Path | None = None
    package: str | None = None
    branch: str | None = None
    connection: str | None = None
    plan_connection: str | None = None


def read_scheduler(word: str) -> Scheduler:
    """Return the scheduler that `--with` names. Raise Problem if it is unknown."""
    from gpuinfra.scheduling.rendering import Scheduler

    if word in set(Scheduler):
        return Scheduler(word)
    note = f"`--with {word}`: it can be {listed(Scheduler)}"
    raise _usage(note, did_you_mean(word, Scheduler))


def read_order(words: Words, scheduler: Scheduler, settings: Settings) -> ReapSchedule:
    """Return the whole schedule. Raise Problem if an option is invalid."""
    from gpuinfra.scheduling.schedule import ReapSchedule, environment_file, own_program, search_path

    _check_fit(words, scheduler, settings)
    every = _interval(words.every, scheduler)
    if words.grace is not None:
        grace_of(words.grace)
    if scheduler.in_repository:
        return ReapSchedule(
            every=every,
            specs=_specs_in_repository(words.specs, settings),
            start=words.start,
            delete=words.delete,
            grace=words.grace,
            package=_package(words.package),
            branch=words.branch or "main",
            connection=words.connection or "gpuinfra",
            plan_connection=words.plan_connection or "gpuinfra-plan",
        )
    program = own_program()
    order = ReapSchedule(
        every=every,
        specs=None if words.specs is None else str(_existing(words.specs).absolute()),
        start=words.start,
        delete=words.delete,
        grace=words.grace,
        sandbox=settings.cloud == "sandbox",
        workspace=str(_plain(settings.folder)),
        program=program,
        search_path=search_path(program),
        environment_file=str((words.environment_file or environment_file(os.environ, Path.home())).absolute()),
    )
    _check_plain(order)
    return order


def _package(word: str | None) -> str:
    """Return the package. There is no default, because whatever a public index installs would get rights in Azure."""
    if word is not None:
        return word
    raise _usage(
        "`--package` is needed: what pip installs on the runner has rights in Azure",
        f"give the source of your team: `--package git+https://HOST/REPOSITORY@TAG`, or `gpuinfra=={__version__}` "
        "from an index that you trust",
    )


def _plain(folder: Path) -> Path:
    """Return an absolute path without `..`, whose links stay."""
    return Path(os.path.abspath(folder))  # noqa: PTH100


def repository(settings: Settings) -> Path:
    """Return the folder with the workspace's `.git`, where both services look, or the workspace without one."""
    workspace = _plain(settings.folder)
    return next((each for each in (workspace, *workspace.parents) if (each / ".git").exists()), workspace)


def _check_fit(words: Words, scheduler: Scheduler, settings: Settings) -> None:
    """Raise Problem for options that this scheduler would ignore."""
    from gpuinfra.scheduling.rendering import Scheduler

    here, elsewhere = (Scheduler.CRON, Scheduler.SYSTEMD), (Scheduler.GITHUB_ACTIONS, Scheduler.AZURE_PIPELINES)
    given = {
        "--environment-file": (words.environment_file, here),
        "--sandbox": (settings.cloud == "sandbox" or None, here),
        "--package": (words.package, elsewhere),
        "--branch": (words.branch, elsewhere[1:]),
        "--connection": (words.connection, elsewhere[1:]),
        "--plan-connection": (words.plan_connection, elsewhere[1:]),
    }
    for option, (value, fitting) in given.items():
        if value is not None and scheduler not in fitting:
            raise _usage(f"`{option}` has no effect for {scheduler}; it is for {listed(fitting, 'and')}")
    if words.start and words.specs is None and not scheduler.in_repository:
        raise _usage("`--start` needs `--specs`: the specs say which machines should be on, and when")
    if (words.plan_connection or "gpuinfra-plan") == (words.connection or "gpuinfra"):
        raise _usage("`--plan-connection` must differ from `--connection`: a pull request must not change machines")
    patterns = {
        "--package": PACKAGE_WORD,
        "--branch": BRANCH_WORD,
        "--connection": CONNECTION_WORD,
        "--plan-connection": CONNECTION_WORD,
    }
    for option, pattern in patterns.items():
        value = given[option][0]
        if value is not None and not re.fullmatch(pattern, str(value)):
            raise _usage(f"`{option} {value}` is empty, or contains a character that is not allowed")


def _interval(text: str, scheduler: Scheduler) -> Interval:
    from gpuinfra.scheduling.rendering import MIN_MINUTES
    from gpuinfra.scheduling.schedule import Interval, nearest_interval

    minutes, least = seconds_of("--every", text) / 60, MIN_MINUTES.get(scheduler, 1)
    if minutes < least:
        raise _usage(f"`--every {text}`: {scheduler} runs at most every {least}m")
    if nearest_interval(minutes).minutes == minutes:
        return Interval(int(minutes))
    note = f"`--every {text}` is not a regular interval: it must divide an hour, or be hours that divide a day"
    raise _usage(note, f"the nearest is `{nearest_interval(minutes)}`")


def _specs_in_repository(specs: Path | None, settings: Settings) -> str:
    root = repository(settings).resolve()
    found = _existing(specs).resolve() if specs is not None else root
    if not found.is_relative_to(root):
        raise _usage(f"`--specs {specs}` is not in the repository `{root}`, which is all that a checkout has")
    path = found.relative_to(root).as_posix()
    if not re.fullmatch(PATH_WORD, path):
        raise _usage(f"`--specs {specs}`: its path in the repository can have letters, digits and `._/-`")
    return path


def _existing(specs: Path) -> Path:
    if specs.is_dir():
        return specs
    raise problem(
        Code.FILE_NOT_FOUND,
        "no such directory",
        f"`--specs {specs}` is not a directory",
        "give the folder that the specs are in",
        exit_code=Exit.USAGE,
    )


def _check_plain(order: ReapSchedule) -> None:
    for value in (*order.reap, order.environment_file, order.search_path):
        if not value.isprintable():
            raise _usage(f"{shlex.quote(value)!a} has a sign in it that no crontab and no unit can hold")


def _usage(note: str, help_line: str | None = None) -> Problem:
    return problem(
        Code.USAGE,
        "wrong usage",
        note,
        help_line or "`gpuinfra schedule render --help` shows how",
        exit_code=Exit.USAGE,
    )
