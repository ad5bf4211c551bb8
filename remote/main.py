"""Serve calls: each begins with a request that names a verb, and the verb's function then uses the wire."""

from __future__ import annotations

import contextlib
import errno
import sys
from importlib import import_module

from gpuinfra.remote.wire import END, MARK, GoneError, RefusedError, Wire

VERBS = {
    "hello": ("home", "hello"),
    "folder": ("home", "folder"),
    "tree-put": ("trees", "put"),
    "outputs": ("outputs", "outputs"),
    "record": ("recorder", "record"),
    "watch": ("container_watcher", "watch"),
    "usage": ("samples", "usage"),
    "job-start": ("jobs", "start"),
    "job-frames": ("jobs", "frames"),
    "container-frames": ("jobs", "container_frames"),
    "job-state": ("jobs", "state"),
    "job-cancel": ("jobs", "cancel"),
    "job-forget": ("jobs", "forget"),
    "run-forget": ("jobs", "forget_run"),
    "run-keep": ("jobs", "keep_run"),
    "environment-find": ("environments", "find"),
    "environment-make": ("environments", "make"),
    "gpu-check": ("gpu_checks", "known"),
    "registry-login": ("registry_login", "answer_login"),
    "heartbeat": ("heartbeat", "answer_heartbeat"),
    "runs": ("jobs", "runs"),
    "storage-list": ("storage", "list_items"),
    "storage-remove": ("storage", "remove_items"),
}
"""The module and function of each verb. The first call imports the module. A function takes the wire and the request,
and sends its own answer."""

CODES = {
    errno.ENOSPC: "disk-full",
    errno.EDQUOT: "disk-full",
    errno.EACCES: "no-permission",
    errno.EPERM: "no-permission",
}


def main() -> int:
    """Serve calls on standard input and output, one after the other, until the client disconnects."""
    sys.stdout.buffer.write(MARK)
    sys.stdout.buffer.flush()
    wire = Wire(sys.stdin.buffer, sys.stdout.buffer)
    try:
        while True:
            request = wire.receive_json()
            module, function = VERBS[request.pop("verb")]
            getattr(import_module(f"gpuinfra.remote.{module}"), function)(wire, request)
            wire.send(END, b"")
            wire.flush()
    except RefusedError as error:
        return _refuse(wire, error.code, str(error))
    except (GoneError, BrokenPipeError):
        return 0
    except OSError as error:
        return _refuse(wire, CODES.get(error.errno or 0, "system"), str(error))
    except Exception as error:  # the client must receive every error
        return _refuse(wire, "internal", f"{type(error).__name__}: {error}")


def _refuse(wire: Wire, code: str, message: str) -> int:
    """Report an error and return this process's exit code."""
    with contextlib.suppress(OSError):
        wire.send_error(code, message)
    return 1
