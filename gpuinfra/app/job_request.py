"""The request for a job, and its resolution to a JobSpec: `resolve_job`."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from gpuinfra.app.frontend import ask_or_refuse
from gpuinfra.diagnostics import Code, Exit, Problem, Severity, did_you_mean, problem

if TYPE_CHECKING:
    from gpuinfra.app.frontend import Frontend
    from gpuinfra.app.settings import Settings
    from gpuinfra.app.workspace import Workspace
    from gpuinfra.models.job import Job
    from gpuinfra.models.plan import ResolvedJob
    from gpuinfra.models.spec import Spec
    from gpuinfra.models.target import Target
    from gpuinfra.runner.job_spec import JobSpec


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# More than real variables ever need, and a limit for endless files.
MAX_FILE_BYTES = 4 << 20


class OnInterrupt(StrEnum):
    """What Ctrl-C does to a running job."""

    ASK = "ask"
    DETACH = "detach"
    CANCEL = "cancel"


@dataclass(frozen=True)
class JobRequest:
    """The options of a job, as given."""

    script: str | None
    words: Sequence[str] = ()
    command: Sequence[str] = ()
    """A program and its arguments, instead of a script."""
    gpus: str | None = None
    memory: str | None = None
    shm_size: str | None = None
    timeout: str | None = None
    keep_on_failure: str | None = None
    """Only for `run`."""
    environment: Sequence[str] = ()
    environment_files: Sequence[Path] = ()
    secrets: Sequence[str] = ()
    build_secrets: Sequence[str] = ()
    shared_directory: str | None = None
    require_gpu_use: bool = False
    rebuild: bool = False
    send_credentials: bool = False
    detach: bool = False


def resolve_job(workspace: Workspace, configuration: str, request: JobRequest) -> tuple[JobSpec, Spec | None]:
    """Return the job for a request and a run configuration, and the machine's spec if it has one.

    Raise Problem for any error in project, spec or request, before anything is sent.
    """
    from gpuinfra.app.workspace import with_spec
    from gpuinfra.runner.resolve import read_job

    job = read_job(workspace.path, configuration)
    check_job_destination(workspace.path, job)
    job, spec = with_spec(workspace, job)
    return with_request(with_environment_here(workspace.path, job), request, spec), spec


def with_environment_here(workspace: Path, job: JobSpec) -> JobSpec:
    """Return a job on this computer with the environment of the workspace's job: it runs here as on the machine.

    That is the job of the workspace's only spec, or of its `gpu.yaml`. Without a container, this computer's own Python
    stands for an image.
    """
    from gpuinfra.app.specs import main_spec
    from gpuinfra.runner.job_environment import with_environment

    if job.target.address:
        return job
    spec = main_spec(workspace)
    declared = spec.job.environment if spec and spec.job else None
    if declared is None or (declared.needs_container and not job.in_container):
        return job
    return with_environment(job, declared)


def resolve_job_of_machine(workspace: Path, spec: Spec, request: JobRequest) -> JobSpec:
    """Return the job for a request on a spec's machine, which may not exist yet."""
    from gpuinfra.app.workspace import with_options
    from gpuinfra.runner.resolve import read_job
    from gpuinfra.workbench.project import load_project
    from gpuinfra.workbench.targets import check_destination

    check_destination(load_project(workspace), spec.target_name)
    return with_request(with_options(read_job(workspace, spec.target_name, spec), spec), request, spec)


def describe_job(workspace: Path, spec: Spec) -> ResolvedJob | None:
    """Return what `run` would run with this spec and the workspace's files; None if the spec has no job.

    A problem is part of the answer, because it does not concern the machine.
    """
    from gpuinfra.models.job import OUTPUTS
    from gpuinfra.models.plan import ResolvedJob

    declared = spec.job
    if declared is None:
        return None
    seconds = declared.timeout.total_seconds() if declared.timeout else None
    secrets = {name: _value_here(name) is not None for name in declared.secrets}
    found = ResolvedJob(
        target=spec.target_name,
        type=spec.target.type,
        variables=dict(declared.env),
        secrets=tuple(secrets),
        missing_secrets=tuple(name for name, is_set in secrets.items() if not is_set),
        outputs=tuple(f"{name}/" for name in (OUTPUTS, *declared.more_outputs)),
        ports=dict(declared.ports),
        timeout=seconds,
        keep_on_failure=declared.keep_on_failure.total_seconds() if declared.keep_on_failure else None,
    )
    try:
        job = _resolve_declared(workspace, spec, declared)
    except Problem as problem:
        first = problem.diagnostics[0]
        detail = first.note or first.label
        return replace(found, problem=f"{first.summary}: {detail}" if detail else first.summary)
    return replace(
        found,
        command=tuple(map(_redacted, job.command(["python"]))) if job.title else (),
        title=_redacted(job.title),
        type=job.target.type,
        image=job.base_image if job.in_container and not job.dockerfile else None,
        packages=job.packages.path if job.packages and job.installs_packages else None,
        dockerfile=job.dockerfile.path if job.dockerfile else None,
        needs_gpu=job.requires_gpu,
        variables=_shown({name: value for name, value in job.variables.items() if name not in secrets}),
    )


