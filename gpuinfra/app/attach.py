"""Make an existing machine a target: check the options, SSH, Docker and GPU, and write its two files."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote

from gpuinfra.app.access import consent_to_replace, is_simulated
from gpuinfra.app.frontend import Frontend
from gpuinfra.app.host_keys import check_host_key, record_host_key
from gpuinfra.app.settings import Settings, require
from gpuinfra.app.workspace import Secret, read_password, secret_of
from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem, did_you_mean, listed, problem
from gpuinfra.models.consent import HostKeyDetails, Question
from gpuinfra.models.images import check_container_image
from gpuinfra.models.names import check_target_name
from gpuinfra.models.target import ASK, AttachResult, Checkup, Target, TargetCheck, is_host, is_user
from gpuinfra.runner.connection import passwords
from gpuinfra.runner.connection.handshake import fetch_host_key, host_and_port
from gpuinfra.runner.connection.known_hosts import ALGORITHMS, HostKey
from gpuinfra.runner.connection.ssh import SshConnection
from gpuinfra.runner.errors import ConnectError, HostKeyInvalid, HostKeyMismatch, KeyUnusable, LoginRefused, Unreachable
from gpuinfra.runner.readiness import examine
from gpuinfra.workbench.compute import joined_address, split_address
from gpuinfra.workbench.project import load_project
from gpuinfra.workbench.targets import check_destination, find_target, write_target

DOCKER, PLAIN = "remotedocker", "remote"
TYPES = (DOCKER, PLAIN)
USUAL_PORT = 22
# A variable or a `%` in a target's file would mean something else to other programs.
_PYTHON = r"(?:~?/)[^\x00-\x1f\x7f${}%]+"
_FINGERPRINT = r"SHA256:[A-Za-z0-9+/]{43}"


@dataclass(frozen=True)
class AttachOptions:
    """A machine, how to log in to it, and what to check."""

    name: str
    address: str
    port: int
    username: str
    type: str = DOCKER
    gpu: bool = True
    identity: str | None = None
    by_password: bool = False
    host_key: str | None = None
    """A public key, or its fingerprint."""
    image: str | None = None
    python: str | None = None
    """The path of the machine's Python for jobs; `~` is the home folder there."""

    @property
    def docker(self) -> bool:
        """Whether jobs run in containers."""
        return self.type == DOCKER

    @property
    def has_fingerprint(self) -> bool:
        """Whether `host_key` is only a fingerprint."""
        return self.host_key is not None and re.fullmatch(_FINGERPRINT, self.host_key) is not None

    def target(self, host_key: str, before: Target | None) -> Target:
        """Return the target for the login. Options that were not given keep their previous values."""
        said = {"type", *(["nvidia_docker"] if self.docker else [])}
        said |= {"identity", "password"} if self.identity or self.by_password else set()
        said |= {"base_docker_image"} if self.image else set()
        said |= {"python"} if self.python else set()
        keeps = before is not None and not self.identity and not self.by_password
        image = self.image or (before.base_docker_image if before else None)
        return Target(
            name=self.name,
            machine=self.name,
            type=self.type,
            address=self.address,
            port=self.port,
            username=self.username,
            host_key=host_key,
            identity=before.identity if before and keeps else self.identity,
            password=ASK if self.by_password else before.password if before and keeps else None,
            base_docker_image=image if self.docker else None,
            nvidia_docker=self.gpu,
            python=self.python or (before.python if before else None),
            explicit_fields=frozenset(said),
        )

    def command(self, host_key: str) -> str:
        """Return the same command with the host key."""
        words = ["gpuinfra", "attach", self.name, "--address", self.address, "--username", self.username]
        words += ["--port", str(self.port)] if self.port != USUAL_PORT else []
        words += ["--key", self.identity] if self.identity else []
        words += ["--password-stdin"] if self.by_password else []
        words += ["--type", self.type] if self.type != DOCKER else []
        words += ["--base-image", self.image] if self.image else []
        words += ["--python", self.python] if self.python else []
        words += [] if self.gpu else ["--no-gpu"]
        return shlex.join([*words, "--host-key", host_key])


def check_options(options: AttachOptions) -> None:
    """Raise Problem if an option breaks a rule that can be checked without the machine."""
    require(check_target_name, options.name, options.name, "attach")
    require(check_container_image, options.image, options.image or "", "attach")
    if options.type not in TYPES:
        help_line = did_you_mean(options.type, TYPES) or f"it can be {listed(TYPES)}"
        raise _wrong(Code.UNKNOWN_VALUE, "unknown type of target", f"there is no type `{options.type}`", help_line)
    if options.image and not options.docker:
        raise _usage("`--base-image` is for containers, and `--type remote` has none")
    if options.python and options.docker:
        raise _usage("`--python` is for jobs without a container: `--type remote`")
    if options.python is not None and not re.fullmatch(_PYTHON, options.python):
        note = f"`--python {options.python[:80]}`: expected a path on the machine"
        raise _wrong(Code.BAD_PATH, "invalid path", note, "as in `/opt/conda/bin/python`, `'~/env/bin/python'`")
    if options.identity and options.by_password:
        raise _usage("`--key` and `--password-stdin` exclude each other")
    if not is_user(options.username):
        raise _wrong(
            Code.BAD_USERNAME,
            "invalid user name",
            f"`{options.username}` is not a valid user name",
            "as in `azureuser`",
        )
    _check_host_key(options)


