"""Make an existing machine a target: check SSH, Docker and GPU, and write its two files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from shlex import quote

from gpuinfra.app.access import consent_to_replace, is_simulated
from gpuinfra.app.attach_options import AttachOptions
from gpuinfra.app.frontend import Frontend
from gpuinfra.app.host_keys import check_host_key, record_host_key
from gpuinfra.app.passwords import Secret, read_password, secret_of
from gpuinfra.app.settings import Settings
from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem, problem
from gpuinfra.models.events import HostKeyDetails, Question
from gpuinfra.models.results import AttachResult
from gpuinfra.models.target import Checkup, Target, TargetCheck
from gpuinfra.runner.connection import passwords
from gpuinfra.runner.connection.handshake import fetch_host_key, host_and_port
from gpuinfra.runner.connection.host_key import ALGORITHMS, HostKey
from gpuinfra.runner.connection.ssh import SshConnection
from gpuinfra.runner.errors import ConnectError, HostKeyInvalid, HostKeyMismatch, KeyUnusable, LoginRefused, Unreachable
from gpuinfra.runner.readiness import examine
from gpuinfra.workbench.compute import joined_address
from gpuinfra.workbench.project import load_project
from gpuinfra.workbench.targets import check_destination, find_target, write_target

SUMMARIES = {
    "ssh": "this machine cannot run jobs",
    "docker": "Docker does not work",
    "nvidia-runtime": "containers get no GPU",
    "gpu": "the GPU does not work",
    "python": "no Python 3",
}
NEEDS_GPU = ("nvidia-runtime", "gpu")


def attach(settings: Settings, options: AttachOptions, seconds: float, frontend: Frontend) -> AttachResult:
    """Check the machine, write its target files, and return the result. Raise Problem if a check fails."""
    workspace = settings.folder
    before = find_target(workspace, options.name)
    if before and not before.address:
        raise _taken(before)
    check_destination(load_project(workspace), options.name)
    if before and not options.host_key:
        check_host_key(settings, before, says="its target file")
    # Read the password before any connection, so that the user does not wait to type it.
    given = Secret(lambda: read_password(frontend)) if options.by_password else None
    if given:
        given()
    trusted = trusted_key(options, before, settings, seconds, frontend)
    target = options.target(str(trusted), before)
    secret = given or _secret(options, target, frontend)
    checkup = _look(target, options, seconds, secret, frontend)
    if not checkup.passed:
        raise Problem(*(_failure(check) for check in checkup.checks if not check.passed))
    target = replace(target, simulated=_is_simulated(target, before, checkup))
    if not options.host_key:  # by now the machine has shown whether it is simulated
        check_host_key(settings, target, says=joined_address(target.address, target.port))
    consent_to_replace(settings, workspace, target.name, frontend, simulated=target.simulated)
    target, files = _write(workspace, target, before, secret)
    record_host_key(target, f"attach:{joined_address(target.address, target.port)}", frontend)
    fingerprint = HostKey.parse(target.host_key).fingerprint
    return AttachResult(target, fingerprint, checkup, tuple(str(file) for file in files))


def _taken(before: Target) -> Problem:
    """Return the Problem for a name that belongs to a local target: `attach` does not replace one."""
    note = f"`{before.name}` is a target of type `{before.type}`, on this computer"
    help_line = f"give another name, or `gpuinfra detach {quote(before.name)}` first"
    return problem(Code.FILE_EXISTS, "the name is taken", note, help_line, exit_code=Exit.USAGE)


def _is_simulated(target: Target, before: Target | None, checkup: Checkup) -> bool:
    """Return whether the GPU is simulated. Without a GPU, a machine with the same host key stays what it was."""
    if checkup.gpu:
        return checkup.gpu.simulated
    return before is not None and before.simulated and before.host_key == target.host_key


def _secret(options: AttachOptions, target: Target, frontend: Frontend) -> Secret | None:
    if options.identity:
        return None  # a user who names a key wants an error if it does not work
    return secret_of(target, frontend, can_ask=frontend.can_ask)


def _look(target: Target, options: AttachOptions, seconds: float, secret: Secret | None, frontend: Frontend) -> Checkup:
    """Log in and check the machine, reporting one line per check."""
    step = f"ssh {options.name}"
    frontend.begin(step, f"logging in at {host_and_port(options.address, options.port)}")
    with (
        explained(options, step, frontend),
        contextlib.closing(SshConnection.open(target, seconds, secret, is_new=True)) as connection,
    ):
        frontend.begin(step, "looking at the machine")
        checkup = examine(connection, docker=options.docker, gpu=options.gpu, timeout=seconds)
    for check in checkup.checks:
        tell = frontend.end if check.passed else frontend.fail
        tell(f"{check.name} {options.name}", check.found)
    return checkup


def _failure(check: TargetCheck) -> Diagnostic:
    without = "; or attach the machine without it: `--no-gpu`" if check.name in NEEDS_GPU and check.help else ""
    help_line = f"{check.help}{without}" if check.help else "fix the problem above, then attach again"
    return Diagnostic(Code.UNFIT_MACHINE, SUMMARIES[check.name], note=check.found, help=help_line)


def _write(workspace: Path, target: Target, before: Target | None, secret: Secret | None) -> tuple[Target, list[Path]]:
    """Store the password, then write the files that refer to it."""
    # An interrupted keyring call may still have stored the password.
    reference = passwords.reference_to(target.name) if secret else None
    try:
        reference = secret.keep(target) if secret else None
        files = write_target(workspace, replace(target, password=reference))
    except BaseException as error:
        # Also after Ctrl-C: a new password without a file that refers to it must not stay.
        _forget(replace(target, password=reference), unless=before)
        if isinstance(error, OSError | ValueError):
            raise _unwritable(error) from None
        raise
    target = replace(target, password=reference)
    if before:
        _forget(before, unless=target)
    return target, files


def _unwritable(error: Exception) -> Problem:
    note = f"the machine can be used, but its target files cannot be written: {error}"
    help_line = "look at the folder `aml_config` of the workspace"
    return problem(Code.FILE_UNWRITABLE, "file cannot be written", note, help_line)


def _forget(target: Target, *, unless: Target | None) -> None:
    """Delete a password that no file refers to, unless the other target uses it as well."""
    kept = passwords.keyring_entry(target)
    if kept and (unless is None or kept != passwords.keyring_entry(unless)):
        passwords.delete_password(*kept)


def trusted_key(
    options: AttachOptions, before: Target | None, settings: Settings, seconds: float, frontend: Frontend
) -> HostKey:
    """Return the host key that the machine must show: from the options, the target file, or the user's consent."""
    step = f"ssh {options.name}"
    with explained(options, step, frontend):
        if options.host_key and not options.has_fingerprint:
            return HostKey.parse(options.host_key)
        if before and before.host_key and not options.host_key:
            return HostKey.parse(before.host_key)
        frontend.begin(step, f"asking {host_and_port(options.address, options.port)} for its host key")
        if options.host_key:
            return _key_with(options.host_key, options, seconds)
        shown = fetch_host_key(options.address, options.port, seconds)
    found = replace(options.target(str(shown), None), simulated=is_simulated(settings))
    check_host_key(settings, found, says=host_and_port(options.address, options.port))
    _consent(shown, options, settings, frontend)
    return shown


