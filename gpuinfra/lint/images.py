"""Base images: unused GPUs, missing CUDA or Spark, invalid references, mixed versions."""

import re
from collections.abc import Iterator

from gpuinfra.diagnostics import Code, Diagnostic, Severity
from gpuinfra.lint.facts import brings_cuda, gpu_twin, has_spark, is_without_cuda, mmlspark_version, tensorflow_twin
from gpuinfra.lint.finding import Finding, has_variable, is_placeholder, replace_part, replace_value, set_value
from gpuinfra.lint.uses import is_gpu_target, is_meant, uses_of
from gpuinfra.models.images import CONTAINER_IMAGE
from gpuinfra.parse.document import Document
from gpuinfra.parse.tree import Scalar, node_at
from gpuinfra.workbench.compute import Compute
from gpuinfra.workbench.cuda import is_for_gpu
from gpuinfra.workbench.project import Project
from gpuinfra.workbench.runconfig import PYSPARK, PYTHON, RunConfig

IMAGE, NVIDIA = "baseDockerImage", "nvidiaDocker"
# pip options that name a requirements file.
_LIST = re.compile(r"-r|--requirement")


def gpu_not_passed_on(project: Project) -> Iterator[Finding]:
    """Find images with CUDA in containers without a GPU. An explicit `nvidiaDocker: false` is only a warning."""
    for compute in project.computes.values():
        if not compute.is_docker or compute.nvidia_docker or not is_for_gpu(compute.base_docker_image):
            continue
        document = compute.document
        said = document.value(NVIDIA) is not None
        yield Finding(
            Diagnostic(
                Code.GPU_NOT_PASSED_ON,
                "GPU not passed on",
                document.span(document.root.items[NVIDIA if said else IMAGE]),
                "the image is for GPUs, but the container gets none",
                help=f"write `{NVIDIA}: true`",
                severity=Severity.WARNING if said else Severity.ERROR,
            ),
            None if said else set_value(document, NVIDIA, value=True),
        )


def no_cuda(project: Project) -> Iterator[Finding]:
    """Find containers with a GPU but without CUDA, in the image or the environment."""
    for compute in project.computes.values():
        image = compute.base_docker_image
        if not compute.is_docker or not compute.nvidia_docker or image is None or not is_without_cuda(image):
            continue
        if _has_own_cuda(project, compute):
            continue
        node = compute.document.root.items[IMAGE]
        twin = gpu_twin(image)
        yield Finding(
            Diagnostic(
                Code.NO_CUDA,
                "no CUDA in the image",
                compute.document.span(node),
                f"`{image}` is for the CPU, but `{NVIDIA}` is true",
                help=f"`{twin}` is the same image with CUDA" if twin else "use an image with CUDA",
            ),
            replace_value(compute.document, node, twin) if twin else None,
        )


def for_the_cpu(project: Project) -> Iterator[Finding]:
    """Find Dockerfiles for jobs with a GPU on TensorFlow's image for the CPU, without another TensorFlow."""
    for job in project.jobs:
        twin = tensorflow_twin(job.base.text) if job.base else None
        if twin is None or job.base is None or job.packages is None or not job.needs_gpu:
            continue
        if any(package.name.startswith("tensorflow") for package in job.packages.packages):
            continue
        yield Finding(
            Diagnostic(
                Code.CPU_ONLY_PACKAGE,
                "image for the CPU",
                job.packages.document.span(job.base),
                "its TensorFlow does not use a GPU",
                f"used by `{job.name}`, with a GPU",
                f"write `{twin}`",
            )
        )


def _has_own_cuda(project: Project, compute: Compute) -> bool:
    """Return whether an environment includes CUDA, or may: requirements files are not read."""
    names = {compute.name, *(each.name for each in project.runconfigs.values() if project.target_of(each) is compute)}
    condas = [each for each in project.condas.values() if names & {use.name for use in uses_of(project, each)}]
    return any(
        any(_LIST.match(option.text) for option in conda.options)
        or any(brings_cuda(each) and is_meant(each, conda.python) is not False for each in conda.packages)
        for conda in condas
    )


