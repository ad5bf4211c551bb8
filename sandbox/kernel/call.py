"""One request and its answer, as services see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuinfra.sandbox.kernel.cloud import Cloud


@dataclass(frozen=True)
class Principal:
    """The caller. A managed identity has the rights of its role assignments, the tenant's own client all rights."""

    id: str
    is_owner: bool


CLOUD_ITSELF = Principal("sandbox", is_owner=True)
"""The caller of the sandbox's own requests: deletions in a resource group, and scheduled shutdowns."""


@dataclass(frozen=True)
class Call:
    """An authenticated request. Names in `query` and `headers` are in lower case."""

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
        """Return a parameter of the path."""
        return self.parameters[name]

    @property
    def api_version(self) -> str:
        """The requested API version; any is accepted."""
        return self.query.get("api-version", "")


@dataclass
class Answer:
    """Status, body and headers. A body of None is empty."""

    status: int
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    operation_id: str | None = None
    """The long-running operation that this answer starts, for the sandbox's own requests."""
