"""A Docker engine, broken or hostile, that answers less than an engine does."""

from typing import Any

import pytest

from gpuinfra.diagnostics import Code
from gpuinfra.runner.docker.client import Engine
from gpuinfra.runner.docker.images import facts_of
from gpuinfra.runner.errors import JobError
from gpuinfra.runner.job_spec import StartRequest
from gpuinfra.runner.jobs.container import ContainerJob, start_container


class Api:
    """The SDK's client, of an engine that gives one answer to everything."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self._answer


class Odd(Engine):
    """An engine with that client."""

    def __init__(self, answer: Any) -> None:
        self._answered = Api(answer)

    where = "the machine"
    is_expected = True

    @property
    def api(self) -> Any:
        return self._answered


ORDER = StartRequest("r1", ("python", "train.py"), "/project", image="sha256:1")


@pytest.mark.parametrize("answer", [{}, [], None, {"Id": ""}, {"Id": None}])
def test_a_container_without_an_id_is_an_error(answer: Any) -> None:
    with pytest.raises(JobError) as caught:
        start_container(Odd(answer), ORDER)
    assert caught.value.code == Code.ENGINE_FAILED
    assert "the machine" in caught.value.note
    assert caught.value.help


@pytest.mark.parametrize("answer", [{}, [], None, {"State": {}}, {"State": {"Running": False, "Status": "exited"}}])
def test_a_container_without_a_state_is_an_error(answer: Any) -> None:
    with pytest.raises(JobError) as caught:
        ContainerJob(Odd(answer), "c1").ended()
    assert caught.value.code == Code.ENGINE_FAILED


@pytest.mark.parametrize("answer", [{}, [], None, {"Id": None}])
def test_an_image_without_an_id_is_an_error(answer: Any) -> None:
    with pytest.raises(JobError) as caught, Odd(answer).understood():
        facts_of("python", answer)
    assert caught.value.code == Code.ENGINE_FAILED
