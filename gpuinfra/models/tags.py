"""Tags by Azure's rules: https://learn.microsoft.com/azure/azure-resource-manager/management/tag-resources."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, WithJsonSchema

from gpuinfra.diagnostics import Code
from gpuinfra.models.base import checked, rejection, whole

# Azure allows 50 per resource; gpuinfra uses 10.
MOST_TAGS = 40
OUR_PREFIX = "gpuinfra:"

_FORBIDDEN = r"<>%&\\?/"
_RESERVED = "[Mm][Ii][Cc][Rr][Oo][Ss][Oo][Ff][Tt]|[Aa][Zz][Uu][Rr][Ee]|[Ww][Ii][Nn][Dd][Oo][Ww][Ss]"
_OURS = "[Gg][Pp][Uu][Ii][Nn][Ff][Rr][Aa]:"
TAG_NAME = rf"(?!{_OURS}|{_RESERVED})[^{_FORBIDDEN}\x00-\x1f\x7f]{{1,512}}"
TAG_VALUE = r"[^\x00-\x1f\x7f]{0,256}"


def check_tag_name(name: str) -> None:
    """Reject tag names that Azure does not allow, and reserved prefixes."""
    if re.fullmatch(TAG_NAME, name):
        return
    if re.match(_OURS, name):
        label = f"names starting with `{OUR_PREFIX}` are reserved: gpuinfra finds its machines by them"
    elif re.match(_RESERVED, name):
        label = "Azure reserves names starting with `microsoft`, `azure` or `windows`"
    elif found := re.search(f"[{_FORBIDDEN}]", name):
        label = f"Azure does not allow `{found.group()}` in tag names"
    else:
        label = "expected 1 to 512 printable characters"
    raise rejection(Code.BAD_TAG, "invalid tag", label)


def check_tag_value(value: str) -> None:
    """Reject values with more than 256 characters or more than one line."""
    if not re.fullmatch(TAG_VALUE, value):
        label = f"{len(value)} characters; Azure allows 256" if len(value) > 256 else "expected one line of text"
        raise rejection(Code.BAD_TAG, "invalid tag", label)


def _check_count(tags: dict[str, str]) -> dict[str, str]:
    if len(tags) > MOST_TAGS:
        label = f"{len(tags)} tags; Azure allows 50, and gpuinfra uses 10 of them"
        raise rejection(Code.BAD_TAG, "too many tags", label)
    return tags


Tags = Annotated[
    dict[Annotated[str, checked(check_tag_name)], Annotated[str, checked(check_tag_value)]],
    AfterValidator(_check_count),
    WithJsonSchema(
        {
            "type": "object",
            "maxProperties": MOST_TAGS,
            "propertyNames": {"pattern": whole(TAG_NAME)},
            "additionalProperties": {"type": "string", "pattern": whole(TAG_VALUE)},
        }
    ),
]
