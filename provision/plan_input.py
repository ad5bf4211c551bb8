"""All that a plan depends on besides what Azure shows: pure values, settled before planning."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gpuinfra.models.candidate import Candidate
from gpuinfra.models.resource import Kind, Ref
from gpuinfra.models.spec import Spec
from gpuinfra.provision.lifecycle.terms import Terms, terms_of
from gpuinfra.provision.market.port import ImagePlan
from gpuinfra.provision.names import ref_of


@dataclass(frozen=True)
class HostKey:
    """A machine's own SSH key, made here so that the very first connection can be verified."""

    public: str
    private: str = field(repr=False)


@dataclass(frozen=True)
class Lease:
    """How long a machine may be on."""

    on_since: datetime
    until: datetime
    decided: datetime | None = field(default=None, compare=False)
    """When this was decided; None is at power-on."""

    @property
    def is_daily(self) -> bool:
        """Whether Azure's own schedule, which knows a time of day but no day, can end it."""
        return self.until - (self.decided or self.on_since) < timedelta(days=1)


@dataclass(frozen=True)
class PlanInput:
    """One machine at one place."""

    spec: Spec
    candidate: Candidate
    subscription: str
    sources: tuple[str, ...]
    """Who may reach SSH, `auto` made an address."""
    public_key: str
    """The administrator's public key itself."""
    host_key: HostKey
    lease: Lease
    image_plan: ImagePlan | None = None
    ready: str = ""
    """Since when there is a machine with something to lose; empty where there is none."""
    price_per_hour: float | None = None
    """In US dollars, while it is on; None where no price is known."""
    repository: str = ""
    """Which git repository the spec comes from; empty where that is not known."""
    kept_terms: Terms | None = None
    """What a machine that is on was promised, and is still."""

    @property
    def terms(self) -> Terms:
        """How long its lease is, when idleness ends it, and its cost cap as a time."""
        return self.kept_terms or terms_of(self.spec.lifecycle, self.price_per_hour)

    def ref(self, kind: Kind) -> Ref:
        """A part of this machine."""
        return ref_of(kind, self.spec.group_name, self.spec.name)

    def id(self, kind: Kind) -> str:
        """The id of a part of this machine."""
        return self.ref(kind).id(self.subscription)
