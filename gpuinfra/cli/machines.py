"""What the commands that deal with machines share: specs, machines by name, and how they reach a cloud."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpuinfra.cli.options import Settings
from gpuinfra.diagnostics import Exit, Problem

if TYPE_CHECKING:
    from gpuinfra.load.spec import Located
    from gpuinfra.models.spec import Spec
    from gpuinfra.views.progress import ProgressView
    from provision.azure.cloud import AzureCloud
    from provision.azure.market import AzureMarket
    from provision.journal import Journal
    from provision.up import Bringing
    from provision.waiting.progress import Progress

LOOPBACK_SOURCE = "127.0.0.1/32"


def load_specs(paths: Sequence[str]) -> list[Located]:
    """Every spec in the files, or every problem of them."""
    from gpuinfra.load.files import load_paths

    loaded = load_paths(paths)
    if loaded.diagnostics:
        raise Problem(*loaded.diagnostics, exit_code=Exit.USAGE)
    return loaded.specs


@contextmanager
def explained(doing: str) -> Iterator[None]:
    """What Azure refuses, in the words of this program."""
    from provision.errors import CloudError
    from provision.problems import explain

    try:
        yield
    except CloudError as error:
        raise explain(error, doing) from error


@dataclass(frozen=True)
class Reach:
    """A cloud, opened for one machine."""

    settings: Settings
    cloud: AzureCloud
    market: AzureMarket

    def journal(self, name: str) -> Journal:
        """Where intents are written down."""
        from gpuinfra.workspace import find_workspace, state_folder
        from provision.journal import Journal

        try:
            folder = state_folder(find_workspace(self.settings.workspace))
        except OSError:
            folder = None  # a machine must not stay on because nothing can be written here
        return Journal(folder, name, self.settings.correlation_id, self.cloud.now)


def reach(
    settings: Settings, subscription: str | None, seconds: float, progress: Progress, *, writes: bool = False
) -> Reach:
    """The cloud, with so much time for all that is asked of it."""
    from gpuinfra.cli.access import open_cloud
    from provision.azure.market import AzureMarket
    from provision.waiting.deadline import Deadline

    cloud = open_cloud(settings, subscription, deadline=Deadline.after(seconds), progress=progress, writes=writes)
    return Reach(settings, cloud, AzureMarket(cloud.clients))


def bringing(reached: Reach, spec: Spec, progress: Progress, *, writes: bool) -> Bringing:
    """All that planning and making a machine need."""
    from gpuinfra.workspace import find_workspace
    from provision.journal import Journal
    from provision.login.public_key import read_public_key
    from provision.up import Bringing

    workspace = find_workspace(reached.settings.workspace)
    return Bringing(
        spec=spec,
        cloud=reached.cloud,
        market=reached.market,
        sources=_sources(spec, simulated=reached.cloud.simulated),
        public_key=read_public_key(spec.admin.ssh_public_key, workspace),
        progress=progress,
        journal=reached.journal(spec.name) if writes else Journal(None, spec.name, ""),
        deadline=reached.cloud.clients.patience.deadline,
    )


def _sources(spec: Spec, *, simulated: bool) -> tuple[str, ...]:
    """Who may reach SSH; `auto` is whoever asks, which to a cloud on this computer is this computer."""
    from gpuinfra.models.addresses import AUTO

    found = []
    for source in spec.network.allow_ssh_from:
        if source == AUTO:
            from provision.login.own_address import own_address

            found.append(LOOPBACK_SOURCE if simulated else f"{own_address()}/32")
        else:
            found.append(source if "/" in source else f"{source}/32")
    return tuple(dict.fromkeys(found))


def progress_view(settings: Settings) -> ProgressView:
    """Live lines for people, plain ones for the rest."""
    from gpuinfra.views.progress import ProgressView

    return ProgressView(plain=settings.json or settings.verbose)


@dataclass(frozen=True)
class Named:
    """A machine that a word on the command line means: by its spec, or by its name alone."""

    name: str
    group: str | None = None
    subscription: str | None = None


def named_machines(words: Sequence[str]) -> list[Named]:
    """A word that is a file, or looks like a path, is a spec; any other is a machine's name."""
    found: list[Named] = []
    for word in words:
        if word in {"-", "."} or Path(word).is_file() or word.endswith((".yaml", ".yml")) or "/" in word:
            specs = (located.spec for located in load_specs([word]))
            found += [Named(spec.name, spec.group_name, spec.subscription) for spec in specs]
        else:
            found.append(Named(word))
    return found
