"""Shared functions for commands on machines: find specs and machines, and open a cloud session."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from gpuinfra.app.settings import Settings
from gpuinfra.app.simulation import check_target
from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem

if TYPE_CHECKING:
    from gpuinfra.app.error_collector import ErrorCollector
    from gpuinfra.app.frontend import Frontend
    from gpuinfra.models.resource import MachineId
    from gpuinfra.models.spec import Spec
    from gpuinfra.models.target import Target
    from gpuinfra.parse.spec import Loaded, LocatedSpec
    from gpuinfra.provision.cloud import Cloud
    from gpuinfra.provision.journal import Journal
    from gpuinfra.provision.market.port import Market
    from gpuinfra.provision.up import Provisioner
    from gpuinfra.provision.waiting.progress import Progress

# Enough to find a machine; nothing is created or changed.
FIND_SECONDS = 120.0
LOOPBACK_SOURCE = "127.0.0.1/32"


def load_specs(paths: Sequence[str], errors: ErrorCollector | None = None) -> list[LocatedSpec]:
    """Return every spec in the files. Raise Problem with all errors in them.

    With `errors`, errors in some specs are collected there, and the others are returned.
    """
    from gpuinfra.parse.files import load_paths

    loaded = load_paths(paths)
    if loaded.diagnostics:
        problem = Problem(*loaded.diagnostics, exit_code=Exit.USAGE)
        if errors is None or not loaded.specs:
            raise problem
        errors.add(problem)
    return loaded.specs


def validate(paths: Sequence[str]) -> Loaded:
    """Return every spec in the files, and every error in them."""
    from gpuinfra.parse.files import load_paths

    return load_paths(paths)


def readable_specs(folder: Path, what: str, progress: Progress) -> list[LocatedSpec]:
    """Return the readable specs in a folder. A broken one must not hide a machine that is billed."""
    from gpuinfra.parse.files import load_paths

    loaded = load_paths([str(folder)])
    problems = [each for each in loaded.diagnostics if each.code is not Code.NO_SPEC_FOUND]
    if problems:
        counted = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        progress.note(f"{counted} in the specs of {what}; `gpuinfra validate {quote(str(folder))}` shows more")
    return loaded.specs


def common_subscription(specs: Sequence[LocatedSpec]) -> str | None:
    """Return the subscription that all specs agree on, or None."""
    named = {located.spec.subscription for located in specs if located.spec.subscription}
    return named.pop() if len(named) == 1 else None


def spec_named(workspace: Path, name: str) -> Spec | None:
    """Return a machine's spec in the workspace, by machine or target name, or None."""
    found = _located_named(workspace, name)
    return found[0].spec if found else None


def has_target(workspace: Path, name: str) -> bool:
    """Whether a spec of the workspace has a target of this name, in any spelling: `is_same_name`."""
    from gpuinfra.parse.folder import has_spec
    from gpuinfra.runner.connection.known_hosts import is_same_name
    from gpuinfra.workspace import find_workspace

    if not has_spec(find_workspace(workspace)):
        return False
    from gpuinfra.parse.files import load_paths

    return any(is_same_name(located.spec.target_name, name) for located in load_paths([str(workspace)]).specs)


def spec_of_machine(workspace: Path, name: str, group: str | None) -> Spec | None:
    """Return the spec of exactly this machine, or None. Without a group, only the name counts."""
    from gpuinfra.parse.folder import has_spec
    from gpuinfra.workspace import find_workspace

    if not has_spec(find_workspace(workspace)):
        return None
    from gpuinfra.parse.files import load_paths

    for spec in (located.spec for located in load_paths([str(workspace)]).specs):
        if (
            spec.name.casefold() == name.casefold()
            and (group or spec.group_name).casefold() == spec.group_name.casefold()
        ):
            return spec
    return None


def check_specs_agree(workspace: Path, name: str) -> None:
    """Raise Problem if different specs in the workspace describe the machine: none is chosen silently."""
    from gpuinfra.provision.find import ambiguous_name

    found = _located_named(workspace, name)
    if any(each.spec != found[0].spec for each in found):
        raise ambiguous_name(name, [f"`{each.spec.name}` of {each.span.file}" for each in found])


def _located_named(workspace: Path, name: str) -> list[LocatedSpec]:
    """Return the specs of one machine, by machine or target name."""
    from gpuinfra.parse.folder import has_spec
    from gpuinfra.workspace import find_workspace

    # Reading a spec needs slow imports, so check first whether there is one.
    if not has_spec(find_workspace(workspace)):
        return []
    from gpuinfra.parse.files import load_paths

    # Errors in other specs do not concern this machine.
    found = load_paths([str(workspace)]).specs
    by_name = [located for located in found if located.spec.name.casefold() == name.casefold()]
    chosen = by_name or [located for located in found if located.spec.target_name == name]
    if len({(located.spec.subscription, located.spec.group_name.casefold()) for located in chosen}) > 1:
        from gpuinfra.provision.find import ambiguous_name

        raise ambiguous_name(name, [f"`{each.spec.name}` of {each.span.file}" for each in chosen])
    return chosen


