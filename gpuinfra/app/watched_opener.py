"""Waiting for a machine while looking whether it is still there to wait for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuinfra.models.spec import Spec
    from gpuinfra.models.target import Target
    from gpuinfra.provision.cloud import Cloud
    from gpuinfra.runner.machine.connection import Connection

LOOK_SECONDS = 10.0


def watched_opener(cloud: Cloud, spec: Spec) -> Callable[[Target, float], Connection]:
    """Opens SSH connections; every few seconds it asks Azure whether the machine is on at all."""
    from gpuinfra.models.resource import Kind
    from gpuinfra.provision.errors import CloudError
    from gpuinfra.provision.names import ref_of
    from gpuinfra.runner.machine.readiness import SSH, NotReady
    from gpuinfra.runner.machine.ssh import SshConnection

    ref = ref_of(Kind.VM, spec.group_name, spec.name)
    next_look = time.monotonic() + LOOK_SECONDS

    def open_connection(target: Target, seconds: float) -> Connection:
        nonlocal next_look
        if time.monotonic() >= next_look:
            next_look = time.monotonic() + LOOK_SECONDS
            try:
                machine = cloud.look(ref)
            except CloudError:
                return SshConnection.open(target, seconds)  # that Azure does not answer says nothing of the machine
            if machine is None or machine.power in {"deallocating", "deallocated", "stopping", "stopped"}:
                state = machine.power if machine else "gone"
                raise NotReady(SSH, f"`{spec.name}` is {state}: somebody ended it meanwhile", "`gpuinfra up` again")
        return SshConnection.open(target, seconds)

    return open_connection
