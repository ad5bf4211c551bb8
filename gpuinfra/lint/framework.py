"""PySpark by mistake: a run configuration without a framework uses PySpark."""

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
    """Check containers only: clusters have Spark, this computer is unknown, and SDK v1 files default to Python."""
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
