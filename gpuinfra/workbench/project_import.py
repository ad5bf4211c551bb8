"""Create a spec from a Workbench project, and list what has no equivalent."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from string import Template

from pydantic_core import PydanticCustomError

from gpuinfra.diagnostics import Span
from gpuinfra.models.images import ALIAS_DRIVER, check_container_image
from gpuinfra.models.job import check_yaml_path
from gpuinfra.models.names import MACHINE_NAME_LENGTH, check_machine_name, check_target_name, check_username
from gpuinfra.models.sizes import SIZES
from gpuinfra.models.spec import Admin, TargetOptions
from gpuinfra.parse.document import written
from gpuinfra.parse.tree import Value
from gpuinfra.templates import read_template
from gpuinfra.workbench.base_images import choose_base_image
from gpuinfra.workbench.compute import LOCAL, REMOTE, REMOTEDOCKER
from gpuinfra.workbench.cuda import NEEDED, cuda_of, is_for_gpu, shown
from gpuinfra.workbench.project import FOLDER, Project, plain_path
from gpuinfra.workbench.runconfig import PYSPARK
from gpuinfra.workbench.target_choice import TargetChoice, choose_target
from gpuinfra.workbench.unsupported import UnsupportedItem, by_place, find_unsupported, place

DEFAULT = choose_base_image(str(ALIAS_DRIVER)).name
"""Replaces an image that a spec cannot use. Without one, each run chooses it for the driver."""


@dataclass
class Container:
    """Image and GPU use for the spec, and what has no equivalent."""

    image: str | None = None
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
    if image is not None:
        container.image = DEFAULT
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


# The region in Workbench's GPU guide, and the smallest GPU size that Azure offers.
REGION, SIZE = "southcentralus", "Standard_NC4as_T4_v3"
LAST_RESORT = "my-dsvm"
DEFAULTS = TargetOptions()


@dataclass(frozen=True)
class ImportOptions:
    """Values that the project does not have."""

    target: str | None = None
    region: str | None = None
    size: str | None = None
    name: str | None = None


@dataclass(frozen=True)
class ImportResult:
    """A spec, and what it does not include."""

    spec_text: str
    name: str
    target: str
    """The name of the two files that `up` writes or updates."""
    is_sdk_v1: bool
    """Whether the project is for Azure ML SDK v1, the successor of Workbench."""
    missing: tuple[UnsupportedItem, ...]


def import_project(project: Project, options: ImportOptions) -> ImportResult:
    """Return a valid spec. Raises a Problem with the choices if the project has several targets."""
    choice = choose_target(project, options.target)
    builder = _SpecBuilder(project, choice, options)
    name, target = builder.names()
    reasons = _reasons(options)
    text = Template(read_template("imported.yaml")).substitute(
        origin=f"an {'Azure ML SDK v1' if builder.is_sdk_v1 else 'Azure ML Workbench'} project",
        name=written(name),
        region_reason=reasons[0],
        region=options.region or REGION,
        size_reason=reasons[1],
        size=builder.size,
        admin=f"  username: {written(builder.username())}",
        target_reason=builder.reason(target),
        target="\n".join(builder.target_lines(target)),
    )
    missing = [*builder.missing, *find_unsupported(project, choice, target)]
    return ImportResult(text, name, target, builder.is_sdk_v1, tuple(by_place(missing)))


def _reasons(options: ImportOptions) -> tuple[str, str]:
    unsaid = "The project does not say"
    return (
        "Azure region. For several, in order: regions: [southcentralus, eastus]"
        if options.region
        else f"{unsaid} where its machine was; this region is from Workbench's GPU guide.",
        "VM size. For several, in order: sizes: [Standard_NC4as_T4_v3, Standard_NC8as_T4_v3]"
        if options.size
        else f"{unsaid} how large its machine was; this is the smallest GPU size. All sizes: gpuinfra sizes",
    )


@dataclass
class _SpecBuilder:
    """The parts of the spec, and what has no equivalent."""

    project: Project
    choice: TargetChoice
    options: ImportOptions
    missing: list[UnsupportedItem] = field(default_factory=list)

    @property
    def size(self) -> str:
        return self.options.size or SIZE

    @property
    def is_sdk_v1(self) -> bool:
        return self.choice.runconfig is not None and self.choice.runconfig.is_sdk_v1

    def names(self) -> tuple[str, str]:
        """Return the names of machine and target."""
        kept = self.choice.name if self.choice.is_remote else None
        if kept is not None and (reason := refused(check_target_name, kept)):
            what, instead = f"`{kept}` is not a valid target name: {reason[0]}", "the spec uses another name"
            self.missing.append(UnsupportedItem(self._where(), what, instead))
            kept = None
        name = self.options.name or self._machine_name(kept)
        return name, kept or self._free(name.replace("-", "_"))

    def _machine_name(self, kept: str | None) -> str:
        words = [_cleaned(word) for word in (self.choice.name or "", self.project.root.resolve().name)]
        candidates = [each for word in words for each in (word, f"{word}-gpu")]
        return next(
            name
            for name in (*candidates, LAST_RESORT)
            if not refused(check_machine_name, name) and (kept or name == LAST_RESORT or self._is_free(name))
        )

    def _is_free(self, name: str) -> bool:
        """Return whether no file of the project has the target's name."""
        taken = {
            *self.project.computes,
            *self.project.runconfigs,
            *(Path(path).stem for path in self.project.unreadable),
        }
        return name.replace("-", "_") not in taken

    def _free(self, name: str) -> str:
        others = (f"{name[:50]}_{number}" for number in count(2))
        return next(each for each in chain((name, f"{name[:50]}_gpu"), others) if self._is_free(each))

    def username(self) -> str:
        """Return the project's user name if Azure accepts it."""
        default, compute = Admin().username, self.choice.compute
        if compute is None or compute.username is None:
            return default
        if not (reason := refused(check_username, compute.username)):
            return compute.username
        what = f"`{compute.username}` is not a valid administrator name: {reason[0]}"
        self.missing.append(UnsupportedItem(place(compute.document, "username"), what, f"the spec uses `{default}`"))
        return default

    # The target

    def reason(self, target: str) -> str:
        files = f"The compute target: {target}.compute and {target}.runconfig in {FOLDER}/"
        if self.choice.is_remote and target == self.choice.name:
            return f"{files}. Existing files stay in use."
        return f"{files}, which `gpuinfra up` writes."

    def target_lines(self, target: str) -> list[str]:
        kind = self._type()
        said: dict[str, Value] = {"name": target, "type": kind}
        if kind == REMOTEDOCKER:
            container = container_of(self.choice, self.size)
            self.missing += container.missing
            said |= {"baseDockerImage": container.image} if container.image else {}
            said |= {"nvidiaDocker": container.uses_gpu}
        if not self._has_sdk_v1_file(target):
            said |= {"framework": self._framework(), "condaDependencies": self._conda()}
        return [f"  {key}: {written(value)}" for key, value in said.items()]

    def _type(self) -> str:
        runconfig, compute = self.choice.runconfig, self.choice.compute
        if compute is not None:
            return REMOTE if compute.type == REMOTE else REMOTEDOCKER
        if self.choice.name is None:
            return REMOTEDOCKER
        if runconfig is not None and runconfig.docker is not None:
            return REMOTEDOCKER if runconfig.docker.enabled else REMOTE
        what = f"the type of `{self.choice.name}` is unknown: {self.choice.name}.compute does not exist"
        instead = "the spec uses `type: remotedocker`; if jobs ran without a container, write `remote`"
        self.missing.append(UnsupportedItem(self._where(), what, instead))
        return REMOTEDOCKER

    def _framework(self) -> str:
        return self.choice.runconfig.framework if self.choice.runconfig else DEFAULTS.framework

    def _conda(self) -> str:
        runconfig, default = self.choice.runconfig, DEFAULTS.conda_dependencies
        if runconfig is None:
            return default
        path = plain_path(runconfig.conda_file)
        if not (reason := refused(check_yaml_path, path)):
            return path
        key = ("environment", "python", "condaDependenciesFile") if runconfig.is_sdk_v1 else ("CondaDependenciesFile",)
        what = f"`{path}` is not a valid environment file: {reason[0]}"
        self.missing.append(UnsupportedItem(runconfig.place(*key), what, f"the spec uses `{default}`"))
        return default

    def _has_sdk_v1_file(self, target: str) -> bool:
        """Return whether an SDK v1 file already sets these: `up` must not mix both formats."""
        runconfig = self.choice.runconfig
        if runconfig is None or not runconfig.is_sdk_v1 or runconfig.name != target:
            return False
        return Path(runconfig.document.source.name).parent.name == FOLDER

    def _where(self) -> Span | None:
        """Return the location of the target: its own file, or where a run configuration names it."""
        compute, runconfig = self.choice.compute, self.choice.runconfig
        if compute is not None:
            return place(compute.document, "type")
        return runconfig.target_place if runconfig else None


def _cleaned(word: str) -> str:
    """Return a word that is valid in a machine name."""
    return re.sub(r"[^A-Za-z0-9]+", "-", word).strip("-")[: MACHINE_NAME_LENGTH - len("-gpu")].strip("-")
