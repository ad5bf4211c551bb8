"""Runs the guests: carries out, in real time, what the simulated cloud orders."""

import asyncio
import base64
import binascii
import contextlib
import logging
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

from gpuinfra.sandbox.catalogue import catalogue
from gpuinfra.sandbox.guest.guest import Guests
from gpuinfra.sandbox.guest.spec import Gpu, GuestNotRunningError, GuestSpec
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.routes import key
from gpuinfra.sandbox.services.compute.run_command import command_result
from gpuinfra.sandbox.services.compute.virtual_machines import guest_facts

logger = logging.getLogger(__name__)

MACHINES = "Microsoft.Compute/virtualMachines"
COMMAND_SECONDS = 5400
"""Azure's limit for Run Command: 90 minutes."""

_STOPS = {"stop", "delete"}

# Compute capability and PCI id by model.
_GPUS = {
    "T4": ("7.5", "0x1EB810DE"),
    "A100": ("8.0", "0x20B510DE"),
    "H100": ("9.0", "0x232110DE"),
    "RTXPRO6000": ("12.0", "0x2BB510DE"),
}
# Of all models, as in version 25.06.18 of the Data Science VM's image.
_DRIVER, _CUDA = "535.230.02", "12.2"


class GuestHost:
    """Carries out the cloud's orders for guests, for each VM in order."""

    def __init__(self, cloud: Cloud, ssh_port: int, metadata_url: str) -> None:
        self.cloud, self.ssh_port, self.metadata_url = cloud, ssh_port, metadata_url
        self.guests = Guests()
        self.docker_host = os.environ.get("DOCKER_HOST", "")
        """The address of the Docker Engine that guests use; empty for Docker's default."""
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._tasks: set[asyncio.Task[None]] = set()
        self._resets = asyncio.Event()
        self._faults: list[dict[str, Any]] = []

    def boot_all(self) -> None:
        """Boot the guests of all VMs that were running when the server ended."""
        for machine in self.cloud.store.resources(kind=MACHINES):
            state = self.cloud.meter.state(machine.key)
            if state and state[0] == "running":
                self.cloud.guest_orders.append({"kind": "start", "vm": machine.id})

    def carry_out(self) -> None:
        """Start to carry out all new orders. A guest that stops becomes unreachable at once."""
        orders, self.cloud.guest_orders[:] = list(self.cloud.guest_orders), []
        for order in orders:
            if order["kind"] in _STOPS:
                self.cloud.guests_stopping[order["vmId"]] += 1
                self.guests.disconnect(order["vmId"])
            task = asyncio.create_task(self._carry_out(order))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._apply_faults()

    async def finish(self) -> None:
        """Carry out all orders, and return when they are done."""
        self.carry_out()
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def reset(self) -> None:
        """Carry out all orders for VMs that no longer exist. A guest that was about to boot does not."""
        self._resets.set()
        try:
            await self.finish()
        finally:
            self._resets.clear()

    async def stop(self) -> None:
        """Power off every guest. The disks stay."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.guests.stop_all()

    async def _carry_out(self, order: dict[str, Any]) -> None:
        machine = key(order["vm"])
        try:
            async with self._locks[machine]:
                match order["kind"]:
                    case "provision":
                        await self._start(order["vm"])
                    case "start":
                        seconds = self.cloud.clock.real(self.cloud.latency.seconds("guest-boot"))
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(self._resets.wait(), seconds)
                        await self._start(order["vm"])
                    case "stop" | "delete" as kind:
                        self.cloud.guests_ready.discard(machine)
                        end = self.guests.stop if kind == "stop" else self.guests.delete
                        await end(order["vmId"], self._root(order["vmId"]))
                    case "run-command":
                        await self._run_command(order)
        except asyncio.CancelledError:
            raise
        except Exception:
            logger.exception("guest of %s: %s", order["vm"], order["kind"])
        finally:
            if order["kind"] in _STOPS:
                self.cloud.guests_stopping[order["vmId"]] -= 1

    async def _start(self, vm_id: str) -> None:
        cloud = self.cloud
        machine = cloud.store.get(vm_id)
        state = cloud.meter.state(key(vm_id))
        if machine is None or state is None or state[0] != "running":
            return  # it was powered off before it was up
        if cloud.faults.look("no-boot", resource_id=vm_id, region=machine.location):
            logger.warning("guest of %s does not boot: a fault", vm_id)
            return
        facts = guest_facts(cloud, vm_id)
        await self.guests.start(self._spec(vm_id, machine.location, facts))
        if self.guests.agent_is_ready(facts["vmId"]):
            cloud.guests_ready.add(key(vm_id))

    async def _run_command(self, order: dict[str, Any]) -> None:
        machine = self.cloud.store.get(order["vm"])
        vm_id = machine.properties["vmId"] if machine else ""
        answer: dict[str, Any] = {}
        try:
            done = await self.guests.run_command(vm_id, order["script"], COMMAND_SECONDS)
            answer["result"] = command_result(done.stdout, done.stderr)
        except GuestNotRunningError:
            answer["error"] = {
                "code": "VMAgentStatusCommunicationError",
                "message": "VM has not reported status for VM agent or extensions.",
            }
        with self.cloud.store.transaction():
            self.cloud.operations.complete(order["operation"], **answer)

    def _spec(self, vm_id: str, region: str, facts: dict[str, Any]) -> GuestSpec:
        look = self.cloud.faults.look
        return GuestSpec(
            vm_id=facts["vmId"],
            name=facts["name"],
            root=self._root(facts["vmId"]),
            address=facts["publicAddress"] or "",
            port=self.ssh_port,
            username=facts["username"],
            authorized_keys=tuple(facts["authorizedKeys"]),
            custom_data=_decoded(facts["customData"]),
            gpu=_gpu(facts["gpu"]),
            metadata_url=f"{self.metadata_url}/{facts['vmId']}/metadata",
            environment={
                "GPUINFRA_ARM_ENDPOINT": self.cloud.base_url,
                "SSL_CERT_FILE": str(self.cloud.folder / "ca.pem"),
                # The guest's `docker` finds an engine at a non-standard address too.
                **({"DOCKER_HOST": self.docker_host} if self.docker_host else {}),
            },
            # A VM without a public IP is unreachable.
            sshd_refuses=not facts["publicAddress"] or look("ssh-refuses", resource_id=vm_id, region=region),
            driver_refused=facts["secureBoot"],
            gpu_gone=look("gpu-gone", resource_id=vm_id, region=region),
        )

    def _root(self, vm_id: str) -> Path:
        return self.cloud.folder / "guests" / vm_id

    def _apply_faults(self) -> None:
        """Let GPUs disappear or come back while their guests run."""
        faults = self.cloud.faults.all()
        if faults == self._faults:
            return
        self._faults = faults
        for machine in self.cloud.store.resources(kind=MACHINES):
            if self.guests.running(machine.properties["vmId"]):
                gone = self.cloud.faults.look("gpu-gone", resource_id=machine.id, region=machine.location)
                self.guests.set_gpu_gone(machine.properties["vmId"], gone)


def _decoded(custom_data: str | None) -> bytes | None:
    if not custom_data:
        return None
    try:
        return base64.b64decode(custom_data, validate=True)
    except binascii.Error:
        return None


def _gpu(gpu: catalogue.Gpu | None) -> Gpu | None:
    if gpu is None:
        return None
    capability, device = _GPUS.get(gpu.model, ("0.0", "0x000010DE"))
    return Gpu(gpu.model, gpu.product, gpu.devices, gpu.memory_mib, capability, device, _DRIVER, _CUDA)
