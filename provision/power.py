"""Azure's power states of a VM: https://learn.microsoft.com/azure/virtual-machines/states-billing."""

RUNNING = "running"
STOPPED = "stopped"
DEALLOCATED = "deallocated"
"""The only power state that proves that a VM is not billed."""

USABLE = frozenset({RUNNING, "starting"})
SHUT_DOWN = frozenset({"stopping", STOPPED})
"""Off for the user, but still billed."""
BILLED = USABLE | SHUT_DOWN
NOT_BILLED = frozenset({"deallocating", DEALLOCATED})
UNUSABLE = SHUT_DOWN | NOT_BILLED
"""No job runs."""

STOPPED_BUT_BILLED = "stopped, but billed"
