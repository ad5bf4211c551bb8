"""Run a command beside a running job: in its container, or in its working directory with its environment."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from importlib import resources

from gpuinfra.models.run import JobRef
from gpuinfra.remote.run_folder import container_name

CONTAINER = "container"


def command_beside(job: JobRef, run: str, words: Sequence[str], python: str, *, terminal: bool) -> list[str]:
    """Return the command to run on the job's machine, where `python` is a Python 3."""
    if job.kind == CONTAINER:
        return ["docker", "exec", "--interactive", *(["--tty"] if terminal else []), container_name(run), *words]
    text = resources.files("gpuinfra.remote").joinpath("enter.py").read_bytes()
    # One line without `!`: csh, which may be the user's shell, does not allow these in quotes.
    line = f"import base64;exec(base64.b64decode('{base64.b64encode(text).decode()}'))"
    return [python, "-IS", "-c", line, run, *words]
