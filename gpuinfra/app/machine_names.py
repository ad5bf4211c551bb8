"""Resolve a word on the command line to a machine: by spec file, folder, machine name or target name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from gpuinfra.app.access import CloudSession, check_target, cloud_errors, open_cloud, open_session
from gpuinfra.app.host_keys import check_host_key
from gpuinfra.app.settings import Settings
from gpuinfra.app.specs import is_path, one_spec, spec_named, specs_meant
from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem, did_you_mean, problem
from gpuinfra.models.names import check_machine_name
from gpuinfra.models.spec import Spec
from gpuinfra.models.target import Target
from gpuinfra.parse.files import load_paths
from gpuinfra.provision.cloud import Cloud
from gpuinfra.provision.observed import Observed
from gpuinfra.provision.ownership import Owner, machine_of_row, owner_of
from gpuinfra.provision.target import ambiguous_name, called, find_target, locate, matching, target_of
from gpuinfra.provision.waiting import Progress
from gpuinfra.runner.connection.known_hosts import is_own_machine
from gpuinfra.runner.connection.private_keys import identity_of, with_own_key
from gpuinfra.workbench import targets
from gpuinfra.workbench.targets import target_files

if TYPE_CHECKING:
    from gpuinfra.app.machine_tasks import ErrorCollector

# Enough to find a machine; nothing is created or changed.
FIND_SECONDS = 120.0


def named_machines(settings: Settings, words: Sequence[str], progress: Progress, errors: ErrorCollector) -> list[Named]:
    """Return all machines that the words mean, without duplicates. A wrong word or spec does not affect the others."""
    found: dict[tuple[str, str | None, str | None], Named] = {}
    for word in words:
        with errors.capture():
            for named in _meant(settings, word, progress, errors):
                found.setdefault((named.name.casefold(), named.group, named.subscription), named)
    return list(found.values())


def named_machine(settings: Settings, word: str, progress: Progress) -> Named:
    """Return the one machine that a word means. Raise Problem if it means several."""
    found = _meant(settings, word, progress)
    if len(found) == 1:
        return found[0]
    names = ", ".join(f"`{each.name}`" for each in found)
    note, help_line = f"`{word}` means {names}", "give the name of one of them"
    raise problem(Code.USAGE, "more than one machine", note, help_line, exit_code=Exit.USAGE)


def _meant(settings: Settings, word: str, progress: Progress, errors: ErrorCollector | None = None) -> list[Named]:
    described = [machine_of_spec(spec) for spec in specs_meant(settings, word, errors)]
    if described and not _may_name_another(word, described):
        return described
    session = open_session(settings, described[0].subscription if described else None, FIND_SECONDS, progress)
    with cloud_errors(f"looking for {word}"):
        return _located(session.cloud, word, described) or [_unseen(settings, session.cloud, word)]


def located(settings: Settings, cloud: Cloud, word: str, spec: Spec | None = None) -> Named:
    """Return the machine that a word means, perhaps this spec's. Raise Problem if neither specs nor Azure know it."""
    described = [machine_of_spec(spec)] if spec else []
    if described and not _may_name_another(word, described):
        return described[0]
    with cloud_errors(f"looking for {word}"):
        found = _located(cloud, word, described)
        if not found:
            raise unknown_machine(settings, word, cloud.fleet.machines())
    return found[0]


def machine_of_spec(spec: Spec) -> Named:
    """Return the machine of a spec."""
    return Named(spec.name, spec.group_name, spec.subscription, spec)


def _may_name_another(word: str, described: Sequence[Named]) -> bool:
    """Return whether the word matched by target name or folder, and may also be the name of another machine."""
    if is_path(word) or any(each.name.casefold() == word.casefold() for each in described):
        return False
    try:
        check_machine_name(word)
    except ValueError:
        return False
    return True


def _located(cloud: Cloud, word: str, described: Sequence[Named]) -> list[Named]:
    rows = cloud.fleet.machines()
    if not described:
        ref = locate(rows, word)
        return [Named(ref.name, ref.group)] if ref else []
    found = _own_name_first(word, described, rows)
    if len(found) > 1 and found[0] not in described:
        help_line = "give the file of the spec for its machine; for the other one, change `target.name` in that spec"
        raise ambiguous_name(word, [f"`{each.name}` in group `{each.group}`" for each in found], help_line)
    return found


def _own_name_first(word: str, described: Sequence[Named], rows: Sequence[dict[str, Any]]) -> list[Named]:
    """Return machines with the word as their own name, then existing machines of the specs; else those of the specs.

    A word can be one machine's target name and another's name. It must not stop the wrong one.
    """
    own = [Named(ref.name, ref.group, described[0].subscription) for ref in called(rows, word)]
    if not own:
        return list(described)
    return own + [
        each
        for each in described
        if any(ref.group.casefold() == str(each.group).casefold() for ref in called(rows, each.name))
    ]


def _unseen(settings: Settings, cloud: Cloud, word: str) -> Named:
    """Return a name without a VM, of which other resources may exist. Raise Problem if the name is invalid."""
    try:
        check_machine_name(word)
    except ValueError:
        raise unknown_machine(settings, word, cloud.fleet.machines()) from None
    return Named(word)


def unknown_machine(settings: Settings, word: str, rows: Sequence[dict[str, Any]] = ()) -> Problem:
    """Return the Problem for a word that means no machine, with the nearest match."""
    if target_files(settings.workspace, word):
        note = f"`{word}` is a target, and no machine that gpuinfra manages in this subscription belongs to it"
        help_line = f"`gpuinfra detach {quote(word)}` forgets the target; gpuinfra did not create its machine"
    else:
        note = f"`{word}` is not a spec, a folder of specs, a machine or a target"
        help_line = did_you_mean(word, _known(settings, rows)) or "`gpuinfra status` lists the machines"
    return problem(Code.NO_SUCH_MACHINE, "no such machine", note, help_line, exit_code=Exit.USAGE)


