"""Fields in the bodies of Microsoft.Network, and the errors for values it refuses."""

import json
from collections.abc import Sequence
from typing import Any

from gpuinfra.sandbox.kernel.errors import ArmError, not_modelled
from gpuinfra.sandbox.kernel.routes import key, parse_id

# What clients send for "not used"; a property that is not modelled may have one of these values.
_NOTHING: tuple[Any, ...] = (None, False, "", "None", "Disabled", [], {})


def bad_request(code: str, message: str) -> ArmError:
    """Return an error of Microsoft.Network, which always has `details`."""
    return ArmError(400, code, message, details=[])


def cannot_parse(code: str, message: str) -> ArmError:
    """Return the error for a body that Microsoft.Network cannot parse."""
    return ArmError(
        400, "InvalidRequestFormat", "Cannot parse the request.", details=[{"code": code, "message": message}]
    )


def wrong_value(value: Any, kind: str, path: str) -> ArmError:
    """Return the error for a value of the wrong type."""
    shown = json.dumps(value)[:80] if isinstance(value, str | int | float) else type(value).__name__
    return cannot_parse("InvalidJson", f"Error converting value {shown} to type '{kind}'. Path '{path}'.")


def text(mapping: dict[str, Any], name: str, path: str, default: str | None = None) -> str | None:
    """Return the string, or the default if the field is absent or null."""
    value = _typed(mapping, name, path, str, "String")
    return default if value is None else str(value)


def choice(mapping: dict[str, Any], name: str, path: str, allowed: Sequence[str], default: str) -> str:
    """Return one of the allowed strings in Azure's spelling; case does not matter."""
    value = text(mapping, name, path, default) or default
    for known in allowed:
        if known.lower() == value.lower():
            return known
    raise wrong_value(value, " | ".join(allowed), f"{path}.{name}")


def _typed(mapping: dict[str, Any], name: str, path: str, kind: type, title: str) -> Any:
    """Return a value of exactly this type, or None if the field is absent or null."""
    value = mapping.get(name)
    if value is not None and type(value) is not kind:
        raise wrong_value(value, title, f"{path}.{name}")
    return value


def boolean(mapping: dict[str, Any], name: str, path: str, *, default: bool = False) -> bool:
    """Return the boolean, or the default if the field is absent or null."""
    value = _typed(mapping, name, path, bool, "Boolean")
    return default if value is None else bool(value)


def integer(mapping: dict[str, Any], name: str, path: str, default: int) -> int:
    """Return the integer, or the default if the field is absent or null."""
    value = _typed(mapping, name, path, int, "Int32")
    return default if value is None else int(value)


def _list(mapping: dict[str, Any], name: str, path: str, kind: type, title: str) -> list[Any]:
    value = mapping.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
        raise wrong_value(value, f"List<{title}>", f"{path}.{name}")
    return list(value)


def texts(mapping: dict[str, Any], name: str, path: str) -> list[str]:
    """Return the list of strings; empty if the field is absent or null."""
    return _list(mapping, name, path, str, "String")


def items(mapping: dict[str, Any], name: str, path: str) -> list[dict[str, Any]]:
    """Return the list of objects; their `properties`, if present, are objects too."""
    value = _list(mapping, name, path, dict, "Object")
    for place, item in enumerate(value):
        if not isinstance(item.get("properties") or {}, dict):
            raise wrong_value(item["properties"], "Object", f"{path}.{name}[{place}].properties")
    return value


def item_names(nested: Sequence[dict[str, Any]], path: str) -> list[str]:
    """Return the names of nested resources: each has one, and no two are the same."""
    names: dict[str, str] = {}
    for place, item in enumerate(nested):
        name = item.get("name")
        if not isinstance(name, str) or not name:
            raise wrong_value(name, "String", f"{path}[{place}].name")
        if name.lower() in names:
            raise bad_request("DuplicateResourceName", f"Items in {path} have the same name '{name}'.")
        names[name.lower()] = name
    return list(names.values())


def reference(mapping: dict[str, Any], name: str, path: str, kind: str) -> str | None:
    """Return the id in `{"id": …}`; its type has to be `kind`, such as virtualNetworks/subnets."""
    value = mapping.get(name)
    if value is None:
        return None
    where = f"{path}.{name}"
    if not isinstance(value, dict):
        raise wrong_value(value, "Object", where)
    wanted = value.get("id")
    if wanted is None:
        raise cannot_parse("MissingJsonReferenceId", f"Value for reference id is missing. Path {where}.")
    try:
        parsed = parse_id(wanted) if isinstance(wanted, str) and wanted.isprintable() else None
    except ValueError:
        parsed = None
    if parsed is None or not parsed.pairs:
        raise ArmError(
            400,
            "LinkedInvalidPropertyId",
            f"Property id '{wanted}' at path '{where}.id' is invalid. Expect fully qualified resource Id that start "
            "with '/subscriptions/{subscriptionId}' or '/providers/{resourceProviderNamespace}/'.",
        )
    if key(parsed.type) != key(f"Microsoft.Network/{kind}"):
        raise cannot_parse(
            "InvalidJsonReferenceWrongType",
            f"Reference Id {wanted} is referencing resource of a wrong type. The Id is expected to reference resources "
            f"of type {kind}. Path {where}.",
        )
    return str(parsed)


def only_known(mapping: dict[str, Any], known: Sequence[str], path: str) -> None:
    """Refuse properties that the embedded Azure would have to ignore."""
    for name, value in mapping.items():
        if name not in known and value not in _NOTHING:
            raise not_modelled(f"the property '{path}.{name}'")
