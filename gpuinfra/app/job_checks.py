"""What can be known of a job before anything is asked of anybody."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuinfra.app.job_options import JobOptions, build_secrets_of, size_of, usage, variables_of
from gpuinfra.diagnostics import Code, Exit, Problem, Severity

if TYPE_CHECKING:
    from gpuinfra.runner.assignment import Assignment
    from gpuinfra.runner.jobs.order import Gpus
    from gpuinfra.runner.wishes import Wishes

VISIBLE = "CUDA_VISIBLE_DEVICES"
HIDING = {"", "-1", "none", "void", "NoDevFiles"}


def wishes_of(assigned: Assignment, options: JobOptions) -> Wishes:
    """What the options mean, for this project; what cannot be raises a Problem."""
    from gpuinfra.runner.script import script_path
    from gpuinfra.runner.wishes import Wishes, parse_gpus

    script = options.script or assigned.script
    if script is None:
        raise usage("no script", "which script is to run?", "for example `gpuinfra submit -c my_dsvm train.py`")
    gpus = parse_gpus(options.gpus) if options.gpus is not None else None
    if options.gpus is not None and gpus is None:
        help_line = "`all`, how many as `2`, or which ones as `0,1` or `device=0`"
        raise usage("invalid GPUs", f"`--gpus {options.gpus}`", help_line)
    plain, hidden = variables_of(options)
    _check_container_options(assigned, options)
    _check_hidden_gpus(assigned, gpus, {**assigned.environment, **plain, **hidden})
    if assigned.share and assigned.share_problem and not options.shared_directory:
        raise Problem(assigned.share_problem, exit_code=Exit.USAGE)
    return Wishes(
        script=script_path(assigned.project, script, Path.cwd()),
        words=options.words,
        gpus=gpus,
        memory=size_of("--memory", options.memory),
        shm_size=size_of("--shm-size", options.shm_size),
        timeout=_timeout_of(options),
        environment=plain,
        secrets=hidden,
        build_secrets=build_secrets_of(options.build_secrets),
        share=options.shared_directory,
        require_gpu_use=options.require_gpu_use,
        rebuild=options.rebuild,
        send_credentials=options.send_credentials,
    )


def _timeout_of(options: JobOptions) -> float | None:
    from gpuinfra.app.durations import short_seconds_of

    if options.timeout is None:
        return None
    seconds = short_seconds_of("--timeout", options.timeout)
    if not seconds:
        raise usage("invalid duration", f"`--timeout {options.timeout}` leaves no time for the job", "as `30s`, `2h`")
    return seconds


def check_detach(assigned: Assignment) -> None:
    """Whoever leaves a run that is not workspace could never come back to it, nor to what it writes."""
    if not assigned.tracked:
        note = f"`TrackedRun: false` in `{assigned.configuration}.runconfig`: nobody would find the run again"
        raise usage("no run to leave", note, "leave out `--detach`, or have the run tracked")


def _check_container_options(assigned: Assignment, options: JobOptions) -> None:
    if assigned.in_container:
        return
    for name, value in (("--memory", options.memory), ("--shm-size", options.shm_size)):
        if value is not None:
            note = f"`{name}` is for containers, and `{assigned.target.name}` is of type `{assigned.target.type}`"
            raise usage("an option without effect", note, "leave it out")


def _check_hidden_gpus(assigned: Assignment, gpus: Gpus | None, variables: dict[str, str]) -> None:
    """A variable that hides the GPUs from CUDA would make a job run without them, and say nothing."""
    from gpuinfra.runner.job_environment import is_required, variable_place

    value = variables.get(VISIBLE, "all")
    if is_required(assigned, gpus) and value.strip() in HIDING:
        place = variable_place(assigned, VISIBLE, value)
        note = f"`{VISIBLE}={value}` hides every GPU from the job, and it is to have one; it is set {place}"
        raise usage("no GPU for the job", note, "remove the variable; `--gpus` says which GPUs", Code.NO_GPU)


def check_packages(assigned: Assignment, gpus: Gpus | None, build_secrets: Collection[str]) -> None:
    """Raise a Problem for requirements that cannot be installed, and for CPU packages in a job that has a GPU."""
    from gpuinfra.runner.environment.recipe import check_requirements
    from gpuinfra.runner.job_environment import is_required

    if assigned.conda is None or not assigned.in_container:
        return
    check_requirements(assigned.conda, assigned.project, build_secrets)
    if not is_required(assigned, gpus):
        return
    from gpuinfra.lint.packages import cpu_only_in
    from gpuinfra.lint.uses import Place, Use

    use = Use(assigned.configuration, Place.GPU, assigned.base_image)
    diagnostics = [finding.diagnostic for finding in cpu_only_in(assigned.conda, [use])]
    found = [each for each in diagnostics if each.severity is Severity.ERROR]
    if found:
        raise Problem(*(replace(each, help=each.help or "`gpuinfra lint --fix` mends it") for each in found))