def _known(settings: Settings, rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    specs = [located.spec for located in load_paths([str(settings.workspace)]).specs]
    # If two words differ only in punctuation, `nearest` returns the last: the machine's own name.
    yield from (spec.target_name for spec in specs)
    yield from (spec.name for spec in specs)
    parts = [machine_of_row(row) for row in rows]
    yield from (part.ref.name for part in parts if owner_of(part) in {Owner.OURS, Owner.UNTAGGED})


def chosen(
    settings: Settings, words: Sequence[str], rows: Sequence[dict[str, Any]]
) -> tuple[set[tuple[str, str]], dict[str, Diagnostic], list[Diagnostic]]:
    """Return (name, group) of each listed machine that the words mean, then two kinds of errors.

    The first maps the names of machines that specs describe but the listing lacks. The second is for words that mean no
    machine.
    """
    found: set[tuple[str, str]] = set()
    absent, problems = dict[str, Diagnostic](), list[Diagnostic]()
    for word in words:
        if specs := specs_meant(settings, word):
            described = [machine_of_spec(spec) for spec in specs]
            meant = _own_name_first(word, described, rows) if _may_name_another(word, described) else described
            for each in meant:
                group, anywhere = str(each.group), called(rows, each.name)
                here = [ref for ref in anywhere if ref.group.casefold() == group.casefold()]
                found |= {(ref.name, ref.group) for ref in here}
                if not here:
                    absent[each.name] = _absent(each.name, group, [ref.group for ref in anywhere])
        elif refs := matching(rows, word):
            found |= {(ref.name, ref.group) for ref in refs}
        else:
            problems += unknown_machine(settings, word, rows).diagnostics
    return found, absent, problems


def _absent(name: str, group: str, elsewhere: Sequence[str]) -> Diagnostic:
    """Describe a machine that its spec describes but that is not in the spec's group."""
    note, help_line = (
        f"Azure has no machine `{name}` in group `{group}`, that of its spec",
        "`gpuinfra up SPEC` creates it",
    )
    if elsewhere:
        note = f"{note}; it has one in group `{elsewhere[0]}`"
        help_line = f"set `resourceGroup: {elsewhere[0]}` in the spec if it means that one, or else another `name`"
    return Diagnostic(Code.NO_SUCH_MACHINE, "no such machine", note=note, help=help_line)


@dataclass(frozen=True)
class Named:
    """A machine that a word on the command line means."""

    name: str
    group: str | None = None
    """None if neither a spec nor Azure has it: then nothing is known about the machine."""
    subscription: str | None = None
    spec: Spec | None = None
    """The machine's spec, if the word led to one."""


def target_named(settings: Settings, name: str) -> Target:
    """Return the target with this name: its address, user and host key.

    For our machines, Azure has the state and the current address. Any other target is what its file says.
    """
    spec = one_spec(settings, name) if is_path(name) else spec_named(settings.workspace, name)
    if spec is None and (attached := targets.find_target(settings.folder, name)):
        check_target(settings, attached)
        return with_own_key(with_checked_key(settings, _with_address(attached)))
    cloud = open_cloud(settings, spec.subscription if spec else None, FIND_SECONDS)
    named = located(settings, cloud, name, spec)
    spec = named.spec
    identity = identity_of(spec.admin.key(), settings.workspace) if spec else None
    found = find_target(cloud, named.name, named.group, ssh_port=cloud.ssh_port, identity=identity)
    found = replace(found, name=spec.target_name) if spec else found
    return with_own_key(check_host_key(settings, with_known_key(settings.workspace, found)))


def with_checked_key(settings: Settings, target: Target) -> Target:
    """Return the target of a file. Its key must be the known one of its name and of the machine that the file names.

    Only a machine that the user created or attached keeps its own name: in a foreign project, that may be the name of
    any other machine of the user.
    """
    named = check_host_key(settings, replace(target, machine=target.name), says="its target file")
    target = check_host_key(settings, target, says="its target file")
    return target if is_own_machine(target) else named


def target_of_vm(session: CloudSession, observed: Observed, public_key: str | None) -> Target:
    """Return the target of an observed machine, with the private key for the public one if it is here."""
    workspace = session.settings.workspace
    identity = identity_of(public_key, workspace) if public_key else None
    port, simulated = session.cloud.ssh_port, session.cloud.simulated
    return with_known_key(workspace, target_of(observed, ssh_port=port, identity=identity, simulated=simulated))


def with_known_key(workspace: Path, target: Target) -> Target:
    """Return the target with its host key. A machine that `up` did not create has none in its tags; its file may."""
    if target.host_key:
        return target
    attached = targets.find_target(workspace, target.name)
    return replace(target, host_key=attached.host_key) if attached else target


def _with_address(target: Target) -> Target:
    if target.address:
        return target
    raise problem(
        Code.USAGE,
        "no machine to log in to",
        f"the target `{target.name}` is of type `{target.type}`, and has no address",
        "`gpuinfra targets` lists the targets with their addresses",
        exit_code=Exit.USAGE,
    )


def bad_host_key(error: Exception) -> Problem:
    """Return the Problem for a machine whose tags have no valid host key."""
    return problem(
        Code.BAD_HOST_KEY,
        "no valid host key",
        str(error),
        "`gpuinfra attach` records the key of a machine that `gpuinfra up` did not create",
    )
