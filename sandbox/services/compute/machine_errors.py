"""How Microsoft.Compute refuses."""

from __future__ import annotations

import re

from gpuinfra.sandbox.kernel.errors import ArmError, invalid_parameter
from gpuinfra.sandbox.kernel.store import Resource

_NAME = r"^[^_\W][\w\-.]{0,79}(?<![-.])$"


def required(name: str) -> ArmError:
    """A part of the body that is not there."""
    return invalid_parameter(name, f"Required parameter '{name}' is missing (null).")


def invalid_value(name: str) -> ArmError:
    """A part of the body that is of a wrong type or none of the known values."""
    return invalid_parameter(name, f"The value of parameter {name} is invalid.")


def not_allowed(message: str, target: str | None = None) -> ArmError:
    """Not now, or not with this."""
    return ArmError(409, "OperationNotAllowed", message, target=target)


def change_not_allowed(name: str) -> ArmError:
    """A part that was decided when the resource was made."""
    return ArmError(409, "PropertyChangeNotAllowed", f"Changing property '{name}' is not allowed.", target=name)


def not_modelled(what: str) -> ArmError:
    """A part of the body that Azure knows and the embedded Azure does not."""
    message = f"The embedded Azure does not model {what}. Nothing was done. Azure itself may know it."
    return ArmError(501, "NotInSandbox", message)


def check_entity_name(name: str, entity: str) -> None:
    """Names of machines and disks."""
    if not re.fullmatch(_NAME.strip("^$"), name, re.ASCII):
        raise invalid_parameter(
            entity, f"The entity name '{entity}' is invalid according to its validation rule: {_NAME}."
        )


def check_same_location(existing: Resource, location: str) -> None:
    """A resource stays where it is."""
    if existing.location != location:
        raise ArmError(
            409,
            "InvalidResourceLocation",
            f"The resource '{existing.name}' already exists in location '{existing.location}' in resource group "
            f"'{existing.group}'. A resource with the same name cannot be created in location '{location}'. Please "
            "select a new resource name.",
        )


def text(value: object, name: str) -> str | None:
    """A text or nothing."""
    if value is not None and not isinstance(value, str):
        raise invalid_value(name)
    return value


def choice(value: object, name: str, choices: tuple[str, ...]) -> str | None:
    """One of a few texts in Azure's own spelling, or nothing."""
    if value is None:
        return None
    found = {one.casefold(): one for one in choices}.get(value.casefold()) if isinstance(value, str) else None
    if found is None:
        raise invalid_value(name)
    return found


def boolean(value: object, name: str, default: bool) -> bool:
    """Yes or no."""
    if value is None:
        return default
    if not isinstance(value, bool):
        raise invalid_value(name)
    return value