def one_spec(settings: Settings, word: str) -> Spec:
    """Return the one spec that a word means: a file that contains it, or a machine's name."""
    return one_located(settings, word).spec


def one_located(settings: Settings, word: str) -> LocatedSpec:
    """Return the one spec that a word means, with its location. Raise Problem if there is not exactly one."""
    found = _located_meant(settings, word)
    if not found:
        raise _no_spec(settings.workspace, word)
    if not is_path(word):
        check_specs_agree(settings.workspace, word)
    if len(found) == 1:
        return found[0]
    names = ", ".join(f"`{each.spec.name}`" for each in found)
    raise Problem(
        Diagnostic(
            Code.USAGE,
            "more than one machine",
            note=f"`{word}` describes {names}",
            help="give the name of one of them",
        ),
        exit_code=Exit.USAGE,
    )


def specs_meant(settings: Settings, word: str, errors: ErrorCollector | None = None) -> list[Spec]:
    """Return the specs that a word means: those in a file or folder, or of a machine or target; else none.

    For `errors`, see `load_specs`.
    """
    return [located.spec for located in _located_meant(settings, word, errors)]


def _located_meant(settings: Settings, word: str, errors: ErrorCollector | None = None) -> list[LocatedSpec]:
    from gpuinfra.parse.folder import has_spec

    if is_path(word):
        return load_specs([word], errors)
    if found := _located_named(settings.workspace, word):
        return found[:1]
    if stat.S_ISDIR(_mode(word)) and has_spec(Path(word)):
        return load_specs([word], errors)
    return []


def _no_spec(workspace: Path, name: str) -> Problem:
    from gpuinfra.parse.files import load_paths
    from gpuinfra.suggest import did_you_mean

    names = [located.spec.name for located in load_paths([str(workspace)]).specs]
    return Problem(
        Diagnostic(
            Code.NO_SPEC_FOUND,
            "no spec found",
            note=f"no spec below `{workspace}` describes a machine `{name}`",
            help=did_you_mean(name, names)
            or f"`gpuinfra validate {quote(str(workspace))}` shows those that there are; or give the spec's file",
        ),
        exit_code=Exit.USAGE,
    )


def target_named(settings: Settings, name: str) -> Target:
    """Return the target with this name: its address, user and host key.

    For our machines, Azure has the state and the current address. Any other target is what its file says.
    """
    from gpuinfra.app.access import open_cloud
    from gpuinfra.app.host_keys import check_host_key
    from gpuinfra.app.machine_names import located
    from gpuinfra.provision.find import find_target
    from gpuinfra.provision.waiting.deadline import Deadline
    from gpuinfra.runner.connection.private_keys import identity_of, with_own_key
    from gpuinfra.workbench import targets
    from gpuinfra.workspace import find_workspace

    spec = one_spec(settings, name) if is_path(name) else spec_named(settings.workspace, name)
    if spec is None and (attached := targets.find_target(find_workspace(settings.workspace), name)):
        check_target(settings, attached)
        return with_own_key(_checked_by_names(settings, _with_address(attached)))
    cloud = open_cloud(settings, spec.subscription if spec else None, deadline=Deadline.after(FIND_SECONDS))
    named = located(settings, cloud, name, spec)
    spec = named.spec
    identity = identity_of(spec.admin.key(), settings.workspace) if spec else None
    found = find_target(cloud, named.name, named.group, ssh_port=cloud.ssh_port, identity=identity)
    found = replace(found, name=spec.target_name) if spec else found
    return with_own_key(check_host_key(settings, with_known_key(settings.workspace, found)))


def _checked_by_names(settings: Settings, target: Target) -> Target:
    """Return the target of a file. Its key must be the known one of its name and of the machine that the file names.

    Only a machine that the user created or attached keeps its own name: in a foreign project, that may be the name of
    any other machine of the user.
    """
    from gpuinfra.app.host_keys import check_host_key
    from gpuinfra.runner.connection.known_hosts import is_own_machine

    named = check_host_key(settings, replace(target, machine=target.name), says="its target file")
    target = check_host_key(settings, target, says="its target file")
    return target if is_own_machine(target) else named


def with_known_key(workspace: Path, target: Target) -> Target:
    """Return the target with its host key. A machine that `up` did not create has none in its tags; its file may."""
    from gpuinfra.workbench import targets

    if target.host_key:
        return target
    attached = targets.find_target(workspace, target.name)
    return replace(target, host_key=attached.host_key) if attached else target


