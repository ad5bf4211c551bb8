"""Where a machine that is there belongs: it stays where it is for as long as the spec allows that."""

from __future__ import annotations

from gpuinfra.models.candidate import Candidate
from gpuinfra.models.resource import Kind
from gpuinfra.models.spec import Spec
from gpuinfra.provision.cloud import Observed, ObservedResource
from gpuinfra.provision.plan import creation_failed


def actual_place(machine: ObservedResource) -> Candidate:
    """Where it is, whatever any spec says."""
    zone = (machine.body.get("zones") or [None])[0]
    return Candidate(machine.region, machine.properties["hardwareProfile"]["vmSize"], zone)


def present_place(spec: Spec, observed: Observed) -> Candidate | None:
    """The candidate that the machine is at; None where there is no machine, or it is where the spec has none."""
    machine = observed.part(Kind.VM)
    if machine is None or not observed.is_ours(machine) or creation_failed(observed):
        return None
    actual = actual_place(machine)
    if actual.region not in spec.regions or (spec.zones and actual.zone not in spec.zones):
        return None
    return Candidate(actual.region, _present_size(spec, actual.size), actual.zone if spec.zones else None)


def _present_size(spec: Spec, size: str) -> str:
    """The size that it has, if the spec names it; else the first that the spec names, which it is changed to."""
    named = {each.casefold(): each for each in spec.candidate_sizes}
    return named.get(size.casefold(), spec.candidate_sizes[0])
