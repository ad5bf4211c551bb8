"""What of a project has no equivalent here: where it stands, and what there is instead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpuinfra.diagnostics import Diagnostic, Span
from gpuinfra.parse.document import Document
from gpuinfra.parse.tree import data
from gpuinfra.workbench.choice import Choice
from gpuinfra.workbench.compute import CLUSTER, LOCAL, REMOTE, REMOTEDOCKER, SHARE, Compute
from gpuinfra.workbench.fields import Fields
from gpuinfra.workbench.project import Project, plain_path
from gpuinfra.workbench.runconfig import PYSPARK, SCRIPT, RunConfig, without_equivalent

_DATA = "read data in the script; what all runs share can lie in the folder AZUREML_NATIVE_SHARE_DIRECTORY names"
_DATA_KEYS = ("DataSourceSettings", "DataSourceSubstitutions", "UseSampling")
_BY_CONDA = "list it in the conda file, and remove the line"
_LOOK = "see where it is once the machine is up, or remove the line"
_SPARK = 'say it in the script: SparkSession.builder.config("spark.jars.packages", …)'
_SPARK_KEYS = ("repositories", "packages", "configuration")


@dataclass(frozen=True)
class Missing:
    """One thing that stays behind."""

    span: Span | None
    what: str
    instead: str


def leftovers(project: Project, choice: Choice, target: str) -> Iterator[Missing]:
    """Everything that the spec does not say, whatever the reason. `target` is the name that the new files have."""
    yield from _unread(project, choice)
    if choice.compute:
        yield from _of_compute(choice.compute, target)
    if choice.runconfig:
        yield from _of_runconfig(project, choice.runconfig, target)
    yield from _others(project, choice)


def place(document: Document, key: str) -> Span:
    """Where a value stands, or its key where it is empty."""
    return document.span(Fields(document.source, document.root, []).node(key))


def _unread(project: Project, choice: Choice) -> Iterator[Missing]:
    unread = {str(project.root / path) for path in project.unreadable}
    chosen = {each.document.source.name for each in (choice.compute, choice.runconfig) if each}
    for diagnostic in project.diagnostics:
        span = diagnostic.span
        if span and span.file in unread:
            yield Missing(span, f"the file cannot be read: {_words(diagnostic)}", "mend it, and import again")
        elif span and span.file in chosen:
            yield Missing(span, _words(diagnostic), diagnostic.help or "write it as the file's format asks")


def _words(diagnostic: Diagnostic) -> str:
    return f"{diagnostic.summary}, {diagnostic.label}" if diagnostic.label else diagnostic.summary


# The target


def _of_compute(compute: Compute, target: str) -> Iterator[Missing]:
    document = compute.document
    if compute.password is not None:
        instead = "login is by your SSH key, `admin.sshPublicKey` of the spec; the line can go"
        yield Missing(place(document, "password"), "`password` is not taken along", instead)
    if compute.address is not None:
        instead = f"`gpuinfra up` makes a new one and writes its address; `gpuinfra attach {target}` keeps the old one"
        yield Missing(place(document, "address"), "the machine at this address is not taken over", instead)
    if compute.user_managed_environment:
        what = "`userManagedEnvironment`: what was installed on the old machine is not on the new one"
        yield Missing(place(document, "userManagedEnvironment"), what, _BY_CONDA)
    if compute.python_location not in {None, "python"} and compute.type in {REMOTE, LOCAL}:
        what = "`pythonLocation`: a new machine need not have a Python there"
        yield Missing(place(document, "pythonLocation"), what, _LOOK)
    if compute.spark_submit_location not in {None, "spark-submit"}:
        what = "`sparkSubmitLocation`: a new machine need not have Spark there"
        yield Missing(place(document, "sparkSubmitLocation"), what, _LOOK)
    if compute.name != target:
        yield from _shares(compute, target)


def _shares(compute: Compute, target: str) -> Iterator[Missing]:
    """They stay in the file of old, and another file is written."""
    instead = f"write it into {target}.compute once `gpuinfra up` has made that"
    if not compute.shared_volumes:
        yield Missing(place(compute.document, "sharedVolumes"), "`sharedVolumes` is not in a spec", instead)
    if compute.native_shared_directory != SHARE:
        what = "`nativeSharedDirectory` is not in a spec"
        yield Missing(place(compute.document, "nativeSharedDirectory"), what, instead)


def _others(project: Project, choice: Choice) -> Iterator[Missing]:
    for compute in project.computes.values():
        if compute.type == CLUSTER:
            instead = "run its jobs on one machine, with `framework: PySpark` and an image that has Spark"
            yield Missing(place(compute.document, "type"), f"`{compute.name}` is a cluster", instead)
            if compute.yarn_deploy_mode:
                span = place(compute.document, "yarnDeployMode")
                yield Missing(span, "`yarnDeployMode`", "there is no YARN: Spark runs inside the job")
        elif compute.type in {REMOTEDOCKER, REMOTE} and compute is not choice.compute:
            what = f"`{compute.name}` is another target, and stays as it is"
            instead = f"`--target {compute.name}` makes a spec of it, into a file of its own with `--output`"
            yield Missing(place(compute.document, "type"), what, instead)


# How scripts run


def _of_runconfig(project: Project, runconfig: RunConfig, target: str) -> Iterator[Missing]:
    root = runconfig.document.root
    for key in _DATA_KEYS:
        if key in root.items and data(root.items[key]) is not None:
            yield Missing(runconfig.place(key), f"`{key}`: data sources went with the Workbench", _DATA)
    if runconfig.framework == PYSPARK and runconfig.spark_file:
        yield from _spark(project, runconfig)
    if runconfig.is_later:
        yield from _of_later(runconfig)
    if runconfig.name != target:
        yield from _habits(runconfig, target)
    elif runconfig.target not in {None, target}:
        what = f"runs by {target}.runconfig go to `{runconfig.target}`"
        yield Missing(runconfig.place("target" if runconfig.is_later else "Target"), what, f"name `{target}` there")


def _habits(runconfig: RunConfig, target: str) -> Iterator[Missing]:
    """What is said in one run configuration is not in the new one, which `up` writes."""
    instead = f"write it into {target}.runconfig once `gpuinfra up` has made that"
    later = runconfig.is_later
    if runconfig.environment_variables:
        path = ("environment", "environmentVariables") if later else ("EnvironmentVariables",)
        yield Missing(runconfig.place(*path), "environment variables are not in a spec", instead)
    if runconfig.arguments != (SCRIPT,):
        span = runconfig.place("arguments" if later else "ArgumentVector")
        yield Missing(span, "arguments are not in a spec", f"{instead}, or give them to each run")
    if runconfig.docker and runconfig.docker.enabled and runconfig.docker.shm_size:
        span = runconfig.place("environment", "docker", "shmSize")
        yield Missing(span, "`shmSize` is not in a spec", "load data with fewer processes, which share less")


def _spark(project: Project, runconfig: RunConfig) -> Iterator[Missing]:
    document = project.sparks.get(plain_path(runconfig.spark_file or ""))
    for key in _SPARK_KEYS:
        if document and document.value(key):
            yield Missing(document.key_span(key), f"`{key}` for Spark", _SPARK)


def _of_later(runconfig: RunConfig) -> Iterator[Missing]:
    for span, key, instead in without_equivalent(runconfig):
        yield Missing(span, f"`{key}`", instead)
    if runconfig.user_managed:
        span = runconfig.place("environment", "python", "userManagedDependencies")
        what = "`userManagedDependencies`: what was installed on the old machine is not on the new one"
        yield Missing(span, what, _BY_CONDA)
    if runconfig.document.value("maxRunDurationSeconds") is not None:
        span = runconfig.place("maxRunDurationSeconds")
        yield Missing(span, "`maxRunDurationSeconds`", "`lifecycle.lease` of the spec ends the machine")
    if runconfig.framework == PYSPARK and runconfig.document.value("spark"):
        yield Missing(runconfig.place("spark"), "`spark`", _SPARK)


def by_place(found: list[Missing]) -> list[Missing]:
    """In the order in which somebody would go through the files; what has no place comes first."""
    return sorted(
        found, key=lambda each: (each.span.file, each.span.line, each.span.column) if each.span else ("", 0, 0)
    )
