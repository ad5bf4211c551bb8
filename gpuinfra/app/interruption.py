"""Handle Ctrl-C: when to interrupt, and how to report what exists and is billed afterwards."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import signal
import termios
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING

from gpuinfra.diagnostics import Problem

if TYPE_CHECKING:
    from gpuinfra.app.access import CloudSession
    from gpuinfra.app.frontend import Frontend
    from gpuinfra.app.machine_names import Named
    from gpuinfra.app.settings import Settings
    from gpuinfra.models.events import MachineState

LOOK_SECONDS = 3.0
STREAMS = (0, 1, 2)
TOGETHER_SECONDS = 1.0
POSTPONE_TIMES, POSTPONE_SECONDS = 200, 0.01
PACKAGE = "gpuinfra"
HANDLERS = frozenset({__name__, "gpuinfra.cli.signals"})
# They acquire locks with `lock.acquire()` before a `try`.
LOCKING = frozenset({"logging", "paramiko"})


class TerminalClosedError(KeyboardInterrupt):
    """The interrupt caused by a closed terminal, pipe or SSH session: the user did not ask to cancel a job."""


def say_what_exists(session: CloudSession, name: str, group: str | None, frontend: Frontend) -> None:
    """Look once more at the machine, briefly because the user wants to leave, and report what exists."""
    from gpuinfra.models.events import Interrupted
    from gpuinfra.provision.errors import CloudError
    from gpuinfra.provision.find import stops_at

    session.cloud.interrupt.clear()
    session.cloud.grant(LOOK_SECONDS)
    try:
        observed = session.cloud.observe(name, group)
    except (CloudError, KeyboardInterrupt):
        observed = None
    resources = None if observed is None else [str(part.ref) for part in observed.ours()]
    stops = stops_at(observed) if observed else None
    frontend.show(Interrupted(name, resources, stops, simulated=session.cloud.simulated))


def say_states(
    settings: Settings, machines: Sequence[Named], frontend: Frontend, *, delete: bool = False, is_down: bool = False
) -> None:
    """Look once more at each machine, briefly, and report which are on, off or unknown, and what to run next."""
    from concurrent.futures import ThreadPoolExecutor

    from gpuinfra.models.events import CommandInterrupted

    fresh = replace(settings, interrupt=None)
    with ThreadPoolExecutor(max(1, len(machines)), thread_name_prefix="look") as pool:
        states = list(pool.map(lambda each: _state_of(fresh, each), machines))
    left = [each.name for each in states if each.power in ({"on", "unknown"} if not delete else _NOT_GONE)]
    options = f"{' --delete' if delete else ''}{' --sandbox' if settings.cloud == 'sandbox' else ''}"
    command = f"`gpuinfra down {shlex.join(left)}{options}`"
    if is_down:
        text = f"{command} continues" if left else "all machines are off"
    else:
        text = "run the same command again to continue" + (f", or {command} to switch them off" if left else "")
    frontend.show(CommandInterrupted(states, text))


_NOT_GONE = frozenset({"on", "off", "unknown"})


def _state_of(settings: Settings, machine: Named) -> MachineState:
    """Return a machine's state according to Azure, and its price per hour in the shipped list."""
    from gpuinfra.app.access import open_cloud
    from gpuinfra.models.events import MachineState
    from gpuinfra.models.resource import Kind
    from gpuinfra.provision.errors import CloudError
    from gpuinfra.provision.market.price_list import shipped_prices
    from gpuinfra.provision.names import default_group, ref_of
    from gpuinfra.provision.observed_resource import OFF

    try:
        cloud = open_cloud(settings, machine.subscription, LOOK_SECONDS)
        found = cloud.look(ref_of(Kind.VM, machine.group or default_group(machine.name), machine.name))
    except (CloudError, Problem):
        return MachineState(machine.name, "unknown")
    if found is None:
        return MachineState(machine.name, "absent")
    if found.power == OFF:
        return MachineState(machine.name, "off")
    size = str((found.properties.get("hardwareProfile") or {}).get("vmSize") or "")
    is_spot = str(found.properties.get("priority") or "").casefold() == "spot"
    return MachineState(machine.name, "on", shipped_prices().price(size, found.region, spot=is_spot))


