"""The Python API: the use cases of `gpuinfra.app` as functions. `docs/api.md` describes it."""

from __future__ import annotations

import codecs
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from gpuinfra.app.interruption import safe_interrupts
from gpuinfra.app.job_request import JobRequest, OnInterrupt
from gpuinfra.app.settings import Settings, open_settings
from gpuinfra.diagnostics import Diagnostic, Problem, problem
from gpuinfra.models.plan import Plan
from gpuinfra.models.receipt import Receipt
from gpuinfra.models.run import Run
from gpuinfra.models.spec import Spec
from gpuinfra.models.target import Target

if TYPE_CHECKING:
    from gpuinfra.models.consent import Event, Question
    from gpuinfra.models.machine import Machine as MachineState
    from gpuinfra.models.reap import ReapResult
    from gpuinfra.models.run import Frame, LiveStatus
    from gpuinfra.parse.spec import LocatedSpec

__all__ = [
    "Machine",
    "Plan",
    "Problem",
    "Receipt",
    "Run",
    "Spec",
    "Target",
    "down",
    "load",
    "machine",
    "plan",
    "reap",
    "run",
    "status",
    "submit",
    "up",
    "validate",
]

UP_SECONDS = 3600.0
_PROCESS_VARIABLES = ("PATH", "GPUINFRA_JOB_PATH")


@dataclass
class Callbacks:
    """The frontend of the API: lines of progress, questions and job output go to functions of the caller."""

    progress: Callable[[str], object] | None = None
    confirm_with: Callable[[str], bool] | None = None
    output: Callable[[str], object] | None = None
    _doing: dict[str, str] = field(default_factory=dict)

    @property
    def shows_status(self) -> bool:
        return False

    def set_status(self, read: Callable[[], LiveStatus | None] | None) -> None:
        """Do nothing: there is no terminal."""

    @property
    def terminal(self) -> dict[str, str]:
        return {}

    @property
    def can_ask(self) -> bool:
        """Whether there is a function that answers questions."""
        return self.confirm_with is not None

    def begin(self, step: str, doing: str) -> None:
        """Report a step once for each thing that it does."""
        if self._doing.get(step) != doing:
            self._doing[step] = doing
            self.note(f"{step}: {doing}")

    def amount(self, step: str, done: int, total: int | None) -> None:
        """Amounts are not reported: they change too often."""

    def end(self, step: str, outcome: str) -> None:
        """Report that a step is done."""
        self.note(f"{step}: {outcome}")

    def fail(self, step: str, reason: str) -> None:
        """Report that a step failed."""
        self.note(f"{step}: failed: {reason}")

    def wait(self, reason: str, seconds: float) -> None:
        """Report that everything waits."""
        self.note(f"waiting {seconds:.0f} s: {reason}")

    def note(self, text: str) -> None:
        """Report a line."""
        if self.progress:
            self.progress(text)

    def show(self, event: Event) -> None:
        """Report what exists after an interrupt; a plan is in the result."""
        resources = getattr(event, "resources", None)
        if resources:
            self.note(f"interrupted; in Azure there is now: {', '.join(resources)}")

    def confirm(self, question: Question) -> bool:
        """Ask the caller."""
        return bool(self.confirm_with and self.confirm_with(question.text))

    def ask_choice(self, question: str, default: str, is_over: Callable[[], bool]) -> str | None:  # noqa: ARG002 a port
        """Take the default: the API asks for yes and no only."""
        return default

    def ask_password(self, prompt: str) -> str:
        """Refuse: a program has no terminal to type a password at."""
        raise EOFError(prompt)

    def open_output(self) -> JobText:
        """Return where the output of a job goes."""
        return JobText(self.output)


@dataclass
class JobText:
    """Passes what a job prints on as text."""

    receive: Callable[[str], object] | None
    _decoders: dict[int, codecs.IncrementalDecoder] = field(default_factory=dict)
    """By stream: a frame can end in the middle of a character."""

    def __call__(self, frame: Frame) -> None:
        """Pass one frame on."""
        if self.receive:
            decoder = self._decoders.setdefault(frame.stream, codecs.getincrementaldecoder("utf-8")("replace"))
            if text := decoder.decode(frame.data):
                self.receive(text)

    def finish(self) -> None:
        """Nothing is held back."""


@contextmanager
def _settings(workspace: str | Path | None, *, sandbox: bool, yes: bool) -> Iterator[Settings]:
    """Settings for one call. What they change of the process is restored: it is the caller's."""
    before = {name: os.environ.get(name) for name in _PROCESS_VARIABLES}
    folder = Path(workspace) if workspace is not None else None
    try:
        with safe_interrupts():
            settings = open_settings(yes=yes, sandbox=sandbox, workspace=folder, correlation_id=str(uuid.uuid4()))
            if settings.cloud == "sandbox":
                from gpuinfra.app.sandbox import Sandbox

                Sandbox().start_if_needed()
            yield settings
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _located(spec: str | Path | Spec) -> LocatedSpec:
    from gpuinfra.app.specs import load_specs
    from gpuinfra.diagnostics import Code, Exit, Span
    from gpuinfra.parse.spec import LocatedSpec

    if isinstance(spec, Spec):
        return LocatedSpec(spec, Span("", 1, 1, 1, 1, ""))
    found = load_specs([str(spec)])
    if len(found) == 1:
        return found[0]
    names = ", ".join(f"`{each.spec.name}`" for each in found)
    note, help_line = f"`{spec}` describes {names}", "call it once for each of them, with a `Spec`"
    raise problem(Code.USAGE, "more than one machine", note, help_line, exit_code=Exit.USAGE)


