"""Steps that wait for each other and otherwise run side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

from gpuinfra.provision.waiting.interrupt import Interrupt

Name = TypeVar("Name")

WORKERS = 8
# After Ctrl-C a call that is under way may still come to its end: who knows what it made otherwise.
GRACE_SECONDS = 20.0


def run_steps(
    steps: Mapping[Name, Callable[[], None]], needs: Mapping[Name, Iterable[Name]], interrupt: Interrupt
) -> None:
    """Run each as soon as all that it needs is done. The first failure ends it; what is under way is waited for.

    `needs` may name steps that are not to be run: those are done. Ctrl-C starts nothing more, has waits given up,
    lets calls that are under way come to their end, and is raised.
    """
    waiting = {name: {need for need in needs.get(name, ()) if need in steps} for name in steps}
    running: dict[Future[None], Name] = {}
    executor = ThreadPoolExecutor(WORKERS, thread_name_prefix="step")
    try:
        while waiting or running:
            for name in [name for name, open_needs in waiting.items() if not open_needs]:
                del waiting[name]
                running[executor.submit(_work, steps[name], interrupt)] = name
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                future.result()
                finished = running.pop(future)
                for open_needs in waiting.values():
                    open_needs.discard(finished)
    except KeyboardInterrupt:
        interrupt.set()
        wait(running, timeout=GRACE_SECONDS)
        raise
    except BaseException:
        _finish(running, interrupt)
        raise
    finally:
        executor.shutdown(wait=False, cancel_futures=True)


def _work(step: Callable[[], None], interrupt: Interrupt) -> None:
    with interrupt.at_work():
        step()


def _finish(running: Mapping[Future[None], object], interrupt: Interrupt) -> None:
    """One step has failed. The others are waited for: whoever clears up has to know all that there is."""
    try:
        wait(running)
    except KeyboardInterrupt:
        interrupt.set()
        wait(running, timeout=GRACE_SECONDS)
        raise
