"""The GPU check sees what the job will see: the variables of the image, of the project and of the command line."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuinfra.models.target import GpuFacts
from gpuinfra.runner.connection.port import Completed
from gpuinfra.runner.docker.images import ImageFacts
from gpuinfra.runner.environment.builder import EnvironmentBuilder, JobEnvironment
from gpuinfra.runner.environment.framework_check import MARK
from gpuinfra.runner.errors import JobError
from gpuinfra.runner.job_spec import GpuNeed, JobSpec

XML = """<?xml version="1.0" ?>
<nvidia_smi_log>
<driver_version>535.161.08</driver_version><cuda_version>12.2</cuda_version><attached_gpus>1</attached_gpus>
<gpu id="0"><product_name>Tesla T4</product_name><uuid>GPU-1</uuid></gpu>
</nvidia_smi_log>
"""
TABLE = "Tesla T4, 535.161.08, 15360 MiB, 7.5\n"


class Image:
    """An image with `nvidia-smi` and without a shell."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
        self.environments: list[dict[str, str]] = []
        facts = ImageFacts("tool:latest", "sha256:1", "linux/amd64", variables)
        monkeypatch.setattr("gpuinfra.runner.docker.images.ensure_image", lambda *_: facts)
        monkeypatch.setattr("gpuinfra.runner.helper_containers.run_once", self.run)

    def run(self, _engine: Any, _image: str, command: Sequence[str], **order: Any) -> Completed:
        self.environments.append(order["environment"])
        if command[0] == "sh":
            return Completed(127, "", "sh: not found")
        if command[0] == "/bin/sh":
            return Completed(127, "", "no Python")
        return Completed(0, XML if "-x" in command else TABLE, "")


def builder(**variables: dict[str, str]) -> EnvironmentBuilder:
    target: Any = SimpleNamespace(name="my_dsvm", address="here", type="remotedocker")
    remote = SimpleNamespace(ask=lambda verb, **_: {"known": False})
    link: Any = SimpleNamespace(engine=None, connection=None, target=target, remote=remote)
    progress: Any = SimpleNamespace(begin=print, end=print, fail=print)
    job = JobSpec(Path(), "my_dsvm", target, GpuNeed.REQUIRED, base_image="tool:latest", **variables)  # type: ignore[arg-type]
    return EnvironmentBuilder(job, link, progress, print)


@pytest.mark.parametrize("value", ["99", "", "-1"])
def test_image_without_a_shell_that_hides_the_gpus_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    Image(monkeypatch, CUDA_VISIBLE_DEVICES=value)
    with pytest.raises(JobError, match="hides every GPU") as caught:
        builder().make()
    assert "in the image `tool:latest`" in str(caught.value)


def test_variable_of_the_job_replaces_that_of_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    Image(monkeypatch, CUDA_VISIBLE_DEVICES="99")
    assert builder(environment={"CUDA_VISIBLE_DEVICES": "0"}).make().gpu


def test_other_secrets_are_on_no_command_line_of_the_check() -> None:
    work = builder(
        environment={"CUDA_HOME": "/cuda"},
        secrets=dict.fromkeys(("NVIDIA_API_KEY", "TF_VAR_password", "JAX_KEY"), "geheim") | {"XLA_FLAGS": "--a"},
    )
    lines: list[Sequence[str]] = []

    def run(words: Sequence[str], **_: Any) -> Completed:
        lines.append(words)
        return Completed(0, f"\n{MARK}[]", "")

    link: Any = work.link
    link.target.type, link.connection = "remote", SimpleNamespace(run=run)
    work._check_frameworks(JobEnvironment(("python3",), tag="one"), GpuFacts(("Tesla T4",), "535", (15360,), ("7.5",)))
    (line,) = lines
    assert line[:4] == ["env", "CUDA_HOME=/cuda", "XLA_FLAGS=--a", "python3"]
    assert "geheim" not in " ".join(line)


def test_secret_variables_for_the_runtime_reach_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    image = Image(monkeypatch)
    builder(environment={"NVIDIA_A": "1", "OTHER": "2"}, secrets={"NVIDIA_VISIBLE_DEVICES": "void", "KEY": "s"}).make()
    assert {frozenset(each.items()) for each in image.environments} == {
        frozenset({("NVIDIA_A", "1"), ("NVIDIA_VISIBLE_DEVICES", "void")})
    }