def validate(*paths: str | Path) -> list[Diagnostic]:
    """Return every problem of the specs in files and folders, each with its place and a fix; none if all is well."""
    from gpuinfra.app.specs import validate as load_all

    loaded, _ = load_all([str(path) for path in paths])
    return loaded.diagnostics


def load(path: str | Path) -> Spec:
    """Return the spec in a file. Raises Problem with every problem of the file."""
    return _located(path).spec


def plan(
    spec: str | Path | Spec,
    *,
    sandbox: bool = False,
    workspace: str | Path | None = None,
    progress: Callable[[str], object] | None = None,
) -> Plan:
    """Return what `up` would do. Nothing is written."""
    from gpuinfra.app.plan import make_plan

    with _settings(workspace, sandbox=sandbox, yes=False) as settings:
        return make_plan(settings, _located(spec), Callbacks(progress))


def up(
    spec: str | Path | Spec,
    *,
    yes: bool = False,
    sandbox: bool = False,
    workspace: str | Path | None = None,
    progress: Callable[[str], object] | None = None,
    confirm: Callable[[str], bool] | None = None,
) -> Target | None:
    """Make Azure match a spec, and return the target; None if the spec keeps the machine off.

    A change that stops jobs or loses outputs asks `confirm`, or needs `yes`, or raises Problem.
    """
    from gpuinfra.app.up import up as provision

    with _settings(workspace, sandbox=sandbox, yes=yes) as settings:
        frontend = Callbacks(progress, confirm)
        return provision(settings, _located(spec), UP_SECONDS, frontend, asks=confirm is not None).target


def down(
    machine: str,
    *,
    delete: bool = False,
    yes: bool = False,
    sandbox: bool = False,
    workspace: str | Path | None = None,
    progress: Callable[[str], object] | None = None,
    confirm: Callable[[str], bool] | None = None,
) -> Receipt:
    """Deallocate a machine, or delete it, and return the proof.

    `machine` is a name, a target or a spec's file. Jobs that would be stopped and outputs that would be lost ask
    `confirm`, or need `yes`, or raise Problem.
    """
    from gpuinfra.app.down import end_machine
    from gpuinfra.app.machine_names import named_machine

    with _settings(workspace, sandbox=sandbox, yes=yes) as settings:
        frontend = Callbacks(progress, confirm)
        named = named_machine(settings, machine, frontend)
        return end_machine(settings, named, frontend, delete=delete, asks=True, cause="gpuinfra.down")


def submit(  # noqa: PLR0913 each is an option
    target: str,
    script: str | None = None,
    arguments: Sequence[str] = (),
    *,
    command: Sequence[str] = (),
    gpus: str | None = None,
    timeout: str | None = None,
    env: Mapping[str, str] | None = None,
    require_gpu_use: bool = False,
    on_interrupt: str = "detach",
    detach: bool = False,
    yes: bool = False,
    sandbox: bool = False,
    workspace: str | Path | None = None,
    progress: Callable[[str], object] | None = None,
    output: Callable[[str], object] | None = None,
) -> Run:
    """Run a script, or a command, on a target, fetch its outputs, and return the run.

    `command` is a program and its arguments. Without it and a script, the target's spec says what runs.
    A target of the project that is this computer, other than `local` and `docker`, needs `yes`, or raises Problem.
    So do secrets that only a spec names, for a machine that the user neither created nor attached on this computer.
    Ctrl-C detaches from the job, or cancels it with `on_interrupt="cancel"`, and raises KeyboardInterrupt.
    """
    from gpuinfra.app.submit import submit as run_submit

    request = _job_request(
        script, arguments, command, gpus, timeout, env, require_gpu_use=require_gpu_use, detach=detach
    )
    with _settings(workspace, sandbox=sandbox, yes=yes) as settings:
        frontend = Callbacks(progress, None, output)
        result = run_submit(settings, target, request, OnInterrupt(on_interrupt), frontend)
    if result.interrupted:
        raise KeyboardInterrupt
    if result.diagnostics:
        raise Problem(*result.diagnostics)
    return result.run


