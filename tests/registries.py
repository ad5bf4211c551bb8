"""Registries that only the lab's engine can reach."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator

from tests.engine import TIED
from tests.integration.runner import registry
from tests.lab import Lab


@contextlib.contextmanager
def serving(lab: Lab, *options: str) -> Iterator[str]:
    """Return the address of a registry that the lab's engine can reach."""
    inside = [
        *TIED,
        "nsenter",
        f"--net=/proc/{lab.engine.pid}/ns/net",
        sys.executable,
        str(registry.__file__),
        *options,
    ]
    with subprocess.Popen(inside, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"localhost:{process.stdout.readline().strip()}"
        finally:
            process.kill()
