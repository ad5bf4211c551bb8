"""Compare host keys of machines with those known to this computer, and record those of our machines."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuinfra.app.frontend import Frontend, ask_or_refuse
from gpuinfra.app.settings import Settings
from gpuinfra.diagnostics import Code, Problem, problem
from gpuinfra.models.consent import Question
from gpuinfra.models.target import Target
from gpuinfra.runner.connection.known_hosts import (
    FOLDER,
    PENDING,
    HostKey,
    check_known_key,
    is_same_name,
    recorded_keys,
    target_source,
)
from gpuinfra.runner.connection.openssh import SshFiles
from gpuinfra.runner.errors import HostKeyChanged, HostKeyInvalid
from gpuinfra.workbench.targets import find_target

if TYPE_CHECKING:
    from gpuinfra.provision.up import FoundMachine


def check_host_key(settings: Settings, target: Target, *, says: str = "Azure", accepted: str | None = None) -> Target:
    """Return the target if its host key is known or no key is known; raise Problem with both fingerprints otherwise.

    A key or fingerprint that the user accepted takes precedence. Then the key recorded on this computer applies, and
    without one the key in the target file.
    """
    try:
        check_known_key(target, says, keys_in_files(settings, target), accepted)
    except HostKeyInvalid:
        return target  # the caller reports an invalid key
    except HostKeyChanged as error:
        summary = "the machine's host key has changed"
        raise problem(Code.OTHER_HOST_KEY, summary, str(error), error.help) from error
    return target


def keys_in_files(settings: Settings, target: Target) -> list[HostKey]:
    """Return the host key in the target's file, if there is one."""
    # The name may come from a tag, which others can write, so look for the default name as well.
    names = (target.name, target.machine.replace("-", "_"))
    attached = next((found for name in names if (found := find_target(settings.workspace, name))), None)
    if attached and attached.simulated == target.simulated:
        with suppress(HostKeyInvalid):
            return [HostKey.parse(attached.host_key)]
    return []


def record_host_key(target: Target, source: str, frontend: Frontend) -> None:
    """Record the host key of a machine that the user created or attached, so that no other machine can take its name.

    If its target has another name, record the key for that name, too.
    """
    try:
        own_ssh_files().remember(target, source)
        if PENDING not in source and not is_same_name(target.machine, target.name):
            named = replace(target, machine=target.name)
            own_ssh_files().remember(named, target_source(target, source) if source else "")
    except HostKeyInvalid:
        return  # a machine deployed from an exported template, before `attach`
    except (OSError, Problem) as error:
        reason = error.strerror if isinstance(error, OSError) else error.diagnostics[0].summary
        frontend.note(f"the host key of {target.machine} cannot be recorded on this computer: {reason}")


def record_first_use(target: Target, frontend: Frontend) -> None:
    """Record the host key of a machine that only a file names, so that a changed file cannot lead elsewhere."""
    names = (target.machine, target.name)
    if target.address and not all(recorded_keys(replace(target, machine=name)) for name in names):
        record_host_key(target, "", frontend)


def forget_host_key(target: Target, source: str) -> None:
    """Forget the host key of a deleted machine."""
    with suppress(OSError, Problem):
        own_ssh_files().forget(target, source)


def source_of_up(subscription: str, group: str) -> str:
    """Return the mark for a key that `up` recorded for a machine in this group."""
    return f"up:{subscription}/{group}".casefold()


def pending(source: str) -> str:
    """Return the mark for a key whose machine is about to be created; another `up` may create it at the same time."""
    return f"{source}{PENDING}{os.urandom(4).hex()}"


def own_ssh_files() -> SshFiles:
    """Return the files that hold this user's host keys."""
    try:
        return SshFiles(Path(FOLDER).expanduser())
    except RuntimeError as error:
        note = f"host keys are kept in `{FOLDER}`, and HOME is not set"
        raise problem(Code.FILE_NOT_FOUND, "no home folder", note, "set HOME") from error


@dataclass
class MachineTrust:
    """The host key checks of one `up`, which also record the key of a machine that it creates."""

    settings: Settings
    named: Target
    """The names of machine and target, with the host key for a new machine."""
    source: str
    frontend: Frontend
    accepted: str | None = None
    """The host key or fingerprint that the user accepts."""
    _checked: set[str] = field(default_factory=set)

    def check_found(self, found: FoundMachine) -> None:
        """Raise Problem if an existing machine must not be used or replaced."""
        target = replace(self.named, host_key=found.host_key)
        check_host_key(self.settings, target, accepted=self.accepted)
        self._require_consent(target, found.created)
        self._checked.add(found.host_key)

    def record_pending(self, key: str) -> None:
        """Record the key of a machine that is about to be created."""
        record_host_key(replace(self.named, host_key=key), pending(self.source), self.frontend)

    def check_target(self, target: Target) -> None:
        """Raise Problem if the machine is neither new nor checked, because another `up` created it first."""
        if target.host_key in {self.named.host_key, *self._checked}:
            return
        check_host_key(self.settings, target, accepted=self.accepted)
        self._require_consent(target, "")

    def _require_consent(self, target: Target, created: str) -> None:
        if self.accepted is None:
            _require_known_machine(self.settings, target, self.frontend, created)


def _require_known_machine(settings: Settings, target: Target, frontend: Frontend, created: str) -> None:
    """Return if this computer has used the machine before or the user consents; else raise Problem.

    Someone else may have created it under the name in a spec, to receive the user's jobs and secrets.
    """
    try:
        fingerprint = HostKey.parse(target.host_key).fingerprint
    except HostKeyInvalid:
        return  # the caller reports an invalid key
    recorded = recorded_keys(target)
    if any(known.is_own for known in recorded):
        return
    # A file in the project is not consent, nor is a key that `ssh` or a job recorded for such a file.
    here = (
        "you neither created nor attached it on this computer" if recorded else "this computer has not used it before"
    )
    since = f"; created {created.partition('.')[0]}" if created else ""
    found = f"exists, and {here}; host key {fingerprint}{since}"
    if settings.yes:
        frontend.note(f"{target.machine} {found}; used because of --yes")
        return
    summary, note = "the machine is not known here", f"`{target.machine}` {found}; nothing was sent to it"
    help_line = (
        "someone else may have created it under this name. If the key is the right one, accept it: "
        f"`gpuinfra up SPEC --host-key {fingerprint}`; `--yes` accepts any key"
    )
    refusal = problem(Code.UNKNOWN_HOST_KEY, summary, note, help_line)
    ask_or_refuse(settings, frontend, Question("Use this machine?", f"{target.machine} {found}"), refusal)
