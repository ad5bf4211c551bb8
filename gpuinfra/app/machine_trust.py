"""Whether `up` may use the machine that has the name in a spec: by its host key, or by the user's consent."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gpuinfra.app.host_keys import check_host_key, keys_in_files, pending, record_host_key
from gpuinfra.diagnostics import Code, Diagnostic, Problem
from gpuinfra.models.events import Question

if TYPE_CHECKING:
    from gpuinfra.app.frontend import Frontend
    from gpuinfra.app.settings import Settings
    from gpuinfra.models.target import Target
    from gpuinfra.provision.up import FoundMachine


@dataclass
class MachineTrust:
    """Checks the host keys of one `up`, and records the key of a machine that it creates."""

    settings: Settings
    named: Target
    """The names of the machine and its target, with the host key that a new machine gets."""
    source: str
    progress: Frontend
    accepted: str | None = None
    """The host key, or its fingerprint, that the user accepts."""
    _checked: set[str] = field(default_factory=set)

    def check_found(self, found: FoundMachine) -> None:
        """Raise a Problem if a machine that is there must not be used, or replaced."""
        target = replace(self.named, host_key=found.host_key)
        if self.accepted or not found.is_replaced:
            check_host_key(self.settings, target, accepted=self.accepted)
        self._require_consent(target, found.created)
        self._checked.add(found.host_key)

    def record_pending(self, key: str) -> None:
        """Record the key of a machine that is about to be created."""
        record_host_key(replace(self.named, host_key=key), pending(self.source), self.progress)

    def check_target(self, target: Target) -> None:
        """Raise a Problem if the machine is neither new nor checked: another `up` was quicker."""
        if target.host_key in {self.named.host_key, *self._checked}:
            return
        check_host_key(self.settings, target, accepted=self.accepted)
        self._require_consent(target, "")

    def _require_consent(self, target: Target, created: str) -> None:
        if self.accepted is None:
            _require_known_machine(self.settings, target, self.progress, created)


def _require_known_machine(settings: Settings, target: Target, progress: Frontend, created: str) -> None:
    """Return if this computer has used the machine before, or the user consents to use it; else raise a Problem.

    Someone else may have created it under the name in a spec, to receive the user's jobs and secrets.
    """
    from gpuinfra.runner.machine.connection import HostKeyInvalid
    from gpuinfra.runner.machine.host_key import HostKey
    from gpuinfra.runner.machine.known_keys import recorded_keys

    try:
        fingerprint = HostKey.parse(target.host_key).fingerprint
    except HostKeyInvalid:
        return  # the caller reports an invalid key
    if recorded_keys(target) or keys_in_files(settings, target):
        return
    since = f"; created {created.partition('.')[0]}" if created else ""
    found = f"exists, and this computer has not used it before; host key {fingerprint}{since}"
    if settings.yes:
        progress.note(f"{target.machine} {found}; used because of --yes")
        return
    if progress.can_ask and progress.confirm(Question("Use this machine?", f"{target.machine} {found}")):
        return
    summary, note = "the machine is not known here", f"`{target.machine}` {found}; nothing was sent to it"
    help_line = (
        "someone else may have created it under this name. If the key is the right one, accept it: "
        f"`gpuinfra up SPEC --host-key {fingerprint}`; `--yes` accepts any key"
    )
    raise Problem(Diagnostic(Code.UNKNOWN_HOST_KEY, summary, note=note, help=help_line))
