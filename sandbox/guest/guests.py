"""All guests of a server, by the `vmId` of their VM."""

import asyncio
from collections import defaultdict
from pathlib import Path

from gpuinfra.sandbox.guest import processes
from gpuinfra.sandbox.guest.disk import remove_tree
from gpuinfra.sandbox.guest.guest import Guest
from gpuinfra.sandbox.guest.spec import CommandResult, GuestNotRunningError, GuestSpec


class Guests:
    """Starts and stops guests. Calls for the same VM wait for each other."""

    def __init__(self) -> None:
        self._guests: dict[str, Guest] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def start(self, spec: GuestSpec) -> None:
        """Power on, and return when SSH answers. A running guest is left alone."""
        async with self._locks[spec.vm_id]:
            if spec.vm_id not in self._guests:
                guest = Guest(spec)
                await guest.boot()
                self._guests[spec.vm_id] = guest

    def disconnect(self, vm_id: str) -> None:
        """Drop every connection to a guest and accept no new ones; `stop` ends its processes."""
        if guest := self._guests.get(vm_id):
            guest.disconnect()

    async def stop(self, vm_id: str, root: Path | None = None) -> None:
        """Power off: end the listener, the sessions and every process.

        With `root`, also end processes that an earlier server left.
        """
        async with self._locks[vm_id]:
            await self._stop(vm_id, root)

    async def delete(self, vm_id: str, root: Path) -> None:
        async with self._locks[vm_id]:
            await self._stop(vm_id, root)
            await asyncio.to_thread(remove_tree, root)

    async def stop_all(self) -> None:
        """Power off every guest; all are tried, then the first failure is raised."""
        results = await asyncio.gather(*(self.stop(vm_id) for vm_id in list(self._guests)), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def run_command(self, vm_id: str, script: str, deadline_seconds: float) -> CommandResult:
        """Run a script in the guest as Azure's agent does. Raises TimeoutError past the deadline, after ending it."""
        guest = self._running(vm_id)
        if not guest.agent_is_ready:
            raise GuestNotRunningError(vm_id)
        return await guest.run_command(script, deadline_seconds)

    def set_gpu_gone(self, vm_id: str, gone: bool) -> None:
        """Make the GPU fall off the bus, or come back."""
        self._running(vm_id).set_gpu_gone(gone)

    def agent_is_ready(self, vm_id: str) -> bool:
        """Whether the guest is powered on and Azure's agent in it is up."""
        return vm_id in self._guests and self._guests[vm_id].agent_is_ready

    def running(self, vm_id: str) -> bool:
        return vm_id in self._guests

    async def _stop(self, vm_id: str, root: Path | None) -> None:
        guest = self._guests.get(vm_id)
        if guest is not None:
            # Removed only when it is off: a stop that was interrupted or failed can be repeated.
            await guest.shut_down()
            del self._guests[vm_id]
        elif root is not None:
            await processes.end(processes.guest_tag(vm_id, root))

    def _running(self, vm_id: str) -> Guest:
        try:
            return self._guests[vm_id]
        except KeyError:
            raise GuestNotRunningError(vm_id) from None
