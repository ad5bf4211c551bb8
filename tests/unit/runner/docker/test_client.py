"""A Docker Engine, broken or hostile, whose answers lack required values."""

from typing import Any

import pytest

from gpuinfra.diagnostics import Code
from gpuinfra.runner.container import ContainerJob, start_container
from gpuinfra.runner.docker.client import Engine
from gpuinfra.runner.docker.images import facts_of
from gpuinfra.runner.errors import JobError
from gpuinfra.runner.job_spec import StartRequest


class Api:
    """An SDK client that returns the same answer for every request."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self._answer


class BrokenEngine(Engine):
    """An engine with such a client."""

    def __init__(self, answer: Any) -> None:
        self._answered = Api(answer)

    where = "the machine"
    is_expected = True

    @property
    def api(self) -> Any:
        return self._answered


ORDER = StartRequest("r1", ("python", "train.py"), "/project", image="sha256:1")


@pytest.mark.parametrize("answer", [{}, [], None, {"Id": ""}, {"Id": None}])
def test_container_without_an_id_is_an_error(answer: Any) -> None:
    with pytest.raises(JobError) as caught:
        start_container(BrokenEngine(answer), ORDER)
    assert caught.value.code == Code.ENGINE_FAILED
    assert "the machine" in caught.value.note
    assert caught.value.help


@pytest.mark.parametrize("answer", [{}, [], None, {"State": {}}, {"State": {"Running": False, "Status": "exited"}}])
def test_container_without_a_state_is_an_error(answer: Any) -> None:
    with pytest.raises(JobError) as caught:
        ContainerJob(BrokenEngine(answer), "c1").ended()
    assert caught.value.code == Code.ENGINE_FAILED


@pytest.mark.parametrize("answer", [{}, [], None, {"Id": None}])
def test_image_without_an_id_is_an_error(answer: Any) -> None:
    with pytest.raises(JobError) as caught, BrokenEngine(answer).understood():
        facts_of("python", answer)
    assert caught.value.code == Code.ENGINE_FAILED
