"""A project becomes a spec: what of it a spec can say is said, and all else is listed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from string import Template

from gpuinfra.diagnostics import Span
from gpuinfra.models.names import MACHINE_NAME_LENGTH, check_machine_name, check_target_name, check_username
from gpuinfra.models.paths import check_yaml_path
from gpuinfra.models.spec import Admin, TargetOptions
from gpuinfra.parse.document import written
from gpuinfra.parse.scalars import Value
from gpuinfra.templates import read_template
from gpuinfra.workbench.choice import Choice, choose
from gpuinfra.workbench.compute import REMOTE, REMOTEDOCKER
from gpuinfra.workbench.container import container_of, refused
from gpuinfra.workbench.project import FOLDER, Project, plain_path
from gpuinfra.workbench.unsupported import Missing, by_place, leftovers, place

# What the Workbench's guide to GPUs names, and the least size with a GPU that can be had.
REGION, SIZE = "southcentralus", "Standard_NC4as_T4_v3"
LAST_RESORT = "my-dsvm"
DEFAULTS = TargetOptions()


@dataclass(frozen=True)
class Wishes:
    """What the user says, and the project does not."""

    target: str | None = None
    region: str | None = None
    size: str | None = None
    name: str | None = None


@dataclass(frozen=True)
class Imported:
    """A spec's text, and what it does not say."""

    spec_text: str
    name: str
    target: str
    """The name of the two files that `up` writes, or brings up to date."""
    is_later: bool
    """Whether the project is of the generation after the Workbench: Azure ML SDK v1."""
    missing: tuple[Missing, ...]


def import_project(project: Project, wishes: Wishes) -> Imported:
    """A spec that loads without a complaint. A Problem says which targets there are to choose from."""
    choice = choose(project, wishes.target)
    making = _Making(project, choice, wishes)
    name, target = making.names()
    reasons = _reasons(wishes)
    text = Template(read_template("imported.yaml")).substitute(
        origin=f"an {'Azure ML SDK v1' if making.is_later else 'Azure ML Workbench'} project",
        name=written(name),
        region_reason=reasons[0],
        region=wishes.region or REGION,
        size_reason=reasons[1],
        size=making.size,
        admin=f"  username: {written(making.username())}",
        target_reason=making.reason(target),
        target="\n".join(making.target_lines(target)),
    )
    missing = [*making.missing, *leftovers(project, choice, target)]
    return Imported(text, name, target, making.is_later, tuple(by_place(missing)))


def _reasons(wishes: Wishes) -> tuple[str, str]:
    unsaid = "The project does not say"
    return (
        "Where to look for a GPU. Several, in order: regions: [southcentralus, eastus]"
        if wishes.region
        else f"{unsaid} where its machine was; the Workbench's guide to GPUs names this region.",
        "What to look for. Several, in order: sizes: [Standard_NC4as_T4_v3, Standard_NC8as_T4_v3]"
        if wishes.size
        else f"{unsaid} how large its machine was; this is the least size with a GPU. All: gpuinfra sizes",
    )


@dataclass
class _Making:
    """One import: what is said so far, and what could not be."""

    project: Project
    choice: Choice
    wishes: Wishes
    missing: list[Missing] = field(default_factory=list)

    @property
    def size(self) -> str:
        return self.wishes.size or SIZE

    @property
    def is_later(self) -> bool:
        return self.choice.runconfig is not None and self.choice.runconfig.is_later

    def names(self) -> tuple[str, str]:
        """The machine's name and the target's."""
        kept = self.choice.name if self.choice.is_remote else None
        if kept is not None and (reason := refused(check_target_name, kept)):
            what, instead = f"`{kept}` cannot name a target: {reason[0]}", "the spec has another name for it"
            self.missing.append(Missing(self._where(), what, instead))
            kept = None
        name = self.wishes.name or self._machine_name(kept)
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
        """Whether no file of the project's has the name that a new target would have."""
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
        """The one of old, where Azure takes it."""
        default, compute = Admin().username, self.choice.compute
        if compute is None or compute.username is None:
            return default
        if not (reason := refused(check_username, compute.username)):
            return compute.username
        what = f"`{compute.username}` cannot be the administrator: {reason[0]}"
        self.missing.append(Missing(place(compute.document, "username"), what, f"the spec has `{default}`"))
        return default

    # The target

    def reason(self, target: str) -> str:
        files = f"The compute target: {target}.compute and {target}.runconfig in {FOLDER}/"
        if self.choice.is_remote and target == self.choice.name:
            return f"{files}. What is there goes on being used."
        return f"{files}, which `gpuinfra up` writes."

    def target_lines(self, target: str) -> list[str]:
        kind = self._type()
        said: dict[str, Value] = {"name": target, "type": kind}
        if kind == REMOTEDOCKER:
            container = container_of(self.choice, self.size)
            self.missing += container.missing
            said |= {"baseDockerImage": container.image, "nvidiaDocker": container.uses_gpu}
        if not self._has_later_file(target):
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
        what = f"what `{self.choice.name}` was is not known: there is no {self.choice.name}.compute"
        instead = "the spec says `type: remotedocker`; if jobs ran without a container it is `remote`"
        self.missing.append(Missing(self._where(), what, instead))
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
        key = ("environment", "python", "condaDependenciesFile") if runconfig.is_later else ("CondaDependenciesFile",)
        what = f"`{path}` cannot be the environment: {reason[0]}"
        self.missing.append(Missing(runconfig.place(*key), what, f"the spec has `{default}`"))
        return default

    def _has_later_file(self, target: str) -> bool:
        """A file of the later generation says these itself, in other words: `up` is not to mix the two."""
        runconfig = self.choice.runconfig
        if runconfig is None or not runconfig.is_later or runconfig.name != target:
            return False
        return Path(runconfig.document.source.name).parent.name == FOLDER

    def _where(self) -> Span | None:
        """Where the target is what it is: in its own file, or where a run configuration names it."""
        compute, runconfig = self.choice.compute, self.choice.runconfig
        if compute is not None:
            return place(compute.document, "type")
        return runconfig.place("target" if runconfig.is_later else "Target") if runconfig else None


def _cleaned(word: str) -> str:
    """A word as far as it can be part of a machine's name."""
    return re.sub(r"[^A-Za-z0-9]+", "-", word).strip("-")[: MACHINE_NAME_LENGTH - len("-gpu")].strip("-")
