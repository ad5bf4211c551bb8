"""Find what has no equivalent in a spec: its location, and what to do instead."""

from collections.abc import Iterator
from dataclasses import dataclass
from shlex import quote

from gpuinfra.diagnostics import Diagnostic, Span
from gpuinfra.parse.document import Document
from gpuinfra.parse.tree import data
from gpuinfra.workbench.compute import CLUSTER, LOCAL, REMOTE, REMOTEDOCKER, SHARE, Compute
from gpuinfra.workbench.fields import Fields
from gpuinfra.workbench.project import Project, plain_path
from gpuinfra.workbench.runconfig import PYSPARK, SCRIPT, RunConfig, without_equivalent
from gpuinfra.workbench.target_choice import TargetChoice

_DATA = "read data in the script; put shared data into the folder in AZUREML_NATIVE_SHARE_DIRECTORY"
_DATA_KEYS = ("DataSourceSettings", "DataSourceSubstitutions", "UseSampling")
_BY_CONDA = "list it in the conda file, and remove the line"
_LOOK = "check the path on the new machine, or remove the line"
_SPARK = 'set it in the script: SparkSession.builder.config("spark.jars.packages", …)'
_SPARK_KEYS = ("repositories", "packages", "configuration")


@dataclass(frozen=True)
class UnsupportedItem:
    """One setting without an equivalent."""

    span: Span | None
    what: str
    instead: str


def find_unsupported(project: Project, choice: TargetChoice, target: str) -> Iterator[UnsupportedItem]:
    """Return everything that the spec does not include. `target` is the name of the new files."""
    yield from _unread(project, choice)
    if choice.compute:
        yield from _of_compute(choice.compute, target)
    if choice.runconfig:
        yield from _of_runconfig(project, choice.runconfig, target)
    yield from _others(project, choice)


def place(document: Document, key: str) -> Span:
    """Return the location of a value, or of its key if it is empty."""
    return document.span(Fields(document.source, document.root, []).node(key))


def _unread(project: Project, choice: TargetChoice) -> Iterator[UnsupportedItem]:
    unread = {str(project.root / path) for path in project.unreadable}
    chosen = {each.document.source.name for each in (choice.compute, choice.runconfig) if each}
    for diagnostic in project.diagnostics:
        span = diagnostic.span
        if span and span.file in unread:
            yield UnsupportedItem(span, f"the file cannot be read: {_words(diagnostic)}", "fix it, and import again")
        elif span and span.file in chosen:
            yield UnsupportedItem(span, _words(diagnostic), diagnostic.help or "correct the file")


def _words(diagnostic: Diagnostic) -> str:
    return f"{diagnostic.summary}, {diagnostic.label}" if diagnostic.label else diagnostic.summary


# The target


def _of_compute(compute: Compute, target: str) -> Iterator[UnsupportedItem]:
    document = compute.document
    if compute.password is not None:
        instead = "log in with your SSH key, `admin.sshPublicKey` in the spec; remove the line"
        yield UnsupportedItem(place(document, "password"), "`password` is not imported", instead)
    if compute.address is not None:
        keep = f"`gpuinfra attach {quote(target)} --address HOST --username USER` keeps the old one"
        instead = f"`gpuinfra up` creates a new machine and writes its address; {keep}"
        yield UnsupportedItem(place(document, "address"), "the machine at this address is not imported", instead)
    if compute.user_managed_environment:
        what = "`userManagedEnvironment`: packages of the old machine are not on the new one"
        yield UnsupportedItem(place(document, "userManagedEnvironment"), what, _BY_CONDA)
    if compute.python_location not in {None, "python"} and compute.type in {REMOTE, LOCAL}:
        what = "`pythonLocation`: a new machine may have no Python there"
        yield UnsupportedItem(place(document, "pythonLocation"), what, _LOOK)
    if compute.spark_submit_location not in {None, "spark-submit"}:
        what = "`sparkSubmitLocation`: a new machine may have no Spark there"
        yield UnsupportedItem(place(document, "sparkSubmitLocation"), what, _LOOK)
    if compute.name != target:
        yield from _shares(compute, target)


def _shares(compute: Compute, target: str) -> Iterator[UnsupportedItem]:
    """Return shared-folder settings, which stay in the old file."""
    instead = f"add it to {target}.compute after `gpuinfra up` has written the file"
    if not compute.shared_volumes:
        yield UnsupportedItem(place(compute.document, "sharedVolumes"), "`sharedVolumes` is not in a spec", instead)
    if compute.native_shared_directory != SHARE:
        what = "`nativeSharedDirectory` is not in a spec"
        yield UnsupportedItem(place(compute.document, "nativeSharedDirectory"), what, instead)