def read_address(address: str, port: int | None) -> tuple[str, int]:
    """Return host and port. The port can be in either argument."""
    host, inner = split_address(address)
    host = (host or "").removeprefix("[").removesuffix("]")
    said = inner if inner != USUAL_PORT or address.endswith(f":{inner}") else None
    if not 0 < inner < 65536:
        raise _wrong(Code.BAD_ADDRESS, "invalid address", f"`{address}`: there is no port {inner}", "as in `host:5022`")
    if said is not None and port is not None and said != port:
        raise _usage(f"`--address {address}` and `--port {port}` contradict each other")
    if not is_host(host):
        name = host.rpartition("@")[2]
        help_line = "give the user's name with `--username`" if is_host(name) else "as in `203.0.113.7` or `gpu.lab`"
        raise _wrong(Code.BAD_ADDRESS, "invalid address", f"`{address}` is neither a name nor an address", help_line)
    return host, port or inner


def read_identity(key: str) -> str:
    """Return the path of the private key. The path of its public half means the same."""
    try:
        path = Path(key).expanduser()
    except RuntimeError:  # `~user` for an unknown user
        path = Path(key)
    private = path.with_suffix("") if path.suffix == ".pub" else path
    if private.is_file():
        return str(private.absolute())
    note = f"`{private}` is not there" if private == path else f"`{private}`, which belongs to `{path}`, is not there"
    raise _wrong(Code.FILE_NOT_FOUND, "no such private key", note, "give the path of the private key, or leave it out")


def _check_host_key(options: AttachOptions) -> None:
    if options.host_key is None or options.has_fingerprint:
        return
    try:
        HostKey.parse(options.host_key)
    except HostKeyInvalid:
        note = f"`--host-key {options.host_key[:80]}` is neither a public key nor a fingerprint"
        help_line = "`ssh-ed25519 AAAA…`, or `SHA256:…` as `ssh-keygen -l` prints it"
        raise _wrong(Code.BAD_HOST_KEY, "invalid host key", note, help_line) from None


def _wrong(code: Code, summary: str, note: str, help_line: str) -> Problem:
    return problem(code, summary, note, help_line, exit_code=Exit.USAGE)


def _usage(note: str) -> Problem:
    return _wrong(Code.USAGE, "wrong usage", note, "`gpuinfra attach --help` shows how")


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
    checkup, python = _look(target, options, seconds, secret, frontend)
    if not checkup.passed:
        raise Problem(*(_failure(check) for check in checkup.checks if not check.passed))
    target = replace(target, python=python or target.python)
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


def _look(
    target: Target, options: AttachOptions, seconds: float, secret: Secret | None, frontend: Frontend
) -> tuple[Checkup, str | None]:
    """Log in and check the machine, reporting one line per check. Also return the absolute path of `--python`."""
    python = None
    step = f"ssh {options.name}"
    frontend.begin(step, f"logging in at {host_and_port(options.address, options.port)}")
    with (
        explained(options, step, frontend),
        contextlib.closing(SshConnection.open(target, seconds, secret, is_new=True)) as connection,
    ):
        frontend.begin(step, "looking at the machine")
        checkup = examine(connection, docker=options.docker, gpu=options.gpu, timeout=seconds)
        if options.python:
            python, check = _look_at_python(connection, options.python, seconds)
            checkup = replace(checkup, checks=(*(each for each in checkup.checks if each.name != "python"), check))
    for check in checkup.checks:
        tell = frontend.end if check.passed else frontend.fail
        tell(f"{check.name} {options.name}", check.found)
    return checkup, python


def _look_at_python(connection: SshConnection, path: str, seconds: float) -> tuple[str, TargetCheck]:
    """Return the absolute path of a Python on the machine, and whether it starts."""
    below_home = path.removeprefix("~/")
    place = shlex.quote(path) if below_home == path else f'"$HOME"/{shlex.quote(below_home)}'
    # The user's shell may be csh, so `sh` runs the line.
    found = connection.run(["sh", "-c", f'printf "%s\\n" {place}; exec {place} --version'], timeout=seconds)
    absolute, _, version = found.stdout.partition("\n")
    passed = found.exit_code == 0 and version.startswith("Python 3")
    said = (version or found.stderr).strip().partition("\n")[0] or "it does not start"
    help_line = "give a path on the machine; quote a `~`, which your shell replaces: `'~/env/bin/python'`"
    return absolute, TargetCheck("python", passed, f"{said} ({absolute})", None if passed else help_line)


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
