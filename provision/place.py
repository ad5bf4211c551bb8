"""Decide where an existing machine belongs: it stays in place if the spec allows that."""

from __future__ import annotations

from gpuinfra.models.plan import Candidate
from gpuinfra.models.resource import Kind
from gpuinfra.models.spec import Spec
from gpuinfra.provision.cloud import Observed, ObservedResource
from gpuinfra.provision.plan import creation_failed


def actual_place(machine: ObservedResource) -> Candidate:
    """Return where the VM is, regardless of the spec."""
    zone = (machine.body.get("zones") or [None])[0]
    return Candidate(machine.region, machine.properties["hardwareProfile"]["vmSize"], zone)


def present_place(spec: Spec, observed: Observed) -> Candidate | None:
    """Return the candidate for the VM's current place, or None without a VM or if the spec does not allow its place."""
    machine = observed.part(Kind.VM)
    if machine is None or not observed.is_ours(machine) or creation_failed(observed):
        return None
    actual = actual_place(machine)
    if actual.region not in spec.regions or (spec.zones and actual.zone not in spec.zones):
        return None
    return Candidate(actual.region, _present_size(spec, actual.size), actual.zone if spec.zones else None)


def _present_size(spec: Spec, size: str) -> str:
    """Return the current size if the spec names it, else the spec's first size, to which the VM is resized."""
    named = {each.casefold(): each for each in spec.candidate_sizes}
    return named.get(size.casefold(), spec.candidate_sizes[0])
