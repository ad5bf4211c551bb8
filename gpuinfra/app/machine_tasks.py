"""Run one task for each of several machines at the same time: one that is stuck does not delay the others."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from gpuinfra.app.access import INTERRUPT_SECONDS, look_at_vm, open_cloud
from gpuinfra.app.frontend import Frontend
from gpuinfra.app.machine_names import Named
from gpuinfra.app.settings import Settings
from gpuinfra.diagnostics import Diagnostic, Exit, Problem, Span
from gpuinfra.models.consent import CommandInterrupted, Event, MachineState, PlanReady
from gpuinfra.models.plan import MachineId
from gpuinfra.provision.errors import CloudError
from gpuinfra.provision.market import shipped_prices
from gpuinfra.provision.power import DEALLOCATED
from gpuinfra.provision.tags import default_group
from gpuinfra.provision.waiting import Interrupt

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 16
# After Ctrl-C, unanswered requests to Azure may take longer than the user wants to wait.
SETTLE_SECONDS = 2.0


@dataclass(frozen=True)
class TaskResults(Generic[R]):
    """What the tasks returned, in the order of their machines."""

    results: list[R]
    ended_by: BaseException | None = None
    """Ctrl-C, or the end of the input at a question. Raise it after the results were shown."""


def for_each(  # noqa: PLR0913 options are passed by name
    machines: Sequence[T],
    task: Callable[[T, Settings, Frontend], R],
    settings: Settings,
    frontend: Frontend,
    *,
    errors: ErrorCollector,
    name_of: Callable[[T], str],
    span_of: Callable[[T], Span | None] = lambda _: None,
    at_once: int = AT_ONCE,
    continues_after: Callable[[KeyboardInterrupt], bool] = lambda _: False,
) -> TaskResults[R]:
    """Run the task for each machine, and collect Problems in `errors`. Ctrl-C ends all tasks.

    Problems of several machines get the machine's name, and the location of its spec from `span_of`. If
    `continues_after` handles a Ctrl-C, it returns True, and the tasks continue.
    """
    if len(machines) < 2:
        return _one_after_the_other(machines, task, settings, frontend, errors)
    interrupt = Interrupt()
    own = replace(settings, interrupt=interrupt)
    pool = ThreadPoolExecutor(min(len(machines), at_once), thread_name_prefix="machine")
    futures = [pool.submit(task, each, own, _MachineFrontend(frontend, name_of(each))) for each in machines]
    ended_by: BaseException | None = None
    failed = set[Future[R]]()
    try:
        _wait(futures, continues_after)
    except KeyboardInterrupt as error:
        ended_by = error
        running = {future for future in futures if not future.done()}
        interrupt.set()
        wait(futures, SETTLE_SECONDS)
        # They fail because of the interrupt.
        failed = {future for future in running if not future.done() or future.cancelled() or future.exception()}
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    results: list[R] = []
    for machine, future in zip(machines, futures, strict=True):
        if future not in failed:
            other = _collect(future, name_of(machine), span_of(machine), results, errors)
            ended_by = ended_by or other
    return TaskResults(results, ended_by)


def _wait(futures: Sequence[Future[R]], continues_after: Callable[[KeyboardInterrupt], bool]) -> None:
    while True:
        try:
            wait(futures)
        except KeyboardInterrupt as error:
            if not continues_after(error):
                raise
        else:
            return


def _one_after_the_other(
    machines: Sequence[T],
    task: Callable[[T, Settings, Frontend], R],
    settings: Settings,
    frontend: Frontend,
    errors: ErrorCollector,
) -> TaskResults[R]:
    results: list[R] = []
    for machine in machines:
        with errors.capture():
            results.append(task(machine, settings, frontend))
    return TaskResults(results)


def _collect(
    future: Future[R], name: str, span: Span | None, results: list[R], errors: ErrorCollector
) -> BaseException | None:
    """Keep the result or the Problem of one task, and return any other error."""
    error = future.exception()
    if error is None:
        results.append(future.result())
    elif isinstance(error, Problem):
        errors.add(Problem(*(with_machine(each, name, span) for each in error.diagnostics), exit_code=error.exit_code))
    else:
        return error
    return None


def with_machine(diagnostic: Diagnostic, name: str, span: Span | None) -> Diagnostic:
    """Return the diagnostic of a machine with its name and the location of its spec."""
    diagnostic = replace(diagnostic, span=diagnostic.span or span, machine=name)
    if name in f"{diagnostic.summary} {diagnostic.note}":
        return diagnostic
    return replace(diagnostic, note=f"`{name}`: {diagnostic.note or diagnostic.summary}")


class _MachineFrontend:
    """The frontend of one task: steps and notes that do not name the machine get its name."""

    def __init__(self, frontend: Frontend, name: str) -> None:
        self._frontend, self._name = frontend, name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._frontend, name)

    def _named(self, text: str, mark: str = " ") -> str:
        return text if self._name in text else f"{self._name}{mark}{text}"

    def begin(self, step: str, doing: str) -> None:
        self._frontend.begin(self._named(step), doing)

    def amount(self, step: str, done: int, total: int | None) -> None:
        self._frontend.amount(self._named(step), done, total)

    def end(self, step: str, outcome: str) -> None:
        self._frontend.end(self._named(step), outcome)

    def fail(self, step: str, reason: str) -> None:
        self._frontend.fail(self._named(step), reason)

    def note(self, text: str) -> None:
        self._frontend.note(self._named(text, ": "))

    def show(self, event: Event) -> None:
        self._frontend.show(replace(event, is_one_of_many=True) if isinstance(event, PlanReady) else event)


class ErrorCollector:
    """The collected problems."""

    def __init__(self) -> None:
        self.diagnostics: list[Diagnostic] = []
        self._codes: list[Exit] = []

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Collect a Problem in this block instead of raising it."""
        try:
            yield
        except Problem as problem:
            self.add(problem)

    def add(self, problem: Problem) -> None:
        """Collect a Problem."""
        self.diagnostics += problem.diagnostics
        self._codes.append(problem.exit_code)

    @property
    def has_failure(self) -> bool:
        """Whether a machine's command was correct but failed."""
        return Exit.FAILED in self._codes

    def exit_code(self, *, left_behind: bool = False) -> Exit:
        """Return the worst exit code: something that may be billed, else the first failure."""
        if left_behind or Exit.LEFT_BEHIND in self._codes:
            return Exit.LEFT_BEHIND
        return self._codes[0] if self._codes else Exit.DONE