def _others(project: Project, choice: TargetChoice) -> Iterator[UnsupportedItem]:
    for compute in project.computes.values():
        if compute.type == CLUSTER:
            instead = "run its jobs on one machine, with `framework: PySpark` and an image that has Spark"
            yield UnsupportedItem(place(compute.document, "type"), f"`{compute.name}` is a cluster", instead)
            if compute.yarn_deploy_mode:
                span = place(compute.document, "yarnDeployMode")
                yield UnsupportedItem(span, "`yarnDeployMode`", "Spark runs inside the job, without YARN")
        elif compute.type in {REMOTEDOCKER, REMOTE} and compute is not choice.compute:
            what = f"`{compute.name}` is another target, and is not imported"
            instead = f"import it with `--target {compute.name} --output FILE`"
            yield UnsupportedItem(place(compute.document, "type"), what, instead)


# How scripts run


def _of_runconfig(project: Project, runconfig: RunConfig, target: str) -> Iterator[UnsupportedItem]:
    root = runconfig.document.root
    for key in _DATA_KEYS:
        if key in root.items and data(root.items[key]) is not None:
            yield UnsupportedItem(runconfig.place(key), f"`{key}`: gpuinfra has no data sources", _DATA)
    if runconfig.framework == PYSPARK and runconfig.spark_file:
        yield from _spark(project, runconfig)
    if runconfig.is_sdk_v1:
        yield from _of_sdk_v1(runconfig)
    if runconfig.name != target:
        yield from _habits(runconfig, target)
    elif runconfig.target not in {None, target}:
        what = f"runs with {target}.runconfig go to `{runconfig.target}`"
        yield UnsupportedItem(runconfig.target_place, what, f"change it to `{target}`")


def _habits(runconfig: RunConfig, target: str) -> Iterator[UnsupportedItem]:
    """Return settings of a run configuration that the new one, from `up`, lacks."""
    instead = f"add it to {target}.runconfig after `gpuinfra up` has written the file"
    later = runconfig.is_sdk_v1
    if runconfig.environment_variables:
        path = ("environment", "environmentVariables") if later else ("EnvironmentVariables",)
        yield UnsupportedItem(runconfig.place(*path), "environment variables are not in a spec", instead)
    if runconfig.arguments != (SCRIPT,):
        span = runconfig.place("arguments" if later else "ArgumentVector")
        yield UnsupportedItem(span, "arguments are not in a spec", f"{instead}, or pass them to each run")
    if runconfig.docker and runconfig.docker.enabled and runconfig.docker.shm_size:
        span = runconfig.place("environment", "docker", "shmSize")
        yield UnsupportedItem(span, "`shmSize` is not in a spec", "use `--shm-size` of `submit` and `run`")


def _spark(project: Project, runconfig: RunConfig) -> Iterator[UnsupportedItem]:
    document = project.sparks.get(plain_path(runconfig.spark_file or ""))
    for key in _SPARK_KEYS:
        if document and document.value(key):
            yield UnsupportedItem(document.key_span(key), f"`{key}` for Spark", _SPARK)


def _of_sdk_v1(runconfig: RunConfig) -> Iterator[UnsupportedItem]:
    for span, key, instead in without_equivalent(runconfig):
        yield UnsupportedItem(span, f"`{key}`", instead)
    if runconfig.user_managed:
        span = runconfig.place("environment", "python", "userManagedDependencies")
        what = "`userManagedDependencies`: packages of the old machine are not on the new one"
        yield UnsupportedItem(span, what, _BY_CONDA)
    if runconfig.document.value("maxRunDurationSeconds") is not None:
        span = runconfig.place("maxRunDurationSeconds")
        yield UnsupportedItem(
            span,
            "`maxRunDurationSeconds`",
            "use `--timeout` of `submit` and `run`; `lifecycle.lease` limits the machine",
        )
    if runconfig.framework == PYSPARK and runconfig.document.value("spark"):
        yield UnsupportedItem(runconfig.place("spark"), "`spark`", _SPARK)


def by_place(found: list[UnsupportedItem]) -> list[UnsupportedItem]:
    """Sort by file and line; items without a location come first."""
    return sorted(
        found, key=lambda each: (each.span.file, each.span.line, each.span.column) if each.span else ("", 0, 0)
    )
