"""Repeat a run with the same command, options and machine, and say what changed since."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuinfra.app.job_request import JobRequest, OnInterrupt, resolve_job, resolve_job_of_machine
from gpuinfra.diagnostics import Code, Exit, problem

if TYPE_CHECKING:
    from gpuinfra.app.frontend import Frontend
    from gpuinfra.app.run import RunResult
    from gpuinfra.app.settings import Settings
    from gpuinfra.models.run import Run
    from gpuinfra.runner.job_spec import JobSpec

# How a client runs once, not what it runs. Consent to send credentials is for one command.
_ONCE = {"detach", "rebuild", "send_credentials"}
SHORT, LOCK = 10, "uv.lock"
# Names that a spec allows for variables, but whose values are often secrets, such as GH_PAT and SENTRY_DSN.
_OFTEN_SECRET = re.compile(r"(^|_)(PATS?|DSN|AUTH|CREDS?|COOKIE|SAS)(_|$)|CONN(ECTION)?_?STR(ING)?", re.IGNORECASE)


def repeat_run(
    settings: Settings,
    run_id: str,
    overrides: JobRequest,
    after_run: str | None,
    on_interrupt: OnInterrupt,
    frontend: Frontend,
) -> RunResult:
    """Repeat a run as `run` or `submit` started it. What `overrides` sets replaces the options of that run.

    What changed since is noted before a machine is billed.
    """
    from gpuinfra.app.job_session import new_run
    from gpuinfra.app.run import RunResult, run_job
    from gpuinfra.app.specs import one_located
    from gpuinfra.app.submit import submit
    from gpuinfra.app.workspace import open_workspace

    workspace = open_workspace(settings)
    before = workspace.history.find(run_id)
    request = _request_of(settings, before, overrides)
    if before.after_run is None:
        job, spec = resolve_job(workspace, before.configuration, request)
    else:
        located = one_located(settings, before.configuration)
        spec = located.spec
        job = resolve_job_of_machine(settings.folder, spec, request)
    now = new_run(job, spec)
    # The files of a machine that `run` prepares may not exist: its spec decides.
    check_machine(before, now if before.after_run is None else replace(before, machine=spec.name if spec else ""))
    _say(before, now, settings, frontend)
    if before.after_run is None:
        done = submit(settings, before.configuration, request, on_interrupt, frontend)
        return RunResult(done, None, done.diagnostics, done.exit_code, done.interrupted)
    return run_job(settings, located, request, after_run or before.after_run, on_interrupt, frontend)


def check_machine(before: Run, now: Run) -> None:
    """Raise Problem if the project's files now lead to another machine than that of the run."""
    is_other = before.machine and now.machine and not before.is_of(now.machine, now.resource_id)
    if now.target == before.target and not is_other:
        return
    was, found = (f"`{(is_other and (run.resource_id or run.machine)) or run.target}`" for run in (before, now))
    note = f"run {before.id} was on {was}, and the project's files now lead to {found}; nothing was sent"
    help_line = "to run it there, name its command once more"
    raise problem(Code.OTHER_TARGET, "this is not the machine of the run", note, help_line, exit_code=Exit.USAGE)


def _request_of(settings: Settings, run: Run, overrides: JobRequest) -> JobRequest:
    """Return the request of a run with what `overrides` sets. Raise Problem if the run has none."""
    if run.request is None:
        note = f"run {run.id} was recorded without its options"
        raise problem(
            Code.USAGE, "the run cannot be repeated", note, "name its command once more", exit_code=Exit.USAGE
        )
    known = {each.name for each in fields(JobRequest)}
    values = {name: _value(name, value) for name, value in run.request.items() if name in known}
    found = JobRequest(**{"script": None, **values})
    if found.script and settings.is_found:  # a path is relative to the current folder
        found = replace(found, script=str(settings.workspace / found.script))
    return replace(found, **_given(overrides))