def malformed(project: Project) -> Iterator[Finding]:
    """Find image references that Docker refuses."""
    for compute in project.computes.values():
        if compute.is_docker:
            yield from _malformed(compute.document, IMAGE)
    for runconfig in project.runconfigs.values():
        if runconfig.docker and runconfig.docker.enabled:
            yield from _malformed(runconfig.document, "environment", "docker", "baseImage")


def _malformed(document: Document, *path: str) -> Iterator[Finding]:
    node = node_at(document.root, *path)
    if not isinstance(node, Scalar) or not isinstance(node.value, str) or not node.value.strip():
        return
    image = node.value
    if re.fullmatch(CONTAINER_IMAGE, image) or is_placeholder(image) or has_variable(image):
        return
    stripped = image.strip()
    colons = stripped.replace("::", ":")
    span = document.span(node)
    if re.fullmatch(CONTAINER_IMAGE, stripped):
        label, severity, fix = "leading or trailing space", Severity.WARNING, replace_value(document, node, stripped)
    elif re.fullmatch(CONTAINER_IMAGE, colons):
        label, severity, fix = "two colons before the tag", Severity.ERROR, replace_part(document, node, "::", ":")
    else:
        label, severity, fix = "expected [registry/]repository[:tag]", Severity.ERROR, None
    help_line = f"write `{colons}`" if fix else None
    yield Finding(
        Diagnostic(Code.BAD_CONTAINER_IMAGE, "invalid container image", span, label, None, help_line, severity), fix
    )


def mixed_versions(project: Project) -> Iterator[Finding]:
    """Find targets with different versions of mmlspark in one project."""
    versions = {
        compute.name: version
        for compute in project.computes.values()
        if compute.is_docker and (version := mmlspark_version(compute.base_docker_image))
    }
    newest = max(versions, key=lambda name: versions[name], default="")
    for name, version in versions.items():
        if version == versions[newest]:
            continue
        document = project.computes[name].document
        yield Finding(
            Diagnostic(
                Code.MIXED_IMAGES,
                "two versions of one image",
                document.span(document.root.items[IMAGE]),
                f"`{newest}` has a newer version, {project.computes[newest].base_docker_image}",
                help="use the same version for all targets of a project",
                severity=Severity.WARNING,
            )
        )


def pyspark(project: Project) -> Iterator[Finding]:
    """Check containers only: clusters have Spark, this computer is unknown, and SDK v1 files default to Python."""
    for runconfig in project.runconfigs.values():
        compute = project.target_of(runconfig)
        if runconfig.is_sdk_v1 or runconfig.framework != PYSPARK or compute is None or not compute.is_docker:
            continue
        if compute.spark_submit_location:
            continue
        if runconfig.has_framework:
            yield from _said(runconfig, compute)
        else:
            yield from _by_default(runconfig, compute)


def _said(runconfig: RunConfig, compute: Compute) -> Iterator[Finding]:
    if has_spark(compute.base_docker_image) is False:
        label = f"`{compute.base_docker_image}` has no Spark"
        help_line = "write `Python`, or use an image with Spark"
        span = runconfig.place("Framework")
        yield Finding(Diagnostic(Code.NO_SPARK, "no Spark in the image", span, label, help=help_line))


def _by_default(runconfig: RunConfig, compute: Compute) -> Iterator[Finding]:
    spark = has_spark(compute.base_docker_image)
    if spark and not is_gpu_target(compute):
        return
    note = None if spark else f"`{compute.base_docker_image}` {_has_none(spark)}"
    yield Finding(
        Diagnostic(
            Code.PYSPARK_BY_DEFAULT,
            "PySpark by default",
            runconfig.place("Target"),
            "without `Framework`, jobs run with PySpark",
            note,
            "add `Framework: Python`, or `Framework: PySpark` if you want that",
            Severity.ERROR if spark is False else Severity.WARNING,
        ),
        set_value(runconfig.document, "Framework", PYTHON),
    )


def _has_none(spark: bool | None) -> str:
    return "has no Spark" if spark is False else "may not have Spark"
