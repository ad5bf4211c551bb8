"""`NAME.runconfig`: how a script runs, and on which target. Workbench and SDK v1 use different keys."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from gpuinfra.diagnostics import Code, Diagnostic, Span, did_you_mean
from gpuinfra.parse.document import Document
from gpuinfra.parse.tree import Mapping, Node, data, node_at
from gpuinfra.workbench.fields import Fields

SUFFIX = ".runconfig"
PYTHON, PYSPARK = "Python", "PySpark"
FRAMEWORKS = (PYTHON, PYSPARK)
CONDA_FILE = "aml_config/conda_dependencies.yml"
SCRIPT = "$file"
"""Placeholder in the arguments for the script of `submit`."""

KEYS = frozenset(
    "ArgumentVector Target EnvironmentVariables Framework CondaDependenciesFile SparkDependenciesFile "
    "PrepareEnvironment TrackedRun UseSampling DataSourceSettings DataSourceSubstitutions CondaFile "
    "ManagedEnvironment Description".split()
)
_SDK_V1_KEYS = frozenset("script arguments target framework environment communicator nodeCount history".split())

# Keys of SDK v1 without an equivalent, with their default value and what to do instead.
_NOT_HERE: dict[str, tuple[object, str]] = {
    "communicator": ("None", "one process on one machine"),
    "nodeCount": (1, "one machine per run"),
    "dataReferences": ({}, "nothing is mounted; put data into the shared folder or fetch it in the script"),
    "data": ({}, "nothing is mounted; put data into the shared folder or fetch it in the script"),
    "sourceDirectoryDataStore": (None, "the project is uploaded from the workspace"),
    "amlcompute": (None, "the spec's `size` says which machine"),
    "batchai": (None, "the spec's `size` says which machine"),
    "containerInstance": (None, "the spec's `size` says which machine"),
    "hdi": (None, "gpuinfra does not create clusters"),
    "mpi": (None, "one process on one machine"),
    "tensorflow": (None, "one process on one machine"),
}
_USUAL: dict[str, dict[str, object]] = {
    "amlcompute": {"vmSize": None, "vmPriority": None, "name": None},
    "batchai": {"vmSize": None, "vmPriority": None, "name": None},
    "containerInstance": {"region": None},
    "hdi": {"yarnDeployMode": "cluster"},
    "mpi": {"processCountPerNode": 1},
    "tensorflow": {"workerCount": 1, "parameterServerCount": 1},
}


@dataclass(frozen=True)
class Docker:
    """The container settings of an SDK v1 file. In Workbench the target has them."""

    enabled: bool = False
    base_image: str | None = None
    gpu: bool = False
    shared_volumes: bool = True
    shm_size: str | None = None


@dataclass(frozen=True)
class RunConfig:
    """A run configuration with all defaults."""

    name: str
    document: Document
    is_sdk_v1: bool
    """Whether it is an Azure ML SDK v1 file, with lower-case keys."""
    target: str | None
    arguments: tuple[str, ...] = (SCRIPT,)
    environment_variables: dict[str, str] = field(default_factory=dict)
    framework: str = PYSPARK
    has_framework: bool = False
    conda_file: str = CONDA_FILE
    spark_file: str | None = None
    prepare_environment: bool = True
    tracked_run: bool = True
    script: str | None = None
    user_managed: bool = False
    """Whether jobs use the target's own Python, without the conda file."""
    docker: Docker | None = None

    def has(self, *path: str) -> bool:
        """Return whether the file has a value at this path."""
        return node_at(self.document.root, *path) is not None

    @property
    def target_place(self) -> Span:
        """The location of the target's name."""
        return self.place("target" if self.is_sdk_v1 else "Target")

    def place(self, *path: str) -> Span:
        """Return the location of a value, or of the deepest existing key."""
        node: Node = self.document.root
        for key in path:
            if not isinstance(node, Mapping) or key not in node.items:
                break
            found = node.items[key]
            node = node.keys[key] if found.start == found.end else found
        if node is self.document.root:
            return self.document.source.span(0, 0)
        return self.document.span(node)