def say_states(
    settings: Settings, machines: Sequence[Named], frontend: Frontend, *, down: Teardowns | None = None
) -> None:
    """Look once more at each machine, briefly, and report which are on, off or unknown, and what to run next.

    Without `down`, the command was to switch them on.
    """
    fresh = replace(settings, interrupt=None)
    with ThreadPoolExecutor(max(1, len(machines)), thread_name_prefix="look") as pool:
        states = list(pool.map(lambda each: _state_of(fresh, each), machines))
    left = [each.name for each in states if _is_left(each, down)]
    deletes = down is not None and down.deletes
    options = f"{' --delete' if deletes else ''}{' --sandbox' if settings.cloud == 'sandbox' else ''}"
    command = f"`gpuinfra down {shlex.join(left)}{options}`"
    if down:
        text = f"{command} continues" if left else "all machines are off"
    else:
        text = "run the same command again to continue" + (f", or {command} to switch them off" if left else "")
    frontend.show(CommandInterrupted(states, text))


@dataclass(frozen=True)
class Teardowns:
    """What an interrupted command for the end of several machines has achieved."""

    deletes: bool
    finished: frozenset[str] = frozenset()
    """The names of the machines with a proof of their end."""
    creates: bool = False
    """Whether the command also creates machines: a request to create an absent one may still arrive."""


def _is_left(state: MachineState, down: Teardowns | None) -> bool:
    """Return whether the machine may be billed, now or soon, or whether resources to delete may remain."""
    if down is None or down.creates:
        return state.power != "off"
    if down.deletes:
        return state.name not in down.finished  # other resources may remain without the VM
    return state.power in {"on", "unknown"}


def _state_of(settings: Settings, machine: Named) -> MachineState:
    """Return a machine's state according to Azure, and its price per hour in the shipped list."""
    try:
        cloud = open_cloud(settings, machine.subscription, INTERRUPT_SECONDS)
        place = MachineId(cloud.subscription, machine.group or default_group(machine.name), machine.name)
        found = look_at_vm(cloud, place)
    except (CloudError, Problem):
        return MachineState(machine.name, "unknown")
    if found is None:
        return MachineState(machine.name, "absent")
    if found.power == DEALLOCATED:
        return MachineState(machine.name, "off")
    return MachineState(machine.name, "on", shipped_prices().price(found.size, found.region, spot=found.is_spot))
