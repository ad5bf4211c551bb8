"""Requests that every kind of network resource answers alike; only PUT is each kind's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuinfra.sandbox.kernel.call import Call
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.routes import GROUP, SUBSCRIPTION, Routes
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.network.answers import (
    Show,
    answer_delete,
    answer_get,
    answer_list,
    answer_patch,
    nested_delete,
    nested_get,
    nested_list,
)
from gpuinfra.sandbox.services.network.tracked import Kind

Shows = Callable[[Call], Show]
"""How a resource is shown to a call: newer versions of the API show more."""


def path_of(kind: Kind) -> str:
    """The path of one resource of a kind."""
    return f"{GROUP}/providers/{kind.full_type}/{{name}}"


def nested_path_of(outer: Kind, kind: Kind) -> str:
    """The path of one that is nested in another."""
    return f"{path_of(outer)}/{kind.list_name}/{{nested}}"


def add_routes(routes: Routes, kind: Kind, show: Shows, check_unused: Callable[[Cloud, Resource], None]) -> None:
    """Read one, list them, change tags, delete one that nothing uses."""
    routes.add("GET", path_of(kind))(lambda call: answer_get(call, kind, show(call)))
    routes.add("PATCH", path_of(kind))(lambda call: answer_patch(call, kind, show(call)))
    routes.add("DELETE", path_of(kind))(lambda call: answer_delete(call, kind, check_unused))
    for scope in (GROUP, SUBSCRIPTION):
        routes.add("GET", f"{scope}/providers/{kind.full_type}")(lambda call: answer_list(call, kind, show(call)))


def add_nested_routes(
    routes: Routes,
    outer: Kind,
    kind: Kind,
    show: Shows,
    check_unused: Callable[[Cloud, dict[str, Any]], None] | None = None,
) -> None:
    """Read a nested one, list them, and delete one where `check_unused` is given."""
    path = nested_path_of(outer, kind)
    routes.add("GET", path)(lambda call: nested_get(call, outer, kind, show(call)))
    routes.add("GET", path.rpartition("/")[0])(lambda call: nested_list(call, outer, kind, show(call)))
    if check_unused:
        routes.add("DELETE", path)(lambda call: nested_delete(call, outer, kind, check_unused))
