"""The container that a project's jobs had, as far as it can be had on a machine of today."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pydantic_core import PydanticCustomError

from gpuinfra.diagnostics import Span
from gpuinfra.models.images import check_container_image
from gpuinfra.models.sizes import SIZES
from gpuinfra.models.spec import TargetOptions
from gpuinfra.workbench.choice import Choice
from gpuinfra.workbench.compute import LOCAL
from gpuinfra.workbench.cuda import NEEDED, cuda_of, is_for_gpu, shown
from gpuinfra.workbench.runconfig import PYSPARK
from gpuinfra.workbench.unsupported import Missing, place

DEFAULT = TargetOptions().base_docker_image


@dataclass
class Container:
    """What a spec says of it, and what it cannot."""

    image: str = DEFAULT
    uses_gpu: bool = True
    missing: list[Missing] = field(default_factory=list)


def container_of(choice: Choice, size: str) -> Container:
    """The image and the GPU of a target's jobs, on a machine of this size."""
    container, model = Container(), SIZES[size].gpu_model
    image, span = _image(choice)
    container.uses_gpu = _uses_gpu(choice, image, container.missing)
    fits = image is not None and _is_usable(image, span, container.missing)
    if fits and image is not None and container.uses_gpu:
        fits = _knows_gpu(image, span, model, container.missing)
    if fits and image is not None:
        container.image = image
        return container
    if choice.runconfig and choice.runconfig.framework == PYSPARK:
        what = "scripts run on Spark, which the default image does not have"
        instead = "`framework: Python`, if they do without; else an image that has Spark and a CUDA of today"
        span = choice.runconfig.place("framework" if choice.runconfig.is_later else "Framework")
        container.missing.append(Missing(span, what, instead))
    if container.uses_gpu:
        _knows_gpu(DEFAULT, None, model, container.missing)
    return container


def _image(choice: Choice) -> tuple[str | None, Span | None]:
    runconfig, compute = choice.runconfig, choice.compute
    if runconfig and choice.name and runconfig.docker and runconfig.docker.enabled and runconfig.docker.base_image:
        return runconfig.docker.base_image, runconfig.place("environment", "docker", "baseImage")
    if compute is None or compute.base_docker_image is None:
        return None, None
    return compute.base_docker_image, place(compute.document, "baseDockerImage")


def _uses_gpu(choice: Choice, image: str | None, missing: list[Missing]) -> bool:
    runconfig, compute = choice.runconfig, choice.compute
    docker = runconfig.docker if runconfig else None
    if compute is not None and compute.type == LOCAL:
        return True
    if compute is None:
        # Of a target without a file, or of none at all, nobody said that it was to be without.
        return docker is None or not docker.enabled or docker.gpu or choice.name is None
    if compute.nvidia_docker or (docker is not None and docker.gpu):
        return True
    keys = [key for key in ("nvidiaDocker", "baseDockerImage", "type") if key in compute.document.root.items]
    span = place(compute.document, keys[0] if keys else "type")
    if is_for_gpu(image) and compute.document.value("nvidiaDocker") is None:
        what = "`nvidiaDocker: true` is missing, though the image is one for GPUs"
        missing.append(Missing(span, what, "the spec says it"))
        return True
    instead = "every machine has one: `nvidiaDocker: true` in the spec, and an image with CUDA, let jobs use it"
    missing.append(Missing(span, "jobs did not ask for a GPU", instead))
    return False


def _is_usable(image: str, span: Span | None, missing: list[Missing]) -> bool:
    reason = refused(check_container_image, image)
    if reason is None:
        return True
    label, help_line = reason
    instead = f"the spec has the default; {help_line or 'write what was meant'}"
    missing.append(Missing(span, f"`{image}` is no image: {label}", instead))
    return False


def _knows_gpu(image: str, span: Span | None, model: str, missing: list[Missing]) -> bool:
    """Libraries have code for a GPU from the toolkit on that knows it; those before do not run on it."""
    cuda, needed = cuda_of(image), NEEDED[model]
    if cuda is None or cuda >= needed:
        return True
    if image == DEFAULT:
        instead = f"name an image with CUDA {shown(needed)} as `target.baseDockerImage`, or take another size"
    elif cuda < min(NEEDED.values()):
        instead = f"Azure retired the GPUs that it was made for: the spec has `{DEFAULT}`, which packages have to fit"
    else:
        instead = f"the spec has `{DEFAULT}`, which packages have to fit"
    what = (
        f"`{image}` cannot use this size's GPU: it has CUDA {shown(cuda)}, and {model} needs {shown(needed)} or later"
    )
    missing.append(Missing(span, what, instead))
    return False


def refused(check: Callable[[str], None], value: str) -> tuple[str, str | None] | None:
    """Why a spec would not take a value, and what to do; None where it would."""
    try:
        check(value)
    except PydanticCustomError as error:
        words = error.context or {}
        return words["label"], words["help"]
    return None
