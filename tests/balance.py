"""The order of tests: slow ones first, spread over the workers, so that no worker ends with them."""

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

# Seconds per test, by the prefix of its id, as `--durations` shows them. The longest matching prefix counts.
SECONDS = {
    "tests/e2e/test_month.py": 120.0,
    "tests/e2e/test_waste.py": 20.0,
    "tests/e2e/test_deleted_by_others.py": 8.0,
    "tests/e2e/test_many_machines.py": 5.0,
    "tests/e2e/test_up_errors.py": 5.0,
    "tests/e2e/test_demo.py": 10.0,
    "tests/e2e/test_example_environments.py": 4.0,
    "tests/e2e/test_docs_jobs.py": 40.0,
    "tests/e2e/test_exposed.py": 12.0,
    "tests/e2e/test_inventory.py": 4.0,
    "tests/e2e": 1.2,
    "tests/integration/provision/test_kill.py": 5.0,
    "tests/integration/provision/test_two_at_once.py": 4.0,
    "tests/integration/provision/test_converges.py": 10.0,
    "tests/integration/provision/test_interrupt.py": 3.0,
    "tests/integration/sandbox/test_az.py": 5.0,
    "tests/integration": 0.7,
}
# Tests below these folders take milliseconds. They fill the gaps at the end.
QUICK = 0.0


def seconds_of(test: str) -> float:
    """Return how long a test takes, by its id."""
    return max(
        ((len(start), seconds) for start, seconds in SECONDS.items() if test.startswith(start)), default=(0, QUICK)
    )[1]


def balance(tests: Sequence[T], workers: int, id_of: Callable[[T], str]) -> list[T]:
    """Return the tests in an order for `pytest-xdist --dist worksteal`, which gives each worker an equal part of it.

    The tests of a file stay together, because they share fixtures.
    """
    files: dict[str, list[T]] = {}
    for test in tests:
        files.setdefault(id_of(test).partition("::")[0], []).append(test)
    seconds = {file: sum(seconds_of(id_of(test)) for test in found) for file, found in files.items()}
    slow = sorted((file for file in files if seconds[file]), key=lambda file: -seconds[file])
    quick = [test for file, found in files.items() if not seconds[file] for test in found]
    parts: list[list[T]] = [[] for _ in range(workers)]
    load = [0.0] * workers
    for file in slow:
        least = load.index(min(load))
        parts[least] += files[file]
        load[least] += seconds[file]
    for place, part in enumerate(parts):
        # As worksteal does: the rest, divided by the remaining workers.
        size = (len(tests) - sum(map(len, parts[:place]))) // (workers - place)
        count = max(0, size - len(part))
        part.extend(quick[:count])
        del quick[:count]
    return [test for part in parts for test in part] + quick