def _shown(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables without the secrets that a run configuration may have among them: plans are in CI logs."""
    from gpuinfra.models.job import PLAIN_VARIABLE

    is_plain = re.compile(PLAIN_VARIABLE).fullmatch
    return {name: _redacted(value) if is_plain(name) else "***" for name, value in variables.items()}


def _redacted(text: str) -> str:
    from gpuinfra.parse.source import masked

    return "\n".join(map(masked, text.splitlines()))


def _resolve_declared(workspace: Path, spec: Spec, declared: Job) -> JobSpec:
    """Return the job of a spec without the values of its secrets. It has no title if nothing names its command."""
    from gpuinfra.app.workspace import with_options
    from gpuinfra.runner.resolve import read_job, with_spec_job

    job = with_spec_job(with_options(read_job(workspace, spec.target_name, spec), spec), spec)
    if job.script or declared.command is not None:
        job = with_command(job, JobRequest(None), declared)
    _check_hidden_gpus(job)
    return job


def with_request(job: JobSpec, request: JobRequest, spec: Spec | None = None) -> JobSpec:
    """Return the job with what the machine's spec and a request say. Raise Problem if they do not fit together.

    The request takes precedence over the run configuration, from which `job` was read, and that over the spec.
    """
    from gpuinfra.runner.job_spec import parse_gpus
    from gpuinfra.runner.resolve import with_spec_job

    declared = spec.job if spec else None
    job = with_command(with_spec_job(job, spec), request, declared)
    gpus = parse_gpus(request.gpus) if request.gpus is not None else None
    if request.gpus is not None and gpus is None:
        help_line = "`all`, how many as `2`, or which ones as `0,1` or `device=0`"
        raise usage("invalid GPUs", f"`--gpus {request.gpus}`", help_line)
    plain, hidden = variables_of(request, declared.secrets if declared else ())
    _check_container_options(job, request)
    job = replace(job, requested_gpus=gpus, more_environment=plain, secrets=hidden)
    _check_hidden_gpus(job)
    if job.share and job.share_problem and not request.shared_directory:
        raise Problem(job.share_problem, exit_code=Exit.USAGE)
    job = replace(
        job,
        memory=size_of("--memory", request.memory),
        shm_size=size_of("--shm-size", request.shm_size) or job.shm_size,
        timeout=_timeout_of(request, declared),
        keep_on_failure=_look_of(request, declared),
        build_secrets=build_secrets_of(request.build_secrets),
        share=request.shared_directory or job.share,
        is_share_chosen=bool(request.shared_directory),
        require_gpu_use=request.require_gpu_use,
        rebuild=request.rebuild,
        send_credentials=request.send_credentials,
    )
    if request.detach:
        _check_detach(job)
    check_packages(job)
    if request.detach and request.require_gpu_use:
        note = "`--require-gpu-use` is checked when the job ends, and `--detach` leaves before"
        raise usage("an option without effect", note, "leave one of them out")
    return job


def with_command(job: JobSpec, request: JobRequest, declared: Job | None) -> JobSpec:
    """Return the job with what it runs: the request's script or command, else the run configuration's, else the spec's.

    Raise Problem if there is none, or if the project does not have the file that it starts.
    """
    from gpuinfra.runner.command import interpreter_of, project_file, shell_command
    from gpuinfra.runner.resolve import script_path
    from gpuinfra.workbench.runconfig import PYTHON

    program = tuple(request.command)
    if not program and not (request.script or job.script) and declared and declared.command is not None:
        line = declared.command
        program = shell_command(line) if isinstance(line, str) else line
    if program and not program[0].strip():
        raise usage("no command", "the program of the command is an empty text", "for example `-- python -m train`")
    if program:
        script = project_file(job.project, program, Path.cwd())
        title = program[2] if program == shell_command(program[-1]) else shlex.join(program)
        job = replace(job, program=program, script=script, title=title)
    elif script := request.script or job.script:
        script = script_path(job.project, script, Path.cwd())
        interpreter = interpreter_of(job.project, script) if job.framework == PYTHON else ()
        job = replace(job, script=script, interpreter=interpreter, words=tuple(request.words), title=script)
    else:
        help_line = "name a script (`train.py`) or a command (`-- python -m train`), or set `job.command` in the spec"
        raise usage("no command", "neither the command line nor a file says what to run", help_line)
    folder = job.script.partition("/")[0]
    if "/" in job.script and folder in {"outputs", *job.more_outputs}:
        from gpuinfra.runner.resolve import script_not_sent

        raise script_not_sent(job.script, f"`{folder}/` is for outputs, which are not sent")
    return job


def usage(summary: str, note: str, help_line: str | None = None, code: Code = Code.USAGE) -> Problem:
    """Return the Problem for an invalid option."""
    return problem(code, summary, note, help_line, exit_code=Exit.USAGE)


def size_of(option: str, text: str | None) -> int | None:
    """Return the bytes in a size like `16g`, or None without a text. Raise Problem if it is invalid."""
    from gpuinfra.runner.job_spec import parse_size

    if text is None:
        return None
    found = parse_size(text)
    if not found:
        raise usage("invalid size", f"`{option} {text}` is not a size", "for example `512m`, `16g`")
    return found


def variables_of(request: JobRequest, declared: Sequence[str] = ()) -> tuple[dict[str, str], dict[str, str]]:
    """Return the visible variables, and the secret ones. `declared` are the names of secrets in the spec."""
    plain: dict[str, str] = {}
    for each in request.environment:
        name, mark, value = each.partition("=")
        if not mark or not _NAME.fullmatch(name):
            raise usage("invalid variable", f"`--env {name[:80]}`: expected NAME=VALUE", "or `--secret NAME`")
        plain[name] = value
    hidden: dict[str, str] = {}
    for file in request.environment_files:
        hidden |= _read_file(file)
    for name in request.secrets:
        hidden[name] = _own(name, f"`--secret {name[:80]}`")
    for name in declared:
        if name not in hidden:
            hidden[name] = plain[name] if name in plain else _own(name, f"`{name[:80]}` of `job.secrets` in the spec")
    # A variable that is declared secret stays secret.
    return {name: value for name, value in plain.items() if name not in hidden}, hidden


def build_secrets_of(names: Iterable[str]) -> dict[str, str]:
    """Return the values of the variables named by `--build-secret`."""
    from gpuinfra.runner.environment.secrets import MIN_SIZE

    found = {name: _own(name, f"`--build-secret {name[:80]}`") for name in names}
    for name, value in found.items():
        if len(value) < MIN_SIZE or not value.isprintable():
            note = f"`--build-secret {name}`: its value is shorter than {MIN_SIZE} characters, or not one line of text"
            raise usage("invalid secret", note, "such a value cannot be kept out of the build's output")
    return found


def _own(name: str, shown: str) -> str:
    if not _NAME.fullmatch(name):
        raise usage(
            "invalid variable",
            f"{shown} is not a variable name; give only the name, its value is read from the environment",
        )
    value = _value_here(name)
    if value is None:
        raise usage(
            "no such variable",
            f"{shown}: it is not set here",
            did_you_mean(name, os.environ)
            or f"set it first: `export {name}=…`; or store it in your keyring: `keyring set gpuinfra {name}`",
            Code.MISSING_SECRET,
        )
    return value


def _value_here(name: str) -> str | None:
    """Return the value of a secret on this computer, from the environment or the keyring, or None."""
    from gpuinfra.runner.connection.passwords import find_secret

    value = os.environ.get(name)
    return find_secret(name) if value is None else value


def _read_file(file: Path) -> dict[str, str]:
    """Read lines of `NAME=VALUE`, or `NAME` for a variable of this shell. Never show a line."""
    from gpuinfra.app.env_file import EnvFileError, parse

    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
        text = content.decode("utf-8") if len(content) <= MAX_FILE_BYTES else None
    except OSError as error:
        raise usage("file cannot be read", f"`{file}`: {error.strerror}", code=Code.FILE_UNREADABLE) from None
    except UnicodeDecodeError:
        text = None  # the exception contains the whole content, so drop it
    if text is None:
        raise usage("file cannot be read", f"`{file}` is too large, or not UTF-8", code=Code.FILE_UNREADABLE)
    try:
        variables = parse(text)
    except EnvFileError as error:
        raise usage("invalid variable", f"`{file}`, {error}", error.fix) from None
    return {
        each.name: _own(each.name, f"`{file}`, line {each.line}") if each.value is None else each.value
        for each in variables
    }


VISIBLE = "CUDA_VISIBLE_DEVICES"
HIDING = {"", "-1", "none", "void", "NoDevFiles"}


def _timeout_of(request: JobRequest, declared: Job | None) -> float | None:
    if request.timeout is None:
        return declared.timeout.total_seconds() if declared and declared.timeout else None
    from gpuinfra.app.settings import short_seconds_of

    seconds = short_seconds_of("--timeout", request.timeout)
    if not seconds:
        raise usage("invalid duration", f"`--timeout {request.timeout}` leaves no time for the job", "as `30s`, `2h`")
    return seconds


def _look_of(request: JobRequest, declared: Job | None) -> float | None:
    if request.keep_on_failure is None:
        return declared.keep_on_failure.total_seconds() if declared and declared.keep_on_failure else None
    from gpuinfra.app.settings import seconds_of
    from gpuinfra.models.base import SHORT, format_duration  # imports pydantic

    seconds = seconds_of("--keep-on-failure", request.keep_on_failure)
    if seconds > SHORT.total_seconds():
        note = f"`--keep-on-failure {request.keep_on_failure}`: expected `1m` to `{format_duration(SHORT)}`"
        raise usage("invalid duration", note, "`gpuinfra lease NAME --extend 1h` makes the look longer later")
    return seconds


def _check_detach(job: JobSpec) -> None:
    """Raise Problem if no command could find the run or its outputs later."""
    if not job.tracked:
        note = f"`TrackedRun: false` in `{job.configuration}.runconfig`: no command would find the run again"
        raise usage("the run cannot be left", note, "leave out `--detach`, or set `TrackedRun: true`")


def _check_container_options(job: JobSpec, request: JobRequest) -> None:
    if job.in_container:
        return
    for name, value in (("--memory", request.memory), ("--shm-size", request.shm_size)):
        if value is not None:
            note = f"`{name}` is for containers, and `{job.target.name}` is of type `{job.target.type}`"
            raise usage("an option without effect", note, "leave it out")


def _check_hidden_gpus(job: JobSpec) -> None:
    """Raise Problem if a variable hides the GPUs from CUDA: the job would silently run without them."""
    from gpuinfra.runner.command import hiding_assignment

    own = hiding_assignment(job.program, VISIBLE)
    value = {**job.variables, **job.secrets}.get(VISIBLE, "all") if own is None else own
    if job.requires_gpu and value.strip() in HIDING:
        place = job.source_of(VISIBLE, value) if own is None else "in the command itself"
        note = f"`{VISIBLE}={value}` hides every GPU from the job, which needs one; it is set {place}"
        raise usage("no GPU for the job", note, "remove the variable; `--gpus` says which GPUs", Code.NO_GPU)


def check_packages(job: JobSpec) -> None:
    """Raise Problem for requirements that cannot be installed, and for CPU packages in a job with a GPU."""
    if job.packages is None or not job.installs_packages:
        return
    from gpuinfra.runner.environment.recipe import check_requirements

    check_requirements(job.packages, job.project, job.build_secrets)
    if not job.requires_gpu:
        return
    from gpuinfra.lint.packages import cpu_only_in
    from gpuinfra.lint.uses import Location, Use

    use = Use(job.configuration, Location.GPU, job.base_image)
    diagnostics = [finding.diagnostic for finding in cpu_only_in(job.packages, [use])]
    found = [each for each in diagnostics if each.severity is Severity.ERROR]
    if found:
        raise Problem(*(replace(each, help=each.help or "`gpuinfra lint --fix` repairs it") for each in found))


def check_job_destination(workspace: Path, job: JobSpec) -> None:
    """Raise Problem if the run configuration has a machine's name but its jobs would run elsewhere.

    The machine is one in the workspace's specs, or one that this computer has used. Different specs for one machine are
    also a Problem. A job runs on the machine that the user named, never at another place that a file names.
    """
    from gpuinfra.workbench.targets import BUILT_IN

    name, target = job.configuration, job.target
    if name in BUILT_IN and not target.address:
        return
    from gpuinfra.app.specs import check_specs_agree, has_target
    from gpuinfra.runner.connection.known_hosts import is_same_name
    from gpuinfra.workbench.project import load_project
    from gpuinfra.workbench.targets import check_destination

    if target.address:
        check_specs_agree(workspace, target.name)
    if name in BUILT_IN or (target.address and is_same_name(target.name, name)):
        return  # the connection checks the host key
    if has_target(workspace, name) or _is_other_machine(target, name):
        check_destination(load_project(workspace), name)


def check_not_home(state: Path, job: JobSpec) -> None:
    """Raise Problem if record and files of a job would be in one folder, which is deleted after the job."""
    from gpuinfra.workspace import is_home_state

    if job.target.is_here and is_home_state(state):
        note = "the workspace is your home folder, and `~/.gpuinfra` also has the files of jobs on this computer"
        help_line = "move the project to a folder of its own, and run it there"
        raise usage("the job's record and its files would be in one folder", note, help_line)


def confirm_local_job(job: JobSpec, settings: Settings, frontend: Frontend, *, is_named: bool = True) -> None:
    """Ask before a job runs on this computer, unless the user gave the name `local` or `docker`, which `is_named` says.

    The project may come from others, and its files decide what a name means and which target is the only one. Without a
    terminal only `--yes` is consent.
    """
    from gpuinfra.workbench.targets import BUILT_IN

    name, target = job.configuration, job.target
    if not target.is_here or (name in BUILT_IN and is_named) or settings.yes:
        return
    from gpuinfra.models.consent import Question

    file = f"aml_config/{name}.runconfig" if target.name in BUILT_IN else f"aml_config/{target.name}.compute"
    found = f"`{file}` says that `{name}` is this computer, not a machine"
    if name in BUILT_IN:
        found = f"no `-c` names a target, and `{name}`, the only one of the workspace, is this computer"
    built_in = next(each for each, kind in BUILT_IN.items() if kind == target.type)
    summary = "this job would run on this computer"
    help_line = f"use `-c {built_in}`, or give `--yes` if you trust this project"
    refusal = problem(Code.NEEDS_CONSENT, summary, f"{found}; nothing was run", help_line, exit_code=Exit.USAGE)
    ask_or_refuse(settings, frontend, Question(f"{found}. Run it here?"), refusal)


def confirm_secrets(
    job: JobSpec, spec: Spec | None, request: JobRequest, settings: Settings, frontend: Frontend
) -> None:
    """Ask before secrets that only the spec names go to a machine that the user neither created nor attached.

    In a project of others, the spec can name any variable of this shell, and the target's file any machine.
    """
    from gpuinfra.runner.connection.known_hosts import is_own_machine

    given = {*request.secrets, *(each.partition("=")[0] for each in request.environment)}
    names = [name for name in (spec.job.secrets if spec and spec.job else ()) if name not in given]
    if not names or settings.yes or not job.target.address or is_own_machine(job.target):
        return
    from gpuinfra.models.consent import Question

    shown = ", ".join(f"`{name}`" for name in names)
    found = f"the spec names {shown}, and you neither created nor attached `{job.target.name}` on this computer"
    options = " ".join(f"--secret {name}" for name in names)
    help_line = f"if this machine may have them: `{options}`, or `--yes`; `gpuinfra attach` makes it known here"
    summary = "secrets would be sent to a machine that is not known here"
    refusal = problem(Code.NEEDS_CONSENT, summary, f"{found}; nothing was sent", help_line, exit_code=Exit.USAGE)
    ask_or_refuse(settings, frontend, Question("Send the secrets to this machine?", found), refusal)


def _is_other_machine(target: Target, name: str) -> bool:
    """Return whether this computer knows a machine with this name, and the target is not that machine."""
    from gpuinfra.runner.connection.known_hosts import HostKey, recorded_keys
    from gpuinfra.runner.errors import HostKeyInvalid

    named = (replace(target, machine=name, simulated=simulated) for simulated in (False, True))
    recorded = [known.key for each in named for known in recorded_keys(each)]
    try:
        return bool(recorded) and HostKey.parse(target.host_key) not in recorded
    except HostKeyInvalid:  # the target has no valid host key
        return True
