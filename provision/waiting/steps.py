"""Run steps in parallel, in the order of their dependencies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

from gpuinfra.provision.waiting.interrupt import Interrupt

Name = TypeVar("Name")

WORKERS = 8
# After Ctrl-C, calls in progress may finish; otherwise it would be unknown what they created.
GRACE_SECONDS = 20.0


def run_steps(
    steps: Mapping[Name, Callable[[], None]], needs: Mapping[Name, Iterable[Name]], interrupt: Interrupt
) -> None:
    """Run each step once its dependencies are done. After the first failure, wait for running steps and raise.

    `needs` may name steps that are not in `steps`; they count as done. Ctrl-C starts no further step, ends all waits,
    lets calls in progress finish, and is raised.
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
    """Wait for the other steps after a failure, because the cleanup must know everything that was created."""
    try:
        wait(running)
    except KeyboardInterrupt:
        interrupt.set()
        wait(running, timeout=GRACE_SECONDS)
        raise
