"""The container image and GPU use of a project's jobs, for an imported spec."""

from collections.abc import Callable
from dataclasses import dataclass, field

from pydantic_core import PydanticCustomError

from gpuinfra.diagnostics import Span
from gpuinfra.models.images import check_container_image
from gpuinfra.models.sizes import SIZES
from gpuinfra.models.spec import TargetOptions
from gpuinfra.workbench.compute import LOCAL
from gpuinfra.workbench.cuda import NEEDED, cuda_of, is_for_gpu, shown
from gpuinfra.workbench.runconfig import PYSPARK
from gpuinfra.workbench.target_choice import TargetChoice
from gpuinfra.workbench.unsupported import UnsupportedItem, place

DEFAULT = TargetOptions().base_docker_image


@dataclass
class Container:
    """Image and GPU use for the spec, and what has no equivalent."""

    image: str = DEFAULT
    uses_gpu: bool = True
    missing: list[UnsupportedItem] = field(default_factory=list)


def container_of(choice: TargetChoice, size: str) -> Container:
    """Return image and GPU use of a target's jobs on a machine of this size."""
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
        what = "scripts run on Spark, which the default image lacks"
        instead = "`framework: Python` if they work without Spark; else an image with Spark and a current CUDA"
        span = choice.runconfig.place("framework" if choice.runconfig.is_sdk_v1 else "Framework")
        container.missing.append(UnsupportedItem(span, what, instead))
    if container.uses_gpu:
        _knows_gpu(DEFAULT, None, model, container.missing)
    return container


def _image(choice: TargetChoice) -> tuple[str | None, Span | None]:
    runconfig, compute = choice.runconfig, choice.compute
    if runconfig and choice.name and runconfig.docker and runconfig.docker.enabled and runconfig.docker.base_image:
        return runconfig.docker.base_image, runconfig.place("environment", "docker", "baseImage")
    if compute is None or compute.base_docker_image is None:
        return None, None
    return compute.base_docker_image, place(compute.document, "baseDockerImage")


def _uses_gpu(choice: TargetChoice, image: str | None, missing: list[UnsupportedItem]) -> bool:
    runconfig, compute = choice.runconfig, choice.compute
    docker = runconfig.docker if runconfig else None
    if compute is not None and compute.type == LOCAL:
        return True
    if compute is None:
        # Nothing says that a target without a file had no GPU.
        return docker is None or not docker.enabled or docker.gpu or choice.name is None
    if compute.nvidia_docker or (docker is not None and docker.gpu):
        return True
    keys = [key for key in ("nvidiaDocker", "baseDockerImage", "type") if key in compute.document.root.items]
    span = place(compute.document, keys[0] if keys else "type")
    if is_for_gpu(image) and compute.document.value("nvidiaDocker") is None:
        what = "`nvidiaDocker: true` is missing, although the image is for GPUs"
        missing.append(UnsupportedItem(span, what, "the spec sets it"))
        return True
    instead = "every machine has one; to use it, set `nvidiaDocker: true` in the spec and an image with CUDA"
    missing.append(UnsupportedItem(span, "jobs did not use a GPU", instead))
    return False


def _is_usable(image: str, span: Span | None, missing: list[UnsupportedItem]) -> bool:
    reason = refused(check_container_image, image)
    if reason is None:
        return True
    label, help_line = reason
    instead = f"the spec uses the default; {help_line or 'write the correct image'}"
    missing.append(UnsupportedItem(span, f"`{image}` is not a valid image: {label}", instead))
    return False


def _knows_gpu(image: str, span: Span | None, model: str, missing: list[UnsupportedItem]) -> bool:
    """Check the image's CUDA version: older ones have no code for this GPU."""
    cuda, needed = cuda_of(image), NEEDED[model]
    if cuda is None or cuda >= needed:
        return True
    if image == DEFAULT:
        instead = f"set `target.baseDockerImage` to an image with CUDA {shown(needed)}, or use another size"
    elif cuda < min(NEEDED.values()):
        instead = f"Azure retired its GPUs; the spec uses `{DEFAULT}`, so check the packages"
    else:
        instead = f"the spec uses `{DEFAULT}`, so check the packages"
    what = (
        f"`{image}` cannot use this size's GPU: it has CUDA {shown(cuda)}, and {model} needs {shown(needed)} or later"
    )
    missing.append(UnsupportedItem(span, what, instead))
    return False


def refused(check: Callable[[str], None], value: str) -> tuple[str, str | None] | None:
    """Return why a spec refuses a value, and the fix; None if it is valid."""
    try:
        check(value)
    except PydanticCustomError as error:
        words = error.context or {}
        return words["label"], words["help"]
    return None
