"""Resource ids. Azure compares them without case and keeps the case in which they were written."""

from dataclasses import dataclass


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
    def parent(self) -> "ResourceId | None":
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
