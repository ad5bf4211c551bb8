"""Recorded ARM traffic next to the checkout: requests, Azure's answers, and their shape."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

DATA = Path(__file__).parents[4] / "shared" / "data"
NOT_MODELLED = Path(__file__).parents[2] / "cases" / "arm" / "not_modelled.txt"

# Names that stand behind these words are not part of what kind of request it is.
_NAMED = (
    "subscriptions resourceGroups locations operations operationResults operationStatuses publishers offers skus "
    "versions schedules virtualMachines disks networkInterfaces networkSecurityGroups securityRules publicIPAddresses "
    "virtualNetworks subnets deployments userAssignedIdentities roleAssignments plans runCommands types"
).split()
_NAMES = re.compile(rf"(?<=/)({'|'.join(_NAMED)})/[^/?]+", re.IGNORECASE)
_SPELLING = {word.lower(): word for word in _NAMED}


class Exchange(NamedTuple):
    """One request and its answer."""

    file: str
    kind: str
    method: str
    uri: str
    sent: Any
    status: int
    headers: frozenset[str]
    body: Any


def recordings() -> Iterator[Exchange]:
    """Everything that was recorded as a request with an answer."""
    for folder in ("arm-golden", "arm-traffic"):
        for file in sorted((DATA / folder).glob("*.json")):
            content = json.loads(file.read_text("utf-8"))
            for entry in content if isinstance(content, list) else [content]:
                if isinstance(entry, dict) and {"method", "uri", "status"} <= set(entry):
                    yield _recording(f"{folder}/{file.name}", entry)


def _recording(name: str, entry: dict[str, Any]) -> Exchange:
    path, _, query = re.sub(r"^https?://[^/]+", "", entry["uri"]).partition("?")
    path = _NAMES.sub(lambda found: f"{_SPELLING[found.group(1).lower()]}/*", path)
    marks = [mark for mark in ("monitor=true", "expand=instanceView", "statusOnly") if mark.lower() in query.lower()]
    headers = {str(header).lower() for header in entry.get("response_headers") or entry.get("headers") or {}}
    protocol = frozenset(headers & {"azure-asyncoperation", "location"})
    kind = " ".join([entry["method"], path, str(entry["status"]), *marks])
    # The two folders name their fields differently.
    sent, body = (entry.get(f"{part}_body", entry.get(part)) for part in ("request", "response"))
    return Exchange(name, kind, entry["method"], entry["uri"], sent, entry["status"], protocol, body)


def shape(body: Any, path: str = "") -> dict[str, str]:
    """Every place in a body and the JSON type of what is there; all items of a list are one place."""
    found = {path: _type(body)} if path else {}
    if isinstance(body, dict):
        for key, value in body.items():
            # Names of tags, of users' identities and of a template's outputs are content, not shape.
            if not path.endswith(("tags", "userAssignedIdentities", "outputs")):
                found |= shape(value, f"{path}.{key}" if path else key)
    elif isinstance(body, list):
        for item in body:
            found |= shape(item, f"{path}[]")
    return found


def _type(value: Any) -> str:
    names = {bool: "boolean", int: "number", float: "number", str: "string", type(None): "null", dict: "object"}
    return names.get(type(value), "array")


def not_modelled() -> dict[str, str]:
    """Patterns of places that the slice leaves out, each with its reason: `kind-pattern place-pattern # reason`."""
    lines = NOT_MODELLED.read_text("utf-8").splitlines()
    entries = (line.partition(" # ") for line in lines if line and not line.startswith("#"))
    return {pattern.strip(): reason.strip() for pattern, _, reason in entries}
