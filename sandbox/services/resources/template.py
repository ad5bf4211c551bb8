"""Deployment templates: parameters, resources, and their order by dependency."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import Any

from gpuinfra.sandbox.kernel.errors import ArmError, invalid_content, not_modelled
from gpuinfra.sandbox.services.common import section
from gpuinfra.sandbox.services.resources.template_expressions import Scope, TemplateError, evaluate

_TYPES: dict[str, tuple[str, type]] = {
    "string": ("String", str),
    "securestring": ("SecureString", str),
    "int": ("Int", int),
    "bool": ("Bool", bool),
    "object": ("Object", dict),
    "secureobject": ("SecureObject", dict),
    "array": ("Array", list),
}
_NOT_IN_BODY = frozenset({"name", "type", "apiversion", "dependson", "condition", "comments", "metadata"})
_NOT_MODELLED = ("copy", "resources", "scope")


@dataclass(frozen=True)
class PlannedResource:
    """A resource that a deployment will create; `after` are the indexes of its dependencies."""

    id: str
    type: str
    name: str
    api_version: str
    body: dict[str, Any]
    after: tuple[int, ...] = ()
    skipped: bool = False


@dataclass(frozen=True)
class Plan:
    """An evaluated template: what to create, which parameters to show, and which texts are secret."""

    resources: tuple[PlannedResource, ...]
    parameters: dict[str, dict[str, Any]]
    values: dict[str, Any]
    variables: dict[str, Any]
    outputs: dict[str, Any]
    secrets: tuple[str, ...]
    hash: str


def invalid_template(message: str) -> ArmError:
    """Return ARM's error for a template that cannot be deployed."""
    return ArmError(400, "InvalidTemplate", f"Deployment template validation failed: '{message}'.")


def make_plan(template: dict[str, Any], given: dict[str, Any], scope: Scope) -> Plan:
    """Evaluate a template. Raises ArmError with code InvalidTemplate if that is impossible."""
    try:
        values, shown, secrets = _parameters(section(template, "parameters"), given, scope)
        scope = replace(scope, parameters=values, now=None)
        variables = evaluate(section(template, "variables"), replace(scope, variables={}))
        scope = replace(scope, variables=variables)
        resources = _order([_resource(each, scope) for each in _resources(template)])
        outputs = _outputs(section(template, "outputs"))
    except TemplateError as error:
        raise invalid_template(str(error).rstrip(".") + ".") from None
    except RecursionError:
        raise invalid_template("The template is nested too deeply.") from None
    text = json.dumps(template, sort_keys=True).encode()
    number = int.from_bytes(hashlib.sha256(text).digest()[:8], "big")
    return Plan(resources, shown, values, variables, outputs, secrets, str(number))


def evaluate_outputs(outputs: dict[str, Any], scope: Scope, secrets: tuple[str, ...]) -> dict[str, Any]:
    """Return the outputs; those that contain a secret have no value."""
    shown: dict[str, Any] = {}
    for name, output in outputs.items():
        kind = _TYPES[output["type"].lower()][0]
        shown[name] = {"type": kind}
        value = evaluate(output["value"], scope)
        if not kind.startswith("Secure") and not any(secret in json.dumps(value) for secret in secrets):
            shown[name]["value"] = value
    return shown


# Parameters


def _parameters(
    declared: dict[str, Any], given: dict[str, Any], scope: Scope
) -> tuple[dict[str, Any], dict[str, dict[str, Any]], tuple[str, ...]]:
    unknown = [name for name in given if name.lower() not in {each.lower() for each in declared}]
    if unknown:
        raise TemplateError(
            f"The template parameters '{', '.join(unknown)}' in the parameters file are not valid; they are not "
            "present in the original template and can therefore not be provided at deployment time. The only supported "
            f"parameters for this template are '{', '.join(declared)}'. Please see "
            "https://aka.ms/arm-pass-parameter-values for usage details"
        )
    values: dict[str, Any] = {}
    shown: dict[str, dict[str, Any]] = {}
    secrets: list[str] = []
    for name, declaration in declared.items():
        kind = _kind(declaration, "parameter", name)
        value = _value(name, declaration, given, replace(scope, parameters=dict(values)))
        _check_value(name, declaration, kind, value)
        values[name], shown[name] = value, {"type": kind}
        if kind.startswith("Secure"):
            secrets += _texts(value)
        else:
            shown[name]["value"] = value
    return values, shown, tuple(secrets)


def _kind(declaration: Any, what: str, name: str) -> str:
    kind = declaration.get("type") if isinstance(declaration, dict) else None
    if not isinstance(kind, str) or kind.lower() not in _TYPES:
        raise TemplateError(
            f"The template {what} '{name}' is not valid: its type must be one of {', '.join(_TYPES)}. Please see "
            f"https://aka.ms/arm-syntax-{what}s for usage details"
        )
    return _TYPES[kind.lower()][0]


def _value(name: str, declaration: Mapping[str, Any], given: dict[str, Any], scope: Scope) -> Any:
    for each, holder in given.items():
        if each.lower() == name.lower():
            if not isinstance(holder, dict) or "reference" in holder:
                raise invalid_content(f"The request content was invalid: the parameter '{name}' must have a 'value'.")
            if holder.get("value") is not None:
                return holder["value"]
    if declaration.get("defaultValue") is not None:
        return evaluate(declaration["defaultValue"], scope)
    raise TemplateError(
        f"The value for the template parameter '{name}' at line '1' and column '1' is not provided. Please see "
        "https://aka.ms/arm-create-parameter-file for usage details"
    )


