"""Options and fixtures that all tests share."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from tests.balance import balance
from tests.program import stop_fork_server
from tests.variants import counts_by_folder, without_variants

if TYPE_CHECKING:
    from tests.lab import Lab

# The same examples in every run: a gate must not fail for someone who changed nothing. `make soak` looks for new ones.
settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
settings.register_profile("soak", derandomize=False, deadline=None, database=None, print_blob=True)

Covered = Callable[[str, int, int], None]

VARIANTS = pytest.StashKey[dict[str, list[int]]]()
"""By folder: how many variants run, and how many there are."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-cases", action="store_true", help="write the expected output of case files again")
    parser.addoption(
        "--exhaustive", action="store_true", help="run variants, and test every boundary instead of one of each kind"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "variant: a variant of another test, for `make test-all`")
    config.stash[VARIANTS] = {}
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))
    _restore_signals()
    if not hasattr(config, "workerinput"):
        # As Ctrl-C, so that `pytest_unconfigure` stops the sandboxes: `timeout` and CI end a run with SIGTERM.
        signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    chosen, variants = without_variants(items)
    # A test that is named on the command line runs in any case.
    if not config.getoption("--exhaustive") and not any("::" in argument for argument in config.args):
        config.hook.pytest_deselected(items=variants)
        items[:] = chosen
    running = counts_by_folder(set(items) & set(variants))
    config.stash[VARIANTS] = {
        folder: [running.get(folder, 0), count] for folder, count in counts_by_folder(variants).items()
    }
    items[:] = balance(items, workers, lambda item: item.nodeid)


def _restore_signals() -> None:
    """Give the processes that tests start the usual signals, also under `nohup`, as a background job, or if blocked.

    A child inherits what its parent ignores, but not what its parent handles. So a handler replaces each inherited
    "ignore"; only SIGINT has a meaning for the tests themselves, as Ctrl-C.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    # Where it is ignored, every program that a test starts seems to end with 0.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def pytest_sessionfinish(session: pytest.Session) -> None:
    stop_fork_server()
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["variants"] = session.config.stash[VARIANTS]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over the counts of an xdist worker: each collects all tests."""
    node.config.stash[VARIANTS] = getattr(node, "workeroutput", {}).get("variants", {})


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the sandboxes of a run that was interrupted: xdist ends its workers before they can."""
    factory: pytest.TempPathFactory | None = getattr(config, "_tmp_path_factory", None)
    if hasattr(config, "workerinput") or factory is None:
        return
    for process in sandboxes_below(factory.getbasetemp()):
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(process, signal.SIGTERM)


def sandboxes_below(folder: Path) -> list[int]:
    """Return the processes of the sandboxes in a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended, or belongs to another user
            words = (process / "cmdline").read_bytes().split(b"\0")
            if b"gpuinfra.sandbox" in words and any(word.startswith(f"{folder}/".encode()) for word in words):
                found.append(int(process.name))
    return found


@pytest.fixture
def update_cases(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-cases"))


@pytest.fixture(scope="session")
def exhaustive(request: pytest.FixtureRequest) -> bool:
    """Whether to test every boundary; otherwise at least one of each kind."""
    return bool(request.config.getoption("--exhaustive"))


@pytest.fixture
def covered(record_property: Callable[[str, object], None]) -> Covered:
    """Count in the summary what this test covered: a subject, how many cases, and how many there are.

    The counts of all tests of one subject are added.
    """
    return lambda subject, count, total: record_property("covered", [subject, count, total])


@pytest.fixture(scope="session")
def running_lab() -> "Iterator[Lab]":
    """One lab for all tests of a worker."""
    from tests.lab import running  # imported late: few tests need it

    with running() as made:
        yield made


@pytest.fixture
def lab(running_lab: "Lab") -> "Lab":
    """The lab, without leftovers of earlier tests."""
    running_lab.reset()
    return running_lab


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for found in terminalreporter.stats.values() for report in found]
    # Each report of a test repeats its properties; the last one has them all.
    ends = [report for report in reports if getattr(report, "when", None) == "teardown"]
    properties = [each for report in ends for each in report.user_properties]
    counts: dict[str, tuple[int, int]] = {}
    for name, value in properties:
        if name == "covered":
            subject, count, total = value
            counts[subject] = (counts.get(subject, (0, 0))[0] + count, total)
    for folder, (count, total) in terminalreporter.config.stash[VARIANTS].items():
        counts[f"{folder}: variants"] = (count, total)
    if counts:
        terminalreporter.section("covered")
        for subject, (count, total) in sorted(counts.items()):
            terminalreporter.write_line(f"{subject}: {count} of {total}")
