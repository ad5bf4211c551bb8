"""Remember which environments were seen to use this machine's GPU, so that each is checked once."""

from __future__ import annotations

import os
from typing import Any

from gpuinfra.remote import home
from gpuinfra.remote.wire import Wire

FOLDER, ENVIRONMENTS = "gpu-checks", "environments"


def known(wire: Wire, request: dict[str, Any]) -> None:
    """Send whether the environment passed the check before. With `passed`, record that it did now.

    With `environment`, it is recorded in this Python environment: one that is made again may have other packages.
    """
    path = home.named(FOLDER, request["key"])
    if request.get("environment"):
        path = home.named(ENVIRONMENTS, request["environment"], f"{FOLDER}-{request['key']}")
    if request.get("passed"):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w"):
            pass
    wire.send_json({"known": os.path.exists(path)})
