"""Poll long-running operations, more often than Azure's first hint and no longer than the deadline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from azure.core.exceptions import AzureError
from azure.mgmt.core.polling.arm_polling import ARMPolling

from gpuinfra.models.resource import Ref
from gpuinfra.provision.azure.errors import translate
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.waiting.deadline import Deadline
from gpuinfra.provision.waiting.interrupt import Interrupt

# Azure's hint can be 50 s for a VM, which wastes time. Its limit is 45 polls per minute. A shorter hint than these
# values is used as it is: the sandbox sends such hints.
SHORTEST, LONGEST, GROWTH = 0.4, 1.5, 1.2
# How often a wait checks for Ctrl-C, in seconds.
LOOK = 0.25


class Pace(ARMPolling):
    """A polling method that starts fast and slows down to LONGEST seconds."""

    def __init__(self, arm: str) -> None:
        super().__init__(
            lro_options={"final-state-via": "azure-async-operation"}, path_format_arguments={"endpoint": arm}
        )
        self._pause = SHORTEST

    def _extract_delay(self) -> float:
        pause = min(float(super()._extract_delay()), self._pause)
        self._pause = min(LONGEST, self._pause * GROWTH)
        return pause


@dataclass(frozen=True)
class AzureOperation:
    """An operation that the SDK polls; the poller is None if it was finished at once."""

    ref: Ref
    poller: Any = None

    def wait(self, deadline: Deadline, interrupt: Interrupt) -> None:
        """Wait until the operation is finished. Raise CloudError on failure or timeout."""
        if self.poller is None:
            return
        try:
            while not self.poller.done() and not deadline.is_over:
                interrupt.check(str(self.ref))
                self.poller.wait(min(LOOK, deadline.left))
            self.poller.wait(0)  # raises the error that ended the operation
        except AzureError as error:
            raise translate(error, str(self.ref)) from error
        if not self.poller.done():
            raise CloudError(Fault.TIMEOUT, "Timeout", "Azure did not finish in time", subject=str(self.ref))
