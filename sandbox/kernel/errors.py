"""ARM's errors: status, code and message, in ARM's envelope."""

from typing import Any


class ArmError(Exception):
    """An error that answers a request or ends an operation."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        target: str | None = None,
        details: list[dict[str, Any]] | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.status, self.code, self.message = status, code, message
        self.target, self.details, self.headers = target, details, headers or {}

    def body(self) -> dict[str, Any]:
        """Return the inner object, as operations show it."""
        inner: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.target is not None:
            inner["target"] = self.target
        if self.details is not None:
            inner["details"] = self.details
        return inner

    def envelope(self) -> dict[str, Any]:
        return {"error": self.body()}


def group_not_found(group: str) -> ArmError:
    """Return the error for an unknown resource group."""
    return ArmError(404, "ResourceGroupNotFound", f"Resource group '{group}' could not be found.")


def resource_not_found(kind: str, name: str, group: str) -> ArmError:
    """Return the error for an unknown resource. `kind` is a full type such as Microsoft.Network/virtualNetworks."""
    return ArmError(
        404,
        "ResourceNotFound",
        f"The Resource '{kind}/{name}' under resource group '{group}' was not found. For more details please go to "
        "https://aka.ms/ARMResourceNotFoundFix",
    )


def parent_not_found(parent: str) -> ArmError:
    """Return the error for a nested resource whose parent does not exist."""
    return ArmError(
        404,
        "ParentResourceNotFound",
        f"Can not perform requested operation on nested resource. Parent resource '{parent}' not found.",
    )


def invalid_parameter(target: str, message: str) -> ArmError:
    """Return the error for a value that Azure does not accept."""
    return ArmError(400, "InvalidParameter", message, target=target)


def invalid_content(message: str) -> ArmError:
    """Return the error for a body that cannot be read."""
    return ArmError(400, "InvalidRequestContent", message)


def not_modelled(what: str) -> ArmError:
    """Return the error for something that Azure has and the embedded Azure does not."""
    message = f"The embedded Azure does not model {what}. Nothing was done. Azure itself may know it."
    return ArmError(501, "NotInSandbox", message)


def outside_the_slice(method: str, path: str) -> ArmError:
    """Return the error for a request that the embedded Azure does not model; it never invents a success."""
    return not_modelled(f"'{method} {path}'")
