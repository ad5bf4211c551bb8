"""The inputs of a plan in addition to the observed state: pure values, resolved before planning."""

from dataclasses import dataclass, field

from gpuinfra.models.plan import Candidate
from gpuinfra.models.resource import Kind, Ref
from gpuinfra.models.spec import Spec
from gpuinfra.provision.lifecycle.lease import Lease
from gpuinfra.provision.lifecycle.terms import Terms, terms_of
from gpuinfra.provision.market.port import ImagePlan
from gpuinfra.provision.names import ref_of


@dataclass(frozen=True)
class HostKey:
    """A machine's SSH host key, generated here so that the first connection can be verified."""

    public: str
    private: str = field(repr=False)


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