@contextmanager
def explained(options: AttachOptions, step: str, frontend: Frontend) -> Iterator[None]:
    """Convert connection errors to Problems."""
    try:
        yield
    except ConnectError as error:
        frontend.fail(step, str(error))
        raise Problem(_diagnostic(error, options)) from error


def _key_with(fingerprint: str, options: AttachOptions, seconds: float) -> HostKey:
    """Return the machine's host key with this fingerprint. It may have one key per kind, and shows one at a time."""
    best = fetch_host_key(options.address, options.port, seconds)
    if best.fingerprint == fingerprint:
        return best
    for kind in ALGORITHMS:
        if kind == best.kind:
            continue
        try:
            shown = fetch_host_key(options.address, options.port, seconds, [kind])
        except Unreachable:
            continue  # the machine has no key of this kind
        if shown.fingerprint == fingerprint:
            return shown
    raise HostKeyMismatch(host_and_port(options.address, options.port), fingerprint, best.fingerprint)


def _consent(shown: HostKey, options: AttachOptions, settings: Settings, frontend: Frontend) -> None:
    where = host_and_port(options.address, options.port)
    if settings.yes:
        frontend.note(f"{where} has the host key {shown.fingerprint} ({shown.kind}), accepted unchecked: --yes")
        return
    if frontend.can_ask:
        details = HostKeyDetails(where, shown.kind, shown.fingerprint)
        if frontend.confirm(Question("Is this the machine's own key?", details)):
            return
        reason = "it was not accepted"
    else:
        reason = "there is no terminal to ask"
    raise problem(
        Code.UNKNOWN_HOST_KEY,
        "unknown host key",
        f"{where} shows {shown.fingerprint} ({shown.kind}), and {reason}; nothing was written",
        f"compare it with what the machine itself says (`ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub`), "
        f"then: `{options.command(shown.fingerprint)}`",
        exit_code=Exit.USAGE,
    )


def _diagnostic(error: ConnectError, options: AttachOptions) -> Diagnostic:
    note = f"{error}; nothing was written"
    if isinstance(error, HostKeyMismatch):
        known = options.command(error.shown) if error.shown else options.command("KEY")
        help_line = f"{error.help}. If you know that the machine has a new key: `{known}`"
        return Diagnostic(Code.OTHER_HOST_KEY, "the machine shows another host key", note=note, help=help_line)
    if isinstance(error, HostKeyInvalid):
        help_line = "give the right one with `--host-key`, or remove `hostKey` from the target's file"
        return Diagnostic(Code.BAD_HOST_KEY, "no valid host key", note=note, help=help_line)
    if isinstance(error, LoginRefused):
        help_line = _help_with_login(error, options)
        return Diagnostic(Code.LOGIN_REFUSED, "the machine refuses the login", note=note, help=help_line)
    help_line = error.help or "check the address and port, and that the machine is on"
    return Diagnostic(Code.NO_ANSWER, "the machine cannot be reached", note=note, help=help_line)


def _help_with_login(error: LoginRefused, options: AttachOptions) -> str:
    if error.help and (options.by_password or (options.identity and isinstance(error, KeyUnusable))):
        return error.help
    if options.identity:
        return f"is its public key in `~{options.username}/.ssh/authorized_keys` there? Otherwise give another `--key`"
    return "give the private key with `--key`, or a password with `--password-stdin`"
