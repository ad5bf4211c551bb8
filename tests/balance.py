"""The order of tests: slow ones first, spread over the workers, so that no worker ends with them."""

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

# Seconds per test, by the prefix of its id, as `--durations` shows them. The longest matching prefix counts.
SECONDS = {
    "tests/e2e/test_month.py": 180.0,
    "tests/e2e/test_waste.py": 5.0,
    "tests/e2e/test_waste.py::test_agent_deallocates": 55.0,
    "tests/e2e/test_waste.py::test_lease_ends": 40.0,
    "tests/e2e/test_demo.py": 40.0,
    "tests/e2e/test_docs_jobs.py": 40.0,
    "tests/e2e/test_deleted_by_others.py": 12.0,
    "tests/e2e/test_exposed.py": 11.0,
    "tests/e2e/test_example_environments.py": 5.0,
    "tests/e2e/test_detached_run.py": 7.0,
    "tests/e2e/test_api.py": 7.0,
    "tests/e2e/test_reap_ci.py": 7.0,
    "tests/e2e/test_spec_job.py": 7.0,
    "tests/e2e/test_inventory.py": 5.5,
    "tests/e2e/test_money.py": 4.0,
    "tests/e2e/test_up_errors.py": 3.0,
    "tests/e2e/test_jobs_input.py": 3.5,
    "tests/e2e/test_jobs_trouble.py": 5.0,
    "tests/e2e/test_jobs": 3.0,
    "tests/e2e/test_many_machines.py": 3.0,
    "tests/e2e/test_run": 2.7,
    "tests/e2e/test_front_door.py": 0.8,
    "tests/e2e/test_sandbox.py": 1.2,
    "tests/e2e/test_runs.py": 0.2,
    "tests/e2e/test_project_limits.py": 0.2,
    "tests/e2e/test_offline_commands.py": 0.2,
    "tests/e2e/test_foreign_state.py": 0.4,
    "tests/e2e/test_specs.py": 0.2,
    "tests/e2e/test_linked_files.py": 0.6,
    "tests/e2e/test_targets_hostile.py": 0.7,
    "tests/e2e/test_job_destination.py": 0.7,
    "tests/e2e/test_jobs_gpu.py": 1.7,
    "tests/e2e": 2.0,
    "tests/integration/provision/test_kill.py": 8.0,
    "tests/integration/provision/test_two_at_once.py": 3.0,
    "tests/integration/provision/test_converges.py": 6.0,
    "tests/integration/provision/test_interrupt.py": 4.5,
    "tests/integration/provision/test_locks.py": 2.5,
    "tests/integration/provision/test_throttling.py": 2.8,
    "tests/integration/runner/test_environment.py": 8.0,
    "tests/integration/runner/test_python_environments.py": 8.0,
    "tests/integration/runner/test_container_jobs.py": 2.0,
    "tests/integration/runner/test_upload_ignore.py": 0.1,
    "tests/integration/runner/test_git_hostile.py": 0.4,
    "tests/integration/runner/test_watch.py": 2.0,
    "tests/integration/runner": 0.8,
    "tests/integration/sandbox/test_az.py": 15.0,
    "tests/integration/sandbox/test_agent.py": 3.5,
    "tests/integration/sandbox/guest": 0.4,
    "tests/integration/sandbox/test_guest_host.py": 0.9,
    "tests/integration/sandbox": 0.1,
    "tests/integration/test_wheel.py": 5.0,
    "tests/integration": 0.4,
    "tests/properties/test_workbench_data.py": 1.6,
    "tests/properties/test_imports.py": 0.4,
    "tests/properties/test_lease_oracle.py": 0.6,
    "tests/properties/test_lint_shared.py": 5.0,
    "tests/properties": 0.03,
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
