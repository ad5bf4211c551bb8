"""The program, imported once and forked for every command: to start Python with Azure's SDK takes longer than that.

Run as a process of its own, which has no threads, so that a fork of it is whole. It takes orders on standard input, a
JSON object a line: `{"run": […], "folder": …, "out": …, "err": …}` is answered with `{"pid": …}`, and `{"wait": pid}`
with `{"status": …}` as `os.waitpid` has it. `{"warm": […], "folder": …}` runs commands in the process itself: the SDK
makes each of its models ready at the first use, which takes as long as the rest of a command.
"""

import gc
import importlib
import json
import os
import signal
import sys
import threading
import time
from contextlib import redirect_stderr, redirect_stdout
from io import BytesIO, TextIOWrapper
from typing import Any, TextIO

# What the commands import when they need it.
IMPORTED = """
    azure.identity azure.mgmt.compute azure.mgmt.network azure.mgmt.resource.resources
    gpuinfra.cli.access gpuinfra.cli.down gpuinfra.cli.machines gpuinfra.cli.plan gpuinfra.cli.sandbox_access
    gpuinfra.cli.status gpuinfra.cli.up gpuinfra.load.files gpuinfra.log gpuinfra.models.brought
    gpuinfra.workbench.targets
    gpuinfra.views.diagnostics gpuinfra.views.document gpuinfra.views.plan gpuinfra.views.progress
    gpuinfra.views.receipt gpuinfra.views.sandbox gpuinfra.views.up gpuinfra.workspace
    provision.azure.cloud provision.azure.market provision.down provision.find provision.up
    rich.console rich.text runner.machine.identity runner.machine.readiness runner.machine.ssh sandbox.running.process
""".split()


def serve(orders: TextIO, answers: TextIO) -> list[str] | None:
    """Carry out orders until they end; in a fork, give back the words that it is to run."""
    for line in orders:
        order: dict[str, Any] = json.loads(line)
        answer: dict[str, Any]
        if "warm" in order:
            answer = {"codes": _warm(order)}
        elif "wait" in order:
            answer = {"status": os.waitpid(order["wait"], 0)[1]}
        else:
            assert threading.active_count() == 1, "a fork of a process with threads is not whole"
            pid = os.fork()
            if not pid:
                _become(order)
                return list(order["run"])
            answer = {"pid": pid}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    return None


def _warm(order: dict[str, Any]) -> list[int]:
    from gpuinfra.cli.main import main

    os.chdir(order["folder"])
    unseen = TextIOWrapper(BytesIO(), encoding="utf-8")
    with redirect_stdout(unseen), redirect_stderr(unseen):
        codes = [int(main(words)) for words in order["warm"]]
    gc.collect()
    deadline = time.monotonic() + 10
    while threading.active_count() > 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    gc.freeze()
    return codes


def _become(order: dict[str, Any]) -> None:
    """Nothing of the process that was forked is left but what it imported."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by whatever runs in the background
    os.chdir(order["folder"])
    for number, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, order["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        (2, order["err"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    ):
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, number)
        os.close(opened)


def _main() -> None:
    from gpuinfra.cli.main import program

    for name in IMPORTED:
        importlib.import_module(name)
    # Orders and answers have descriptors of their own; a command's own are its standard ones.
    orders = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    words = serve(orders, answers)
    orders.close()
    answers.close()
    if words is not None:
        sys.argv[:] = ["gpuinfra", *words]
        program()


if __name__ == "__main__":
    _main()
