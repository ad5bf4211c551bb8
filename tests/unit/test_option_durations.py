"""Durations of options: an invalid one is refused with the reason."""

import pytest

from gpuinfra.app.settings import seconds_of
from gpuinfra.diagnostics import Problem


@pytest.mark.parametrize(("text", "reason"), [("900d", "expected `1m` to `30d`"), ("2", "expected days, hours")])
def test_invalid_duration_says_what_is_valid(text: str, reason: str) -> None:
    with pytest.raises(Problem) as caught:
        seconds_of("--extend", text)
    (found,) = caught.value.diagnostics
    assert found.note
    assert found.note.startswith(f"`--extend {text}`: {reason}")