def read_runconfig(name: str, document: Document) -> tuple[RunConfig, list[Diagnostic]]:
    """Return the run configuration of a file, and its problems."""
    diagnostics: list[Diagnostic] = []
    fields = Fields(document.source, document.root, diagnostics)
    keys = document.root.keys.keys()
    if keys & _SDK_V1_KEYS and not keys & KEYS:
        return _read_sdk_v1(name, document, fields), diagnostics
    conda = fields.text("CondaDependenciesFile") or fields.text("CondaFile")
    return RunConfig(
        name=name,
        document=document,
        is_sdk_v1=False,
        target=fields.text("Target"),
        arguments=fields.texts("ArgumentVector") or (SCRIPT,),
        environment_variables=fields.variables("EnvironmentVariables"),
        framework=_framework(fields, "Framework", PYSPARK),
        has_framework=fields.has("Framework"),
        conda_file=conda or CONDA_FILE,
        spark_file=fields.text("SparkDependenciesFile"),
        prepare_environment=fields.boolean("PrepareEnvironment", default=True),
        tracked_run=fields.boolean("TrackedRun", default=True),
    ), diagnostics


def _read_sdk_v1(name: str, document: Document, fields: Fields) -> RunConfig:
    environment = fields.section("environment")
    python, docker = environment.section("python"), environment.section("docker")
    conda = python.text("condaDependenciesFile")
    prepare = "autoPrepareEnvironment" if fields.has("autoPrepareEnvironment") else "prepareEnvironment"
    return RunConfig(
        name=name,
        document=document,
        is_sdk_v1=True,
        target=fields.text("target"),
        arguments=(SCRIPT, *fields.texts("arguments")),
        environment_variables=environment.variables("environmentVariables"),
        # SDK v1 defaults to Python; Workbench to PySpark.
        framework=_framework(fields, "framework", PYTHON),
        has_framework=fields.has("framework"),
        conda_file=conda or CONDA_FILE,
        prepare_environment=fields.boolean(prepare, default=True),
        tracked_run=fields.section("history").boolean("outputCollection", default=True),
        script=fields.text("script"),
        user_managed=python.boolean("userManagedDependencies", default=False),
        docker=Docker(
            enabled=docker.boolean("enabled", default=False),
            base_image=docker.text("baseImage"),
            gpu=docker.boolean("gpuSupport", default=False),
            shared_volumes=docker.boolean("sharedVolumes", default=True),
            shm_size=docker.text("shmSize"),
        ),
    )


def without_equivalent(runconfig: RunConfig) -> Iterator[tuple[Span, str, str]]:
    """Return location, key and alternative of each SDK v1 setting without an equivalent."""
    if not runconfig.is_sdk_v1:
        return
    root = runconfig.document.root
    alone = runconfig.document.value("communicator") in (None, "None")
    for key, (usual, instead) in _NOT_HERE.items():
        # Process counts matter only with a communicator.
        if key not in root.items or (alone and key in {"mpi", "tensorflow"}):
            continue
        value = data(root.items[key])
        quiet = _USUAL.get(key)
        if isinstance(value, dict) and quiet is not None:
            says = any(value.get(name, unsaid) not in (unsaid, None) for name, unsaid in quiet.items())
        else:
            says = value not in (None, usual)
        if says:
            yield runconfig.place(key), key, instead


def _framework(fields: Fields, key: str, default: str) -> str:
    said = fields.text(key)
    if said is None:
        return default
    known = {name.casefold(): name for name in FRAMEWORKS}
    if said.strip().casefold() in known:
        return known[said.strip().casefold()]
    help_line = did_you_mean(said, FRAMEWORKS) or "write `Python` or `PySpark`"
    fields.complain(fields.node(key), Code.UNKNOWN_VALUE, "unknown framework", f"`{said}` is not supported", help_line)
    return default
