"""Slow tests start first, on different workers."""

from tests.balance import balance, seconds_of

QUICK = [f"tests/unit/test_a.py::test_{number}" for number in range(20)]
SLOW = [f"tests/e2e/test_{name}.py::test_{number}" for name in ("demo", "waste", "up", "down") for number in range(2)]


def test_workers_begin_with_slow_tests_of_whole_files() -> None:
    ordered = balance([*QUICK, *SLOW], 2, str)
    assert sorted(ordered) == sorted([*QUICK, *SLOW])
    first, second = ordered[:14], ordered[14:]
    assert first[:2] == SLOW[:2]
    assert second[:2] == SLOW[2:4]
    assert all(not seconds_of(test) for test in (first[-1], second[-1]))


def test_one_worker_runs_every_test() -> None:
    assert sorted(balance([*QUICK, *SLOW], 1, str)) == sorted([*QUICK, *SLOW])
    assert balance([], 3, str) == []


def test_longest_prefix_of_a_test_id_counts() -> None:
    assert seconds_of("tests/e2e/test_waste.py::test_a") > seconds_of("tests/e2e/test_up.py::test_a") > 0
    assert seconds_of("tests/unit/test_a.py::test_a") == 0