def _value(name: str, value: Any) -> Any:
    if name == "environment_files":
        return tuple(map(Path, value))
    return tuple(value) if isinstance(value, list) else value


def _given(request: JobRequest) -> dict[str, Any]:
    """Return the fields that differ from their defaults."""
    nothing = asdict(JobRequest(None))
    return {name: value for name, value in asdict(request).items() if value != nothing[name] and value not in ([], ())}


def recorded_request(request: JobRequest, job: JobSpec) -> dict[str, Any]:
    """Return a request as a JSON object without secrets, with the command that `job` resolved it to.

    A variable that may be a secret is recorded by its name only, so its value must be set again.
    """
    found = {name: value for name, value in _given(request).items() if name not in _ONCE}
    plain = [each for each in request.environment if _is_plain(each)]
    hidden = [each.partition("=")[0] for each in request.environment if not _is_plain(each)]
    found |= {"environment": plain, "secrets": [*request.secrets, *hidden]}
    found["environment_files"] = [str(Path(each).absolute()) for each in request.environment_files]
    if job.program:
        found |= {"script": None, "command": list(job.program)}
    else:
        found["script"] = job.script
    return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items() if value}


def _is_plain(variable: str) -> bool:
    from gpuinfra.models.job import PLAIN_VARIABLE
    from gpuinfra.parse.source import masked

    name = variable.partition("=")[0]
    is_allowed = re.fullmatch(PLAIN_VARIABLE, name) is not None
    return is_allowed and not _OFTEN_SECRET.search(name) and masked(variable) == variable


def environment_digest(job: JobSpec) -> str:
    """Return a digest of the names and files that describe the environment of a job."""
    names = (job.target.type, job.base_image, job.framework, job.python, job.has_own_environment, *job.interpreter)
    found = hashlib.sha256("\n".join(map(str, names)).encode())
    for content in _environment_files(job):
        found.update(hashlib.sha256(content).digest())
    return found.hexdigest()


def _environment_files(job: JobSpec) -> Iterator[bytes]:
    if job.dockerfile:
        yield job.dockerfile.text.encode()
    if job.packages:
        lock = Path(job.packages.document.source.name).with_name(LOCK)
        yield job.packages.document.source.text.encode()
        # A pipe or a device would never end, and a link may lead out of the project.
        with suppress(OSError, RuntimeError):
            if lock.is_file() and lock.resolve().is_relative_to(job.project.resolve()):
                yield lock.read_bytes()


def _say(before: Run, now: Run, settings: Settings, frontend: Frontend) -> None:
    from gpuinfra.runner.record import commit_of

    if commit := commit_of(settings.folder):
        now = replace(now, git_commit=commit.id, git_dirty=commit.dirty)
    frontend.note(f"repeats {before.id}: {shlex.join(before.command)}")
    for line in changes(before, now):
        frontend.note(line)


def changes(before: Run, now: Run) -> Iterator[str]:
    """Return lines about what differs between a run and its repetition, or that nothing is known to differ."""
    same = []
    # The program is first: the Python that the target chose.
    if before.command[1:] != now.command[1:]:
        yield f"command changed: {shlex.join(now.command)}"
    if before.git_commit is None or now.git_commit is None:
        yield "it is not known whether the files changed: there is no git commit of them"
    elif before.git_commit != now.git_commit:
        yield f"commit changed: {before.git_commit[:SHORT]} -> {now.git_commit[:SHORT]}"
    else:
        same.append(f"commit {now.git_commit[:SHORT]}")
    times = [time for time, run in (("then", before), ("now", now)) if run.git_dirty]
    if times and now.git_commit:
        yield f"uncommitted changes {' and '.join(times)}: the files may differ"
    for name, old, new in (
        ("environment", before.environment_digest, now.environment_digest),
        ("spec", before.spec_digest, now.spec_digest),
    ):
        if old != new:
            yield f"{name} changed"
        elif new:
            same.append(name)
    if same:
        yield f"unchanged: {', '.join(same)}"
