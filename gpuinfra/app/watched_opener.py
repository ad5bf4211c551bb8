"""Wait for a machine while checking that it is still on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuinfra.models.spec import Spec
    from gpuinfra.models.target import Target
    from gpuinfra.provision.cloud import Cloud
    from gpuinfra.runner.connection.port import Connection

LOOK_SECONDS = 10.0


def watched_opener(cloud: Cloud, spec: Spec) -> Callable[[Target, float], Connection]:
    """Return a function that opens SSH connections and checks every few seconds that Azure shows the machine as on."""
    from gpuinfra.models.resource import Kind
    from gpuinfra.provision.errors import CloudError
    from gpuinfra.provision.names import ref_of
    from gpuinfra.provision.power import UNUSABLE
    from gpuinfra.runner.connection.ssh import SshConnection
    from gpuinfra.runner.readiness import SSH, NotReady

    ref = ref_of(Kind.VM, spec.group_name, spec.name)
    next_look = time.monotonic() + LOOK_SECONDS

    def open_connection(target: Target, seconds: float) -> Connection:
        nonlocal next_look
        if time.monotonic() >= next_look:
            next_look = time.monotonic() + LOOK_SECONDS
            try:
                machine = cloud.look(ref)
            except CloudError:
                return SshConnection.open(target, seconds)  # without an answer from Azure, the state is unknown
            if machine is None or machine.power in UNUSABLE:
                state = machine.power if machine else "gone"
                raise NotReady(
                    SSH, f"`{spec.name}` is {state}: somebody ended it meanwhile", "`gpuinfra up SPEC` starts it again"
                )
        return SshConnection.open(target, seconds)

    return open_connection
