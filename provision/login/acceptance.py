"""Whether a machine accepts a public key, and for how long it may refuse the login."""

from datetime import datetime, timedelta

from gpuinfra.models.plan import Action, Plan
from gpuinfra.models.resource import Kind
from gpuinfra.provision import tags
from gpuinfra.provision.observed_resource import ObservedResource

# cloud-init may not have written the administrator's key yet.
FIRST_BOOT = 180.0
# The keys are on the disk, but PAM refuses users until the boot has finished.
RESTART = 30.0
# The machine has booted: a refusal is final.
BOOTED = 5.0
# A machine that has been on for this long has finished booting.
MAX_BOOT = timedelta(minutes=10)


def is_created_with(machine: ObservedResource, public_key: str) -> bool:
    """Return whether the machine got this key when it was created. A user can have added more keys since."""
    linux = (machine.properties.get("osProfile") or {}).get("linuxConfiguration") or {}
    keys = (linux.get("ssh") or {}).get("publicKeys") or []
    return public_key.split()[:2] in [str(key.get("keyData", "")).split()[:2] for key in keys]


def login_seconds(plan: Plan, machine: ObservedResource, public_key: str, now: datetime) -> float:
    """Return how many seconds the machine may refuse the login after `up` executed this plan."""
    changes = [change for change in plan.changes if change.ref.kind is Kind.VM]
    if any(change.action in {Action.ADD, Action.REPLACE} for change in changes):
        return FIRST_BOOT
    has_key = is_created_with(machine, public_key)
    if plan.switches_on:
        # The first boot may not have finished.
        return FIRST_BOOT if has_key else RESTART
    since = tags.moment(machine.tags, tags.ON_SINCE)
    may_boot = since is None or now - since < MAX_BOOT
    return FIRST_BOOT if has_key and may_boot else BOOTED