def run(  # noqa: PLR0913 each is an option
    spec: str,
    script: str | None = None,
    arguments: Sequence[str] = (),
    *,
    command: Sequence[str] = (),
    gpus: str | None = None,
    timeout: str | None = None,
    env: Mapping[str, str] | None = None,
    require_gpu_use: bool = False,
    after_run: str | None = None,
    sandbox: bool = False,
    workspace: str | Path | None = None,
    progress: Callable[[str], object] | None = None,
    output: Callable[[str], object] | None = None,
) -> tuple[Run, Receipt | None]:
    """Create or start a machine, run a job on it, fetch its outputs, and end the machine.

    `spec` is a file or the name of a machine. For `script` and `command`, see `submit`. The receipt proves that the
    machine is off; it is None if the machine is kept. Ctrl-C cancels the job, ends the machine, and raises
    KeyboardInterrupt.
    """
    from gpuinfra.app.run import run_job
    from gpuinfra.app.specs import one_located

    request = _job_request(script, arguments, command, gpus, timeout, env, require_gpu_use=require_gpu_use)
    with _settings(workspace, sandbox=sandbox, yes=False) as settings:
        frontend = Callbacks(progress, None, output)
        result = run_job(settings, one_located(settings, spec), request, after_run, OnInterrupt.CANCEL, frontend)
    if result.interrupted:
        raise KeyboardInterrupt
    if result.diagnostics or result.job is None:
        raise Problem(*result.diagnostics)
    return result.job.run, result.receipt


def _job_request(  # noqa: PLR0913 each is an option
    script: str | None,
    arguments: Sequence[str],
    command: Sequence[str],
    gpus: str | None,
    timeout: str | None,
    env: Mapping[str, str] | None,
    *,
    require_gpu_use: bool,
    detach: bool = False,
) -> JobRequest:
    return JobRequest(
        script=script,
        words=tuple(arguments),
        command=tuple(command),
        gpus=gpus,
        timeout=timeout,
        environment=tuple(f"{name}={value}" for name, value in (env or {}).items()),
        require_gpu_use=require_gpu_use,
        detach=detach,
    )


def status(
    *names: str,
    sandbox: bool = False,
    workspace: str | Path | None = None,
    progress: Callable[[str], object] | None = None,
) -> list[MachineState]:
    """Return every machine of gpuinfra in the subscription, or those with these names."""
    from gpuinfra.app.access import cloud_errors
    from gpuinfra.app.status import open_status, settle_stopped

    with _settings(workspace, sandbox=sandbox, yes=False) as settings, cloud_errors("listing machines"):
        machines, _ = open_status(settings, names, Callbacks(progress), agents=False).look()
        settle_stopped(settings, machines)
    return machines


def reap(  # noqa: PLR0913 each is an option
    specs: str | Path | None = None,
    *,
    delete: bool = False,
    start: bool = False,
    dry_run: bool = False,
    yes: bool = False,
    sandbox: bool = False,
    workspace: str | Path | None = None,
    progress: Callable[[str], object] | None = None,
) -> ReapResult:
    """Stop every machine of gpuinfra that should be off, and return what was done."""
    from gpuinfra.app.reap import ReapOptions
    from gpuinfra.app.reap import reap as run_reap

    options = ReapOptions(str(specs) if specs else None, starts=start, deletes=delete, dry_run=dry_run)
    with _settings(workspace, sandbox=sandbox, yes=yes) as settings:
        reaped, _ = run_reap(settings, options, Callbacks(progress))
    return reaped


class Machine:
    """A machine for a `with` block: it is up inside, and deallocated at the end, whatever happens."""

    def __init__(self, spec: str | Path | Spec, *, delete: bool = False, **options: Any) -> None:
        self.spec = spec if isinstance(spec, Spec) else load(spec)
        self._source, self._delete = spec, delete
        self._options = options
        self.target: Target | None = None
        self.receipt: Receipt | None = None
        """The proof that the machine is off, after the block."""

    def __enter__(self) -> Self:
        from gpuinfra.app.up import LeftOn

        try:
            self.target = up(self._source, **self._options)
        except BaseException as error:
            if not isinstance(error, Problem) or isinstance(error, LeftOn):
                self._end()  # otherwise `up` has removed what it created, and a machine of others is left alone
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def submit(self, script: str, arguments: Sequence[str] = (), **options: Any) -> Run:
        """Run a script on the machine, as `gpuinfra.submit` does."""
        shared: dict[str, Any] = {
            name: self._options[name] for name in ("sandbox", "workspace", "progress") if name in self._options
        }
        return submit(self.spec.target_name, script, arguments, **{**shared, **options})

    def _end(self) -> None:
        """Deallocate the machine, also if other jobs run on it: the block has ended."""
        from gpuinfra.app.down import end_machine
        from gpuinfra.app.machine_names import Named

        workspace, sandbox = self._options.get("workspace"), bool(self._options.get("sandbox"))
        with _settings(workspace, sandbox=sandbox, yes=True) as settings:
            named = Named(self.spec.name, self.spec.group_name, self.spec.subscription)
            frontend = Callbacks(self._options.get("progress"))
            self.receipt = end_machine(settings, named, frontend, delete=self._delete, cause="gpuinfra.machine")


def machine(spec: str | Path | Spec, **options: Any) -> Machine:
    """Return a machine for a `with` block. `delete=True` deletes it at the end; other options are those of `up`."""
    return Machine(spec, **options)
