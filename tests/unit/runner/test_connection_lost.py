"""A connection that worked and cannot be opened again is lost: exit code 255 for any error."""

import pytest

from gpuinfra.diagnostics import Code, Exit
from gpuinfra.models.target import Target
from gpuinfra.runner.errors import ConnectError, HostKeyMismatch, LoginRefused, Unreachable, problem_of
from gpuinfra.runner.link import Link
from tests.unit.runner.test_link import Wire

TARGET = Target("lab", "lab", "remote", "203.0.113.7", 22, "me", "ssh-ed25519 AAAA")


def errors() -> list[ConnectError]:
    return [HostKeyMismatch("lab:22", "SHA256:a", "SHA256:b"), LoginRefused("no"), Unreachable("no answer")]


@pytest.mark.parametrize("number", range(3))
def test_failure_to_connect_again_exits_with_255(number: int) -> None:
    wire, error = Wire(), errors()[number]
    answers: list[Wire | ConnectError] = [wire, error]

    def opener() -> Wire:
        answer = answers.pop(0)
        if isinstance(answer, ConnectError):
            raise answer
        return answer

    link = Link(TARGET, opener)
    assert link.connection is wire
    wire.is_open = False
    with pytest.raises(type(error)) as caught:
        _ = link.connection
    assert problem_of(caught.value, "lab").exit_code is Exit.LOST


@pytest.mark.parametrize("number", range(3))
def test_failure_to_connect_at_first_exits_with_1(number: int) -> None:
    error = errors()[number]

    def opener() -> Wire:
        raise error

    with pytest.raises(type(error)) as caught:
        _ = Link(TARGET, opener).connection
    problem = problem_of(caught.value, "lab")
    assert problem.exit_code is Exit.FAILED
    assert problem.diagnostics[0].code in {Code.OTHER_HOST_KEY, Code.LOGIN_REFUSED, Code.NO_ANSWER}
