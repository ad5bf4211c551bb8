"""What `forward` prints."""

from __future__ import annotations

import sys

from gpuinfra.views import json_output
from gpuinfra.views.terminal import harmless, messages, results


def show(machine: str, port: int, address: str, *, json: bool) -> None:
    """Print the local address on stdout at once, and how it ends on stderr."""
    if json:
        json_output.show({"machine": machine, "port": port, "address": address})
    else:
        results().print(f"{address} -> {harmless(machine)}:{port}")
        messages().print("Ctrl-C ends it; it does not renew the machine's lease")
    sys.stdout.flush()
