"""Parse Azure's resource IDs."""

from __future__ import annotations

import re

from gpuinfra.models.resource import ARM_TYPES, Kind, Ref

_ID = re.compile(
    r"/subscriptions/[^/]+/resourceGroups/(?P<group>[^/]+)/providers/(?P<type>[^/]+/[^/]+)/(?P<name>[^/]+)",
    re.IGNORECASE,
)
_KINDS = {arm_type.casefold(): kind for kind, arm_type in ARM_TYPES.items() if kind is not Kind.RESOURCE_GROUP}


def ref_from_id(resource_id: str) -> Ref | None:
    """Return the resource that an ID names, or None if gpuinfra never creates this kind."""
    match = _ID.fullmatch(resource_id)
    kind = _KINDS.get(match["type"].casefold()) if match else None
    return Ref(kind, match["group"], match["name"]) if match and kind else None
