"""PySpark where it is not meant, or cannot be: a run configuration that names no framework asks for it."""

from __future__ import annotations

from collections.abc import Iterator

from gpuinfra.diagnostics import Code, Diagnostic, Severity
from gpuinfra.lint.facts.images import has_spark
from gpuinfra.lint.finding import Finding, set_value
from gpuinfra.lint.uses import is_gpu_target
from gpuinfra.workbench.compute import Compute
from gpuinfra.workbench.project import Project
from gpuinfra.workbench.runconfig import PYSPARK, PYTHON, RunConfig


def pyspark(project: Project) -> Iterator[Finding]:
    """Only in containers: clusters have Spark, of this computer nothing is known, and later files run Python."""
    for runconfig in project.runconfigs.values():
        compute = project.target_of(runconfig)
        if runconfig.is_later or runconfig.framework != PYSPARK or compute is None or not compute.is_docker:
            continue
        if compute.spark_submit_location:
            continue
        if runconfig.says_framework:
            yield from _said(runconfig, compute)
        else:
            yield from _by_default(runconfig, compute)


def _said(runconfig: RunConfig, compute: Compute) -> Iterator[Finding]:
    if has_spark(compute.base_docker_image) is False:
        label = f"`{compute.base_docker_image}` has no Spark"
        help_line = "write `Python`, or name an image with Spark"
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
            "without the key `Framework` a job here is one of PySpark",
            note,
            "add `Framework: Python`, or say `PySpark` if that is meant",
            Severity.ERROR if spark is False else Severity.WARNING,
        ),
        set_value(runconfig.document, "Framework", PYTHON),
    )


def _has_none(spark: bool | None) -> str:
    return "has no Spark" if spark is False else "is not known to have Spark"