class Interrupts:
    """A signal handler that raises KeyboardInterrupt like Ctrl-C, but not while a library works.

    Libraries acquire locks just before the `try` that releases them; so do Python's own `threading` and `logging`. An
    exception between the two leaves the lock held, and the next thread that needs it waits forever. So the exception is
    raised only in our own code, or while other code waits and acquires nothing. Until then it is postponed.

    Signals that arrive together count as one, because a second interrupt would leave a machine on. When a terminal
    closes, shell and kernel each send SIGHUP. systemd ends a session with SIGTERM and SIGHUP, of which Python handles
    SIGHUP first. So SIGHUP is only ever the first interrupt, and a signal closely after it counts as the same one.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first: tuple[int, float] | None = None
        self._postponed: int | None = None
        self._looks = 0
        self._seen: tuple[FrameType, int] | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle one signal, now or a little later."""
        if is_safe(frame):
            self._interrupt(number)
            return
        self._postponed, self._looks, self._seen = number, 0, None
        signal.signal(signal.SIGALRM, self._look)
        # Repeat the alarm: a signal just before a wait begins does not end that wait.
        signal.setitimer(signal.ITIMER_REAL, POSTPONE_SECONDS, POSTPONE_SECONDS)

    def _look(self, _: int, frame: FrameType | None) -> None:
        """Raise the postponed interrupt if that is safe. Code at the same instruction as at the last look waits."""
        number = self._postponed
        if number is None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            return
        self._looks += 1
        place = (frame, frame.f_lasti) if frame and may_wait(frame) else None
        if is_safe(frame) or (place and place == self._seen) or self._looks >= POSTPONE_TIMES:
            self._interrupt(number)
        else:
            self._seen = place

    def cancel(self) -> bool:
        """Drop a postponed interrupt, and return whether there was one."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        was_postponed, self._postponed, self._seen = self._postponed is not None, None, None
        return was_postponed

    def _interrupt(self, number: int) -> None:
        self.cancel()
        now = self._clock()
        if self._first is None:
            self._first = (number, now)
        elif number == signal.SIGHUP or (self._first[0] == signal.SIGHUP and now - self._first[1] < TOGETHER_SECONDS):
            return
        if number == signal.SIGHUP:
            _leave_closed_terminal()
            raise TerminalClosedError
        raise KeyboardInterrupt


def is_safe(frame: FrameType | None) -> bool:
    """Return whether this is our own code, or a wait in `threading` that released its lock and will reacquire it."""
    if frame is None:
        return True
    module = _module(frame)
    if module == "threading":
        return frame.f_code.co_name == "wait" and "gotit" in frame.f_locals
    return module.partition(".")[0] == PACKAGE and module not in HANDLERS


def may_wait(frame: FrameType) -> bool:
    """Return whether this code acquires nothing while it stays here. Another handler may run on top of any code."""
    if _module(frame) in HANDLERS:
        return False
    each: FrameType | None = frame
    while each is not None:
        package = _module(each).partition(".")[0]
        if package in LOCKING or package == PACKAGE:
            return package == PACKAGE
        each = each.f_back
    return True


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


def _leave_closed_terminal() -> None:
    """Redirect streams whose terminal is gone: printing to them would fail and abort a teardown."""
    for stream in STREAMS:
        try:
            termios.tcgetattr(stream)
        except termios.error as error:
            if error.args[0] == errno.EIO:
                os.dup2(os.open(os.devnull, os.O_RDWR), stream)


@contextlib.contextmanager
def safe_interrupts() -> Iterator[None]:
    """Let Ctrl-C interrupt only where it is safe. For callers with their own handlers, do nothing."""
    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if threading.current_thread() is not threading.main_thread() or not is_usual:
        yield
        return
    alarm, interrupts = signal.getsignal(signal.SIGALRM), Interrupts()
    signal.signal(signal.SIGINT, interrupts)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if interrupts.cancel():
            signal.raise_signal(signal.SIGINT)
        signal.signal(signal.SIGALRM, alarm)