def _with_address(target: Target) -> Target:
    if target.address:
        return target
    raise Problem(
        Diagnostic(
            Code.USAGE,
            "no machine to log in to",
            note=f"the target `{target.name}` is of type `{target.type}`, and has no address",
            help="`gpuinfra targets` lists the targets with their addresses",
        ),
        exit_code=Exit.USAGE,
    )


def bad_host_key(error: Exception) -> Problem:
    """Return the Problem for a machine whose tags have no valid host key."""
    return Problem(
        Diagnostic(
            Code.BAD_HOST_KEY,
            "no valid host key",
            note=str(error),
            help="a machine that `gpuinfra up` did not make has no key of ours: `gpuinfra attach` meets it",
        )
    )


@contextmanager
def explained(doing: str) -> Iterator[None]:
    """Convert errors from Azure to Problems."""
    from gpuinfra.provision.errors import CloudError
    from gpuinfra.provision.problems import explain

    try:
        yield
    except CloudError as error:
        raise explain(error, doing) from error


@dataclass(frozen=True)
class CloudSession:
    """A cloud, opened for one command."""

    settings: Settings
    cloud: Cloud
    market: Market

    def machine_id(self, name: str, group: str | None) -> MachineId:
        """Return the ID of a machine in this session's subscription."""
        from gpuinfra.models.resource import MachineId
        from gpuinfra.provision.names import default_group

        return MachineId(self.cloud.subscription, group or default_group(name), name)

    def journal(self, name: str) -> Journal:
        """Return the journal for actions on a machine."""
        from gpuinfra.provision.journal import Journal

        folder = None if self.settings.ignores_state else self.settings.state
        return Journal(folder, name, self.settings.correlation_id, self.cloud.now)


def open_session(
    settings: Settings, subscription: str | None, seconds: float, progress: Progress, *, writes: bool = False
) -> CloudSession:
    """Open the cloud, with `seconds` for all its requests."""
    from gpuinfra.app.access import open_clients
    from gpuinfra.provision.azure.cloud import AzureCloud
    from gpuinfra.provision.azure.market import AzureMarket
    from gpuinfra.provision.waiting.deadline import Deadline

    clients = open_clients(settings, subscription, deadline=Deadline.after(seconds), progress=progress, writes=writes)
    return CloudSession(settings, AzureCloud(clients), AzureMarket(clients))


def open_provisioner(session: CloudSession, located: LocatedSpec, frontend: Frontend, *, writes: bool) -> Provisioner:
    """Return a Provisioner for a spec, with everything that planning and creating need."""
    spec = located.spec
    from gpuinfra.app.ssh_key import public_key_for
    from gpuinfra.provision.journal import Journal
    from gpuinfra.provision.origin import repository_of
    from gpuinfra.provision.up import Provisioner

    repository, note = repository_of(Path(located.span.file))
    if note and writes:
        frontend.note(note)
    return Provisioner(
        spec=spec,
        cloud=session.cloud,
        market=session.market,
        sources=ssh_sources(spec, simulated=session.cloud.simulated),
        public_key=public_key_for(session.settings, spec, frontend, creates=writes),
        progress=frontend,
        journal=session.journal(spec.name) if writes else Journal(None, spec.name, ""),
        deadline=session.cloud.deadline,
        repository=repository,
    )


def ssh_sources(spec: Spec, *, simulated: bool) -> tuple[str, ...]:
    """Return the addresses that may reach SSH. `auto` is this computer's address, loopback in the sandbox."""
    from gpuinfra.models.addresses import AUTO

    found = []
    for source in spec.network.allow_ssh_from:
        if source == AUTO:
            from gpuinfra.provision.login.own_address import own_address

            found.append(LOOPBACK_SOURCE if simulated else f"{own_address()}/32")
        else:
            found.append(source if "/" in source else f"{source}/32")
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True)
class Named:
    """A machine that a word on the command line means."""

    name: str
    group: str | None = None
    """None if neither a spec nor Azure has it: then nothing is known about the machine."""
    subscription: str | None = None
    spec: Spec | None = None
    """The machine's spec, if the word led to one."""


def _mode(word: str) -> int:
    """Return the mode of the file that a word names, or 0 without a file or for an invalid path."""
    try:
        return Path(word).stat().st_mode
    except (OSError, ValueError):
        return 0


def is_path(word: str) -> bool:
    """Return whether a word can only mean a spec file or a folder, not a machine's name."""
    return word in {"-", "."} or stat.S_ISREG(_mode(word)) or word.endswith((".yaml", ".yml")) or "/" in word
