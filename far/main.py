"""Calls: a verb and what it is about come in as one message; what the verb does with the wire then is its own."""

from __future__ import annotations

import contextlib
import errno
import sys
from importlib import import_module

from far.wire import END, MARK, GoneError, RefusedError, Wire

MODULES = {
    "hello": "far.home",
    "folder": "far.home",
    "tree-put": "far.trees",
    "outputs": "far.outputs",
    "watch": "far.keeper",
    "usage": "far.samples",
    "job-start": "far.jobs",
    "job-frames": "far.jobs",
    "job-state": "far.jobs",
    "job-cancel": "far.jobs",
    "job-forget": "far.jobs",
    "run-forget": "far.jobs",
    "run-keep": "far.jobs",
    "run-attend": "far.attendance",
    "runs": "far.jobs",
}
"""Which module has a verb in its `VERBS`; it is imported when somebody calls. A verb is called with the wire and the
request, a dictionary, and sends its answer itself."""

CODES = {
    errno.ENOSPC: "disk-full",
    errno.EDQUOT: "disk-full",
    errno.EACCES: "no-permission",
    errno.EPERM: "no-permission",
}


def main() -> int:
    """Answer calls on standard input and output, one after the other, until the near side hangs up."""
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
    except Exception as error:  # whatever it is, the near side has to know
        return _refuse(wire, "internal", f"{type(error).__name__}: {error}")


def _refuse(wire: Wire, code: str, message: str) -> int:
    """The end of this process as well: what else the near side may be sending is nothing that anybody waits for."""
    with contextlib.suppress(OSError):
        wire.send_error(code, message)
    return 1
