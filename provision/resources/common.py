"""What resource kinds share: the input of a plan, tags, regions and differences."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpuinfra.models.plan import Candidate, Difference, Kind, Ref, Resource
from gpuinfra.models.spec import Spec
from gpuinfra.provision import tags
from gpuinfra.provision.lease import Lease, Terms, terms_of
from gpuinfra.provision.login import HostKey
from gpuinfra.provision.market import ImagePlan
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.tags import ref_of


@dataclass(frozen=True)
class PlanInput:
    """One machine at one place, with everything that the plan needs to know."""

    spec: Spec
    candidate: Candidate
    subscription: str
    sources: tuple[str, ...]
    """The addresses that may reach SSH, with `auto` resolved to an address."""
    public_key: str
    """The administrator's public key itself, not its file."""
    host_key: HostKey
    lease: Lease
    image_plan: ImagePlan | None = None
    ready: str = ""
    """Since when the machine may hold data; empty if there is none."""
    price_per_hour: float | None = None
    """In US dollars while the machine is on; None if no price is known."""
    repository: str = ""
    """The git repository that contains the spec; empty if unknown."""
    has_schedule: bool = True
    """Whether the region offers Azure's daily shutdown schedule."""
    kept_terms: Terms | None = None
    """The terms that a machine was switched on with, which still apply while it is on."""

    @property
    def terms(self) -> Terms:
        """The lease length, the idle time limit, and the cost cap as a duration."""
        return self.kept_terms or terms_of(self.spec.lifecycle, self.price_per_hour)

    def ref(self, kind: Kind) -> Ref:
        """Return the reference to a resource of this machine."""
        return ref_of(kind, self.spec.group_name, self.spec.name)

    def id(self, kind: Kind) -> str:
        """Return the ID of a resource of this machine."""
        return self.ref(kind).id(self.subscription)


def resource(plan_input: PlanInput, kind: Kind, properties: dict[str, Any], **more: Any) -> Resource:
    """Return a resource of the machine with its region and tags."""
    body = {
        "location": plan_input.candidate.region,
        "tags": {**plan_input.spec.tags, tags.NAME: plan_input.spec.name},
        **more,
        "properties": properties,
    }
    return Resource(plan_input.ref(kind), body)


def place(desired: Resource, part: ObservedResource) -> Iterator[Difference]:
    """Yield a difference if the region differs. Azure cannot move a resource, so it must be replaced."""
    if part.region != desired.body["location"]:
        yield Difference("region", part.region, desired.body["location"], replaces=True)


def missing_tags(desired: Resource, part: ObservedResource) -> Iterator[Difference]:
    """Yield a difference for each missing or different tag. Tags that others added are ignored."""
    for name, value in desired.body["tags"].items():
        found = tags.get(part.tags, name)
        if found != value:
            yield Difference(f"tag {name}", found or "none", value)


def with_others(part: ObservedResource, ours: Mapping[str, str]) -> dict[str, str]:
    """Return the tags to send: ours, and those that others added."""
    names = {name.casefold() for name in ours}
    others = {name: value for name, value in part.tags.items() if name.casefold() not in names}
    return {**others, **ours}


def whole_update(wanted: Resource, part: ObservedResource) -> Resource:
    """Return a full body with the tags of others kept."""
    return Resource(wanted.ref, {**wanted.body, "tags": with_others(part, wanted.body["tags"])})


def same_id(one: Any, other: str) -> bool:
    """Return whether a reference has this ID. Azure ignores case in IDs."""
    return isinstance(one, Mapping) and str(one.get("id", "")).casefold() == other.casefold()
