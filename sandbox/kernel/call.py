"""One request and its answer, as a service sees them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuinfra.sandbox.kernel.cloud import Cloud


@dataclass(frozen=True)
class Principal:
    """Who calls. A managed identity may do what its role assignments say; the tenant's own client may do all."""

    id: str
    is_owner: bool


CLOUD_ITSELF = Principal("sandbox", is_owner=True)
"""Who deletes what is in a group, and switches machines off when their schedule says so."""


@dataclass(frozen=True)
class Call:
    """A request that has passed authentication. Names in `query` and `headers` are in lower case."""

    cloud: Cloud
    method: str
    path: str
    parameters: Mapping[str, str]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any
    principal: Principal
    base_url: str
    correlation_id: str

    def __getitem__(self, name: str) -> str:
        """A value of the path."""
        return self.parameters[name]

    @property
    def api_version(self) -> str:
        """What the caller asked for; any is taken."""
        return self.query.get("api-version", "")


@dataclass
class Answer:
    """Status, body and headers. A body of None is an empty one."""

    status: int
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    operation_id: str | None = None
    """The long-running operation that this answer starts, for those inside the server who wait for it."""
