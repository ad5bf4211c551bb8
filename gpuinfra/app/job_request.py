"""The request for a job, and its resolution to a JobSpec: `resolve_job`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from gpuinfra.app.frontend import ask_or_refuse
from gpuinfra.diagnostics import Code, Exit, Problem, Severity, problem
from gpuinfra.suggest import did_you_mean

if TYPE_CHECKING:
    from gpuinfra.app.frontend import Frontend
    from gpuinfra.app.settings import Settings
    from gpuinfra.app.workspace import Workspace
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
    gpus: str | None = None
    memory: str | None = None
    shm_size: str | None = None
    timeout: str | None = None
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
    return with_request(job, request), spec


def resolve_job_of_machine(workspace: Path, spec: Spec, request: JobRequest) -> JobSpec:
    """Return the job for a request on a spec's machine, which may not exist yet."""
    from gpuinfra.app.workspace import with_options
    from gpuinfra.runner.resolve import read_job
    from gpuinfra.workbench.project import load_project
    from gpuinfra.workbench.targets import check_destination

    check_destination(load_project(workspace), spec.target_name)
    return with_request(with_options(read_job(workspace, spec.target_name, spec), spec), request)


def with_request(job: JobSpec, request: JobRequest) -> JobSpec:
    """Return the job with the options of a request. Raise Problem if they do not fit together."""
    from gpuinfra.runner.job_spec import parse_gpus
    from gpuinfra.runner.resolve import script_path

    script = request.script or job.script
    if not script:
        raise usage("no script", "no script was given", "for example `gpuinfra submit -c my_dsvm train.py`")
    gpus = parse_gpus(request.gpus) if request.gpus is not None else None
    if request.gpus is not None and gpus is None:
        help_line = "`all`, how many as `2`, or which ones as `0,1` or `device=0`"
        raise usage("invalid GPUs", f"`--gpus {request.gpus}`", help_line)
    plain, hidden = variables_of(request)
    _check_container_options(job, request)
    job = replace(job, requested_gpus=gpus, more_environment=plain, secrets=hidden)
    _check_hidden_gpus(job)
    if job.share and job.share_problem and not request.shared_directory:
        raise Problem(job.share_problem, exit_code=Exit.USAGE)
    job = replace(
        job,
        script=script_path(job.project, script, Path.cwd()),
        words=tuple(request.words),
        memory=size_of("--memory", request.memory),
        shm_size=size_of("--shm-size", request.shm_size) or job.shm_size,
        timeout=_timeout_of(request),
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


def variables_of(request: JobRequest) -> tuple[dict[str, str], dict[str, str]]:
    """Return the visible variables, and the secret ones."""
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
    value = os.environ.get(name)
    if value is None:
        raise usage(
            "no such variable",
            f"{shown}: it is not set here",
            did_you_mean(name, os.environ) or f"set it first: `export {name}=…`",
            Code.MISSING_SECRET,
        )
    return value


def _read_file(file: Path) -> dict[str, str]:
    """Read lines of `NAME=VALUE`, or `NAME` for a variable of this shell. Never show a line."""
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
        lines = content.decode("utf-8").splitlines() if len(content) <= MAX_FILE_BYTES else None
    except OSError as error:
        raise usage("file cannot be read", f"`{file}`: {error.strerror}", code=Code.FILE_UNREADABLE) from None
    except UnicodeDecodeError:
        lines = None  # the exception contains the whole content, so drop it
    if lines is None:
        raise usage("file cannot be read", f"`{file}` is too large, or not UTF-8", code=Code.FILE_UNREADABLE)
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, mark, value = line.lstrip().removeprefix("export ").partition("=")
        if not _NAME.fullmatch(name.strip()):
            raise usage("invalid variable", f"`{file}`, line {number}: expected NAME=VALUE", "the line is not shown")
        found[name.strip()] = value if mark else _own(name.strip(), f"`{file}`, line {number}")
    return found


VISIBLE = "CUDA_VISIBLE_DEVICES"
HIDING = {"", "-1", "none", "void", "NoDevFiles"}


def _timeout_of(request: JobRequest) -> float | None:
    from gpuinfra.app.options import short_seconds_of

    if request.timeout is None:
        return None
    seconds = short_seconds_of("--timeout", request.timeout)
    if not seconds:
        raise usage("invalid duration", f"`--timeout {request.timeout}` leaves no time for the job", "as `30s`, `2h`")
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
    value = {**job.variables, **job.secrets}.get(VISIBLE, "all")
    if job.requires_gpu and value.strip() in HIDING:
        place = job.source_of(VISIBLE, value)
        note = f"`{VISIBLE}={value}` hides every GPU from the job, which needs one; it is set {place}"
        raise usage("no GPU for the job", note, "remove the variable; `--gpus` says which GPUs", Code.NO_GPU)


def check_packages(job: JobSpec) -> None:
    """Raise Problem for requirements that cannot be installed, and for CPU packages in a job with a GPU."""
    if job.conda is None or not job.in_container:
        return
    from gpuinfra.runner.environment.recipe import check_requirements

    check_requirements(job.conda, job.project, job.build_secrets)
    if not job.requires_gpu:
        return
    from gpuinfra.lint.packages import cpu_only_in
    from gpuinfra.lint.uses import Location, Use

    use = Use(job.configuration, Location.GPU, job.base_image)
    diagnostics = [finding.diagnostic for finding in cpu_only_in(job.conda, [use])]
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


def confirm_local_job(job: JobSpec, settings: Settings, frontend: Frontend) -> None:
    """Ask before a job runs on this computer under another name than `local` and `docker`.

    The project may come from others, and its files decide what the name means. Without a terminal only `--yes` is
    consent.
    """
    from gpuinfra.workbench.targets import BUILT_IN

    name, target = job.configuration, job.target
    if not target.is_here or name in BUILT_IN or settings.yes:
        return
    from gpuinfra.models.events import Question

    file = f"aml_config/{name}.runconfig" if target.name in BUILT_IN else f"aml_config/{target.name}.compute"
    found = f"`{file}` says that `{name}` is this computer, not a machine"
    built_in = next(each for each, kind in BUILT_IN.items() if kind == target.type)
    summary = "this job would run on this computer"
    help_line = f"use `-c {built_in}`, or give `--yes` if you trust this project"
    refusal = problem(Code.NEEDS_CONSENT, summary, f"{found}; nothing was run", help_line, exit_code=Exit.USAGE)
    ask_or_refuse(settings, frontend, Question(f"{found}. Run it here?"), refusal)


def _is_other_machine(target: Target, name: str) -> bool:
    """Return whether this computer knows a machine with this name, and the target is not that machine."""
    from gpuinfra.runner.connection.host_key import HostKey
    from gpuinfra.runner.connection.known_hosts import recorded_keys
    from gpuinfra.runner.errors import HostKeyInvalid

    named = (replace(target, machine=name, simulated=simulated) for simulated in (False, True))
    recorded = [known.key for each in named for known in recorded_keys(each)]
    try:
        return bool(recorded) and HostKey.parse(target.host_key) not in recorded
    except HostKeyInvalid:  # the target has no valid host key
        return True