def _check_value(name: str, declaration: Mapping[str, Any], kind: str, value: Any) -> None:
    python = _TYPES[kind.lower()][1]
    if not isinstance(value, python) or (python is int and isinstance(value, bool)):
        raise TemplateError(
            f"Template parameter JToken type is not valid. Expected '{kind}' for the parameter '{name}'. Please see "
            "https://aka.ms/arm-deploy/#parameter-file for usage details"
        )
    allowed = declaration.get("allowedValues")
    if isinstance(allowed, list) and value not in allowed:
        said = "" if kind.startswith("Secure") else f" The value '{value}' is not part of the allowed value(s)."
        raise TemplateError(f"The provided value for the template parameter '{name}' is not valid.{said}")


def _texts(value: Any) -> list[str]:
    """Yield every string in a secret value that is long enough to be recognised."""
    if isinstance(value, str):
        return [value] if len(value) > 3 else []
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in items for text in _texts(item)]


# Resources


def _resources(template: dict[str, Any]) -> list[Any]:
    for name, kind, title in (("$schema", str, "text"), ("contentVersion", str, "text"), ("resources", list, "list")):
        if not isinstance(template.get(name), kind):
            raise TemplateError(f"The template is not valid: the property '{name}' is missing or no {title}")
    return list(template["resources"])


def _resource(declared: Any, scope: Scope) -> PlannedResource:
    if not isinstance(declared, dict):
        raise TemplateError("The template is not valid: a resource is not an object")
    for name in declared:
        if name.lower() in _NOT_MODELLED:
            raise not_modelled(f"'{name}' of a template's resource")
    head = {name: evaluate(declared.get(name), scope) for name in ("type", "name", "apiVersion")}
    for name, value in head.items():
        if not isinstance(value, str) or not value:
            raise TemplateError(f"The template resource is not valid: the property '{name}' is missing or no text")
    namespace, *kinds = head["type"].split("/")
    names = head["name"].split("/")
    if not kinds or len(kinds) != len(names) or not all([namespace, *kinds, *names]):
        raise TemplateError(
            f"The template resource '{head['name']}' for type '{head['type']}' at line '1' and column '1' has "
            "incorrect segment lengths. A nested resource type must have identical number of segments as its resource "
            "name. A root resource type must have segment length one greater than its resource name. Please see "
            "https://aka.ms/arm-syntax-resources for usage details"
        )
    pairs = "".join(f"/{kind}/{name}" for kind, name in zip(kinds, names, strict=True))
    body = {name: value for name, value in declared.items() if name.lower() not in _NOT_IN_BODY}
    depends = evaluate(section(declared, "dependsOn", list), scope)
    condition = evaluate(declared.get("condition", True), scope)
    if not isinstance(condition, bool):
        raise TemplateError("The template resource is not valid: its condition is neither true nor false")
    return PlannedResource(
        id=f"{scope.group['id']}/providers/{namespace}{pairs}",
        type=head["type"],
        name=head["name"],
        api_version=head["apiVersion"],
        body={**without_nulls(evaluate(body, scope)), "dependsOn": depends},
        skipped=not condition,
    )


def without_nulls(value: Any) -> Any:
    """Return a JSON value without null members, which `az` writes for what is not set."""
    if isinstance(value, dict):
        return {name: without_nulls(item) for name, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


# Order


def _order(resources: list[PlannedResource]) -> tuple[PlannedResource, ...]:
    names: dict[str, list[int]] = {}
    for index, resource in enumerate(resources):
        relative = resource.id.split("/providers/", 1)[1]
        own = {resource.id, relative, f"{resource.type}/{resource.name}", resource.name}
        for name in {each.lower() for each in own}:
            names.setdefault(name, []).append(index)
        if len(names[resource.id.lower()]) > 1:
            raise TemplateError(
                f"The resource '{resource.type}/{resource.name}' at line '1' and column '1' is defined multiple times "
                "in a template. Please see https://aka.ms/arm-syntax-resources for usage details"
            )
    # A resource that its condition leaves out is not a dependency either.
    places = {index: place for place, index in enumerate(i for i, each in enumerate(resources) if not each.skipped)}
    ordered = []
    for resource in resources:
        body = dict(resource.body)
        after = {_find(names, wanted, resource) for wanted in body.pop("dependsOn")}
        if not resource.skipped:
            kept = sorted(places[index] for index in after if index in places)
            ordered.append(replace(resource, body=body, after=tuple(kept)))
    _check_circles(ordered)
    return tuple(ordered)


def _find(names: dict[str, list[int]], wanted: Any, resource: PlannedResource) -> int:
    found = names.get(wanted.lower(), []) if isinstance(wanted, str) else []
    if len(found) != 1:
        problem = "is ambiguous" if found else "is not defined in the template"
        raise TemplateError(
            f"The resource '{wanted}' {problem}, on which '{resource.type}/{resource.name}' depends. Please see "
            "https://aka.ms/arm-syntax for usage details"
        )
    return found[0]


def _check_circles(resources: list[PlannedResource]) -> None:
    try:
        TopologicalSorter({index: resource.after for index, resource in enumerate(resources)}).prepare()
    except CycleError as error:
        resource = resources[min(error.args[1])]
        raise TemplateError(
            f"Circular dependency detected on resource: '{resource.id}'. Please see "
            "https://aka.ms/arm-syntax-resources for usage details"
        ) from None


def _outputs(declared: dict[str, Any]) -> dict[str, Any]:
    for name, output in declared.items():
        _kind(output, "output", name)
        if "value" not in output:
            raise TemplateError(f"The template output '{name}' is not valid: it has no value")
    return declared
