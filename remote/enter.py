"""Run a command beside a job without a container: in its working directory, with its environment.

The text of this file is the argument of `python3 -c`, so it imports only the standard library.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

CANNOT_START, NOT_FOUND = 126, 127


def main(run: str, command: list[str]) -> str:
    """Replace this process with the command. Return why that is not possible."""
    folder = os.path.join(os.path.expanduser("~"), ".gpuinfra", "runs", run)
    try:
        with open(os.path.join(folder, "state.json"), "rb") as file:
            state = json.loads(file.read())
    except (OSError, ValueError):
        return f"run {run} has no job on this machine"
    process = state.get("pid")
    if "ended" in state or process is None or _ticks(process) != state.get("ticks"):
        return f"the job of run {run} has ended"
    try:
        with open(f"/proc/{process}/environ", "rb") as file:
            pairs = [pair.partition(b"=") for pair in file.read().split(b"\0") if b"=" in pair]
        os.chdir(f"/proc/{process}/cwd")
    except OSError as error:
        return f"the job of run {run} cannot be read: {error.strerror}"
    environment = {name: value for name, _, value in pairs}
    environment[b"PWD"] = os.getcwdb()
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606 the words are the user's own
    except OSError as error:
        sys.stderr.write(f"gpuinfra: {command[0]}: {error.strerror}\n")
        sys.exit(NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_START)


def _ticks(process: int) -> Any:
    """Return when a process started, in clock ticks since boot: another one may have its id now."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


if __name__ == "__main__":
    sys.exit(f"gpuinfra: {main(sys.argv[1], sys.argv[2:])}")
