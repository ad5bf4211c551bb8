"""Resource IDs, and services: which function answers which path, and which one ends which operation.

Paths match without case; parameters keep theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from gpuinfra.sandbox.kernel.call import Answer, Call

if TYPE_CHECKING:
    from gpuinfra.sandbox.kernel.cloud import Cloud

Handler = Callable[[Call], Answer]
Effect = Callable[["Cloud", dict[str, Any]], Any]
"""May raise ArmError, which fails its operation, and may return the operation's result."""
SUBSCRIPTION = "/subscriptions/{subscription}"
GROUP = f"{SUBSCRIPTION}/resourceGroups/{{group}}"
RESOURCE = f"{GROUP}/providers/{{namespace}}/{{type}}/{{resource}}"


@dataclass(frozen=True)
class Route:
    """A handler, and the action that the caller's roles have to allow."""

    method: str
    pattern: str
    handler: Handler
    action: str


class Service:
    """The routes of one service, and its effects: functions that events and operations refer to by name."""

    def __init__(self) -> None:
        self.routes: list[Route] = []
        self.effects: dict[str, Effect] = {}

    def route(self, method: str, pattern: str, *, action: str | None = None) -> Callable[[Handler], Handler]:

        def register(handler: Handler) -> Handler:
            self.routes.append(Route(method, pattern, handler, action or _action(method, pattern)))
            return handler

        return register

    def get(self, pattern: str) -> Callable[[Handler], Handler]:
        """Register the decorated handler of GET for a resource. HEAD answers 204 where GET answers 200."""

        def register(handler: Handler) -> Handler:
            def head(call: Call) -> Answer:
                handler(call)
                return Answer(204)

            self.route("HEAD", pattern)(head)
            return self.route("GET", pattern)(handler)

        return register

    def effect(self, name: str) -> Callable[[Effect], Effect]:

        def register(effect: Effect) -> Effect:
            self.effects[name] = effect
            return effect

        return register


def _action(method: str, pattern: str) -> str:
    """Return an action such as `Microsoft.Compute/virtualMachines/deallocate/action`."""
    _, found, provider = pattern.rpartition("/providers/")
    parts = provider.split("/")
    if not found:
        parts = ["Microsoft.Resources", "subscriptions", *(["resourceGroups"] if "{group}" in pattern else [])]
    named = [part for part in parts if not part.startswith("{")]
    verb = {"GET": "read", "HEAD": "read", "PUT": "write", "PATCH": "write", "DELETE": "delete"}.get(method, "action")
    return "/".join([*named, verb])


@dataclass
class _Branch:
    literal: dict[str, _Branch] = field(default_factory=dict)
    variable: _Branch | None = None
    routes: dict[str, tuple[Route, tuple[str, ...]]] = field(default_factory=dict)


class Router:
    """Finds the route for a path."""

    def __init__(self, services: Iterable[Service]) -> None:
        self.root = _Branch()
        for service in services:
            for route in service.routes:
                self._insert(route)

    def _insert(self, route: Route) -> None:
        branch, names = self.root, []
        for part in route.pattern.strip("/").split("/"):
            if part.startswith("{"):
                branch.variable = branch.variable or _Branch()
                branch = branch.variable
                names.append(part.strip("{}"))
            else:
                branch = branch.literal.setdefault(part.lower(), _Branch())
        if route.method in branch.routes:
            raise ValueError(f"two routes for {route.method} {route.pattern}")
        branch.routes[route.method] = (route, tuple(names))

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]] | set[str] | None:
        """Return the route and its parameters; or the methods that the path has; or None."""
        parts = [unquote(part) for part in path.strip("/").split("/")]
        found = _walk(self.root, parts, 0, [])
        if found is None:
            return None
        branch, values = found
        if method not in branch.routes:
            return set(branch.routes)
        route, names = branch.routes[method]
        return route, dict(zip(names, values, strict=True))


def _walk(branch: _Branch, parts: list[str], index: int, values: list[str]) -> tuple[_Branch, list[str]] | None:
    if index == len(parts):
        return (branch, values) if branch.routes else None
    part = parts[index]
    if (literal := branch.literal.get(part.lower())) and (found := _walk(literal, parts, index + 1, values)):
        return found
    if branch.variable and part:
        return _walk(branch.variable, parts, index + 1, [*values, part])
    return None


def merge(mapping: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return `mapping` with `other` merged into it, as PATCH does (RFC 7396)."""
    merged = dict(mapping)
    for name, value in other.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, dict) and isinstance(merged.get(name), dict):
            merged[name] = merge(merged[name], value)
        else:
            merged[name] = value
    return merged


@dataclass(frozen=True, slots=True)
class ResourceId:
    """A parsed id: subscription, resource group, provider namespace, and pairs of type and name."""

    subscription: str
    group: str
    namespace: str
    pairs: tuple[tuple[str, str], ...]

    @property
    def type(self) -> str:
        """The full type, such as `Microsoft.Network/virtualNetworks/subnets`."""
        return "/".join([self.namespace, *(kind for kind, _ in self.pairs)])

    @property
    def name(self) -> str:
        """The last name; without one, the resource group's."""
        return self.pairs[-1][1] if self.pairs else self.group

    @property
    def parent(self) -> ResourceId | None:
        if len(self.pairs) < 2:
            return None
        return ResourceId(self.subscription, self.group, self.namespace, self.pairs[:-1])

    def __str__(self) -> str:
        parts = ["", "subscriptions", self.subscription, "resourceGroups", self.group]
        if self.namespace:
            parts += ["providers", self.namespace, *(part for pair in self.pairs for part in pair)]
        return "/".join(parts)


def key(resource_id: str) -> str:
    """Return what all spellings of an id have in common."""
    return resource_id.rstrip("/").lower()


def parse_id(text: str) -> ResourceId:
    """Parse an id. Raises ValueError for anything else."""
    parts = text.strip("/").split("/")
    lowered = [part.lower() for part in parts]
    if len(parts) < 4 or lowered[0] != "subscriptions" or lowered[2] != "resourcegroups" or "" in parts:
        raise ValueError(f"not a resource id: {text}")
    if len(parts) == 4:
        return ResourceId(parts[1], parts[3], "", ())
    if lowered[4] != "providers" or len(parts) < 8 or len(parts) % 2:
        raise ValueError(f"not a resource id: {text}")
    return ResourceId(parts[1], parts[3], parts[5], tuple(zip(parts[6::2], parts[7::2], strict=True)))
