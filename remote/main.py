"""Calls: a verb and what it is about come in as one message; what the verb does with the wire then is its own."""

from __future__ import annotations

import contextlib
import errno
import sys
from importlib import import_module

from gpuinfra.remote.wire import END, MARK, GoneError, RefusedError, Wire

MODULES = {
    "hello": "gpuinfra.remote.home",
    "folder": "gpuinfra.remote.home",
    "tree-put": "gpuinfra.remote.trees",
    "outputs": "gpuinfra.remote.outputs",
    "watch": "gpuinfra.remote.container_watcher",
    "usage": "gpuinfra.remote.samples",
    "job-start": "gpuinfra.remote.jobs",
    "job-frames": "gpuinfra.remote.jobs",
    "job-state": "gpuinfra.remote.jobs",
    "job-cancel": "gpuinfra.remote.jobs",
    "job-forget": "gpuinfra.remote.jobs",
    "run-forget": "gpuinfra.remote.jobs",
    "run-keep": "gpuinfra.remote.jobs",
    "run-attend": "gpuinfra.remote.heartbeat",
    "runs": "gpuinfra.remote.jobs",
}
"""Which module has a verb in its `VERBS`; it is imported by the first call. A verb is called with the wire and the
request, a dictionary, and sends its answer itself."""

CODES = {
    errno.ENOSPC: "disk-full",
    errno.EDQUOT: "disk-full",
    errno.EACCES: "no-permission",
    errno.EPERM: "no-permission",
}


def main() -> int:
    """Answer calls on standard input and output, one after the other, until the client hangs up."""
    sys.stdout.buffer.write(MARK)
    sys.stdout.buffer.flush()
    wire = Wire(sys.stdin.buffer, sys.stdout.buffer)
    try:
        while True:
            request = wire.receive_json()
            verb = request.pop("verb")
            import_module(MODULES[verb]).VERBS[verb](wire, request)
            wire.send(END, b"")
            wire.flush()
    except RefusedError as error:
        return _refuse(wire, error.code, str(error))
    except (GoneError, BrokenPipeError):
        return 0
    except OSError as error:
        return _refuse(wire, CODES.get(error.errno or 0, "system"), str(error))
    except Exception as error:  # whatever it is, the client has to know
        return _refuse(wire, "internal", f"{type(error).__name__}: {error}")


def _refuse(wire: Wire, code: str, message: str) -> int:
    """Report why, and end this process: what the client still sends is not needed."""
    with contextlib.suppress(OSError):
        wire.send_error(code, message)
    return 1
