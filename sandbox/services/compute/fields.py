"""Fields in the bodies of Microsoft.Compute, and the errors for values it refuses."""

import re

from gpuinfra.sandbox.kernel.errors import ArmError, invalid_parameter

_NAME = r"^[^_\W][\w\-.]{0,79}(?<![-.])$"


def required(name: str) -> ArmError:
    """Return the error for a missing field."""
    return invalid_parameter(name, f"Required parameter '{name}' is missing (null).")


def invalid_value(name: str) -> ArmError:
    """Return the error for a field with a wrong type or an unknown value."""
    return invalid_parameter(name, f"The value of parameter {name} is invalid.")


def not_allowed(message: str, target: str | None = None) -> ArmError:
    """Return the error for an operation that the resource's state or size does not allow."""
    return ArmError(409, "OperationNotAllowed", message, target=target)


def change_not_allowed(name: str) -> ArmError:
    """Return the error for a change of a field that is fixed at creation."""
    return ArmError(409, "PropertyChangeNotAllowed", f"Changing property '{name}' is not allowed.", target=name)


def check_entity_name(name: str, entity: str) -> None:
    """Check the name of a VM or disk."""
    if not re.fullmatch(_NAME.strip("^$"), name, re.ASCII):
        raise invalid_parameter(
            entity, f"The entity name '{entity}' is invalid according to its validation rule: {_NAME}."
        )


def text(value: object, name: str) -> str | None:
    """Return the string, or None if the field is absent."""
    if value is not None and not isinstance(value, str):
        raise invalid_value(name)
    return value


def choice(value: object, name: str, choices: tuple[str, ...]) -> str | None:
    """Return one of the choices in Azure's own spelling, or None if the field is absent."""
    if value is None:
        return None
    found = {one.casefold(): one for one in choices}.get(value.casefold()) if isinstance(value, str) else None
    if found is None:
        raise invalid_value(name)
    return found


def boolean(value: object, name: str, default: bool) -> bool:
    """Return the boolean, or the default if the field is absent."""
    if value is None:
        return default
    if not isinstance(value, bool):
        raise invalid_value(name)
    return value
