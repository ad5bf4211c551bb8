"""Meeting a machine for the first time: whose host key to trust, and what to say when it cannot be reached."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem
from gpuinfra.models.events import HostKeyDetails, Question

if TYPE_CHECKING:
    from gpuinfra.app.attach_options import AttachOptions
    from gpuinfra.app.frontend import Frontend
    from gpuinfra.app.settings import Settings
    from gpuinfra.models.target import Target
    from gpuinfra.runner.machine.connection import ConnectError, LoginRefused
    from gpuinfra.runner.machine.host_key import HostKey


def trusted_key(
    wish: AttachOptions, before: Target | None, settings: Settings, seconds: float, progress: Frontend
) -> HostKey:
    """The host key that the machine has to show: the one that is said, or known, or that somebody consents to."""
    from gpuinfra.runner.machine.handshake import first_meeting, place
    from gpuinfra.runner.machine.host_key import HostKey

    step = f"ssh {wish.name}"
    with explained(wish, step, progress):
        if wish.host_key and not wish.has_fingerprint:
            return HostKey.parse(wish.host_key)
        if before and before.host_key and not wish.host_key:
            return HostKey.parse(before.host_key)
        progress.begin(step, f"asking {place(wish.address, wish.port)} for its host key")
        if wish.host_key:
            return _key_with(wish.host_key, wish, seconds)
        shown = first_meeting(wish.address, wish.port, seconds)
    _consent(shown, wish, settings, progress)
    return shown


@contextmanager
def explained(wish: AttachOptions, step: str, progress: Frontend) -> Iterator[None]:
    """What keeps us from a machine, in the words of this program."""
    from gpuinfra.runner.machine.connection import ConnectError

    try:
        yield
    except ConnectError as error:
        progress.fail(step, str(error))
        raise Problem(_diagnostic(error, wish)) from error


def _key_with(fingerprint: str, wish: AttachOptions, seconds: float) -> HostKey:
    """The machine's key that has this fingerprint. It may have a key of each kind, and shows one at a time."""
    from gpuinfra.runner.machine.connection import HostKeyMismatch, Unreachable
    from gpuinfra.runner.machine.handshake import first_meeting, place
    from gpuinfra.runner.machine.host_key import ALGORITHMS

    best = first_meeting(wish.address, wish.port, seconds)
    if best.fingerprint == fingerprint:
        return best
    for kind in ALGORITHMS:
        if kind == best.kind:
            continue
        try:
            shown = first_meeting(wish.address, wish.port, seconds, [kind])
        except Unreachable:
            continue  # it has no key of this kind
        if shown.fingerprint == fingerprint:
            return shown
    raise HostKeyMismatch(place(wish.address, wish.port), fingerprint, best.fingerprint)


def _consent(shown: HostKey, wish: AttachOptions, settings: Settings, progress: Frontend) -> None:
    from gpuinfra.runner.machine.handshake import place

    where = place(wish.address, wish.port)
    if settings.yes:
        progress.note(f"{where} has the host key {shown.fingerprint} ({shown.kind}), taken unseen: --yes")
        return
    if progress.can_ask:
        details = HostKeyDetails(where, shown.kind, shown.fingerprint)
        if progress.confirm(Question("Is this the machine's own key?", details)):
            return
        reason = "it was not accepted"
    else:
        reason = "there is no terminal to ask"
    raise Problem(
        Diagnostic(
            Code.UNKNOWN_HOST_KEY,
            "unknown host key",
            note=f"{where} shows {shown.fingerprint} ({shown.kind}), and {reason}; nothing was written",
            help=f"compare it with what the machine itself says (`ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub`), "
            f"then: `{wish.command(shown.fingerprint)}`",
        ),
        exit_code=Exit.USAGE,
    )


def _diagnostic(error: ConnectError, wish: AttachOptions) -> Diagnostic:
    from gpuinfra.runner.machine.connection import HostKeyInvalid, HostKeyMismatch, LoginRefused

    note = f"{error}; nothing was written"
    if isinstance(error, HostKeyMismatch):
        known = wish.command(error.shown) if error.shown else wish.command("KEY")
        help_line = f"{error.help}. If you know that the machine has got a new key: `{known}`"
        return Diagnostic(Code.OTHER_HOST_KEY, "the machine shows another host key", note=note, help=help_line)
    if isinstance(error, HostKeyInvalid):
        help_line = "say the right one by `--host-key`, or take `hostKey` out of the target's file"
        return Diagnostic(Code.BAD_HOST_KEY, "no valid host key", note=note, help=help_line)
    if isinstance(error, LoginRefused):
        help_line = _help_with_login(error, wish)
        return Diagnostic(Code.LOGIN_REFUSED, "the machine does not let us in", note=note, help=help_line)
    help_line = error.help or "look whether it is the right address and port, and whether the machine is on"
    return Diagnostic(Code.NO_ANSWER, "the machine cannot be reached", note=note, help=help_line)


def _help_with_login(error: LoginRefused, wish: AttachOptions) -> str:
    from gpuinfra.runner.machine.connection import KeyUnusable

    if error.help and (wish.by_password or (wish.identity and isinstance(error, KeyUnusable))):
        return error.help
    if wish.identity:
        return (
            f"is its public half in `~{wish.username}/.ssh/authorized_keys` on the machine? else give another `--key`"
        )
    return "give the private key by `--key`, or a password by `--password-stdin`"
