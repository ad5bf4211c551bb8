"""Find what makes a machine reachable in other ways than its spec allows. All functions are pure.

`up` attaches one NSG to the NIC, with one rule: SSH from the addresses in the spec.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpuinfra.models.plan import Kind
from gpuinfra.models.spec import Spec
from gpuinfra.models.ssh import AUTO
from gpuinfra.provision import tags
from gpuinfra.provision.observed_resource import ObservedResource, refers_to, resource_of_row
from gpuinfra.provision.resources import nsg
from gpuinfra.provision.tags import ref_of

NO_NSG = "its NIC has no NSG"
EVERYWHERE = frozenset({"*", "0.0.0.0/0", "internet", "any"})
"""Sources of a rule, in lower case, that mean every address."""


class Network:
    """The NICs and NSGs of a subscription, by machine."""

    def __init__(self, rows: Mapping[Kind, Sequence[Mapping[str, Any]]]) -> None:
        self._found = {
            (kind, part.ref.group.casefold(), part.ref.name.casefold()): part
            for kind, bodies in rows.items()
            for part in (resource_of_row(kind, body) for body in bodies)
        }

    def exposures(self, machine: ObservedResource, spec: Spec | None) -> tuple[str, ...]:
        """Return how the machine can be reached in other ways than its spec allows."""
        return exposures(machine, self._part(Kind.NIC, machine), self._part(Kind.NSG, machine), spec)

    def _part(self, kind: Kind, machine: ObservedResource) -> ObservedResource | None:
        ref = ref_of(kind, machine.ref.group, machine.ref.name)
        return self._found.get((kind, ref.group.casefold(), ref.name.casefold()))


def exposures(
    machine: ObservedResource, nic: ObservedResource | None, group: ObservedResource | None, spec: Spec | None
) -> tuple[str, ...]:
    """Return how a machine can be reached in other ways than its spec allows. Without a NIC, nothing is known.

    Without a spec, or with one that changed since `up`, only SSH from every address counts as too many sources.
    """
    return tuple(_exposures(machine, nic, group, spec)) if nic else ()


def _exposures(
    machine: ObservedResource, nic: ObservedResource, group: ObservedResource | None, spec: Spec | None
) -> Iterator[str]:
    used = str((nic.properties.get("networkSecurityGroup") or {}).get("id") or "")
    if not used:
        yield NO_NSG
        return
    if not refers_to(used, ref_of(Kind.NSG, machine.ref.group, machine.ref.name)):
        yield f"its NIC has another NSG, {used.rpartition('/')[2]}"
        return
    if group is None:
        return  # it was just deleted, or cannot be read
    rules = {
        str(rule.get("name")): rule.get("properties") or {} for rule in group.properties.get("securityRules") or []
    }
    own = rules.pop(nsg.RULE, None)
    if own is None or not nsg.has_own_rule(group):
        yield f"NSG rule {nsg.RULE} was {'removed' if own is None else 'changed'}"
    else:
        is_current = spec and tags.get(machine.tags, tags.DIGEST) == spec.digest()
        yield from _ssh_sources(nsg.sources_of(own), spec if is_current else None)
    for name in sorted(rules):
        yield f"NSG rule {name} {_effect(rules[name])}"


def _ssh_sources(found: Sequence[str], spec: Spec | None) -> Iterator[str]:
    if spec is None:
        if any(source.casefold() in EVERYWHERE for source in found):
            yield "SSH is open to every address"
        return
    fixed = {source if "/" in source else f"{source}/32" for source in spec.network.allow_ssh_from if source != AUTO}
    others = sorted(set(found) - fixed)
    if AUTO in spec.network.allow_ssh_from:
        # `auto` is the address of the computer that ran `up`, which others do not know.
        others = [source for source in others if not source.endswith("/32")] or others[1:]
    if others:
        yield f"SSH is open to {', '.join(others)}"
    if missing := sorted(fixed - set(found)):
        yield f"SSH is closed to {', '.join(missing)}"


def _effect(rule: Mapping[str, Any]) -> str:
    """Describe a rule that was added by hand."""
    if str(rule.get("access")).casefold() != "allow" or str(rule.get("direction")).casefold() != "inbound":
        return "was added"
    ports = [str(each) for each in (rule.get("destinationPortRanges") or [rule.get("destinationPortRange") or "*"])]
    opened = "every port" if "*" in ports else f"port {', '.join(ports)}"
    sources = nsg.sources_of(rule)
    everyone = any(source.casefold() in EVERYWHERE for source in sources)
    return f"opens {opened} to {'every address' if everyone else ', '.join(sources) or 'others'}"
