"""Programs of the machine."""

import pytest

from gpuinfra.remote.agent import guest
from gpuinfra.remote.agent.guest import Program, read_utilization


@pytest.mark.parametrize(
    ("output", "percent"), [("0\n", 0), ("3\n97\n", 97), ("[N/A]\n", None), ("[N/A]\n7\n", 7), ("", None)]
)
def test_utilization_is_that_of_the_busiest_gpu(output: str, percent: int | None) -> None:
    assert read_utilization(output) == percent


def test_hanging_program_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guest, "PROGRAM_SECONDS", 0.1)
    assert Program(["sleep", "600"]).ask() is None
    assert Program(["no-such-program"]).ask() is None
    assert Program(["false"]).ask() is None
    monkeypatch.setattr(guest, "PROGRAM_SECONDS", 20.0)
    assert Program(["echo", "7"]).ask() == "7\n"
