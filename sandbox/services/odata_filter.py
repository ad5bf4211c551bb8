"""OData's `$filter`, as far as ARM's lists support it: comparisons joined by `and`."""

import re
from typing import Any

from gpuinfra.sandbox.kernel.errors import ArmError

_COMPARISON = re.compile(r"\s*([A-Za-z]+)\s+eq\s+'((?:[^']|'')*)'\s*", re.IGNORECASE)


def parse_filter(text: str, fields: frozenset[str]) -> dict[str, str]:
    """Return names in lower case and values of `tagName eq 'x' and tagValue eq 'y'`. Raises ARM's 400 otherwise."""
    wanted: dict[str, str] = {}
    position = 0
    while text.strip():
        found = _COMPARISON.match(text, position)
        if found is None or found[1].lower() not in fields or found[1].lower() in wanted:
            raise invalid_filter(text)
        wanted[found[1].lower()] = found[2].replace("''", "'")
        position = found.end()
        if position == len(text):
            break
        joint = re.compile(r"and\s", re.IGNORECASE).match(text, position)
        if joint is None:
            raise invalid_filter(text)
        position = joint.end()
    if "tagvalue" in wanted and "tagname" not in wanted:
        raise invalid_filter(text)
    return wanted


def invalid_filter(text: str) -> ArmError:
    """Return the error for a filter that the list does not support."""
    return ArmError(400, "InvalidFilterInQueryString", f"Invalid $filter '{text}' specified in the query string.")


def has_tag(body: dict[str, Any], wanted: dict[str, str]) -> bool:
    """Whether the tags match a filter's `tagname` and `tagvalue`, if present. Only values are case-sensitive."""
    if "tagname" not in wanted:
        return True
    tags = {name.lower(): value for name, value in (body.get("tags") or {}).items()}
    name = wanted["tagname"].lower()
    return name in tags and ("tagvalue" not in wanted or tags[name] == wanted["tagvalue"])
