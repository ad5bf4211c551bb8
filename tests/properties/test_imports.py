"""Imports point one way, from the commands to the models; CONTRIBUTING.md has the diagram."""

import ast
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# A package may import what is on the right of its line, and itself. The longest matching name counts.
ROOMS: dict[str, tuple[str, ...]] = {
    "gpuinfra.__main__": ("gpuinfra.cli",),
    "gpuinfra.cli": (
        *("gpuinfra", "gpuinfra.app", "gpuinfra.views", "gpuinfra.models"),
        "gpuinfra.diagnostics",
    ),
    "gpuinfra.api": ("gpuinfra.app", "gpuinfra.parse", "gpuinfra.models", "gpuinfra.runner", "gpuinfra.diagnostics"),
    "gpuinfra.app": (
        *("gpuinfra.provision", "gpuinfra.runner", "gpuinfra.workspace", "gpuinfra.parse"),
        *("gpuinfra.sandbox.running", "gpuinfra.sandbox.kernel"),
        *("gpuinfra.lint", "gpuinfra.workbench", "gpuinfra.scheduling", "gpuinfra.store"),
        *("gpuinfra.programs", "gpuinfra.templates", "gpuinfra.models", "gpuinfra.diagnostics"),
    ),
    "gpuinfra.views": (
        "gpuinfra.lint",
        "gpuinfra.scheduling",
        "gpuinfra.workbench",
        "gpuinfra.parse",
        "gpuinfra.models",
        "gpuinfra.diagnostics",
    ),
    "gpuinfra.provision": (
        *("gpuinfra.programs", "gpuinfra.workspace", "gpuinfra.parse", "gpuinfra.templates", "gpuinfra.models"),
        "gpuinfra.diagnostics",
    ),
    "gpuinfra.runner": (
        *(
            "gpuinfra.remote",
            "gpuinfra.programs",
            "gpuinfra.programs",
            "gpuinfra.workbench",
            "gpuinfra.workspace",
            "gpuinfra.store",
            "gpuinfra.parse",
            "gpuinfra.templates",
            "gpuinfra.models",
        ),
        "gpuinfra.diagnostics",
    ),
    "gpuinfra.remote": (),
    "gpuinfra.sandbox": (
        *("gpuinfra.sandbox.web", "gpuinfra.sandbox.services", "gpuinfra.sandbox.running"),
        *("gpuinfra.sandbox.guest", "gpuinfra.sandbox.kernel", "gpuinfra.sandbox.catalogue"),
    ),
    "gpuinfra.sandbox.web": ("gpuinfra.sandbox.services", "gpuinfra.sandbox.running", "gpuinfra.sandbox.kernel"),
    "gpuinfra.sandbox.services": ("gpuinfra.sandbox.kernel", "gpuinfra.sandbox.catalogue"),
    "gpuinfra.sandbox.running": ("gpuinfra.sandbox.kernel",),
    "gpuinfra.sandbox.guest": (),
    "gpuinfra.sandbox.kernel": ("gpuinfra.sandbox.catalogue",),
    "gpuinfra.sandbox.catalogue": (),
    "gpuinfra.lint": (
        *("gpuinfra.workbench", "gpuinfra.workspace", "gpuinfra.parse", "gpuinfra.models"),
        "gpuinfra.diagnostics",
    ),
    "gpuinfra.workbench": (
        *("gpuinfra.workspace", "gpuinfra.parse", "gpuinfra.templates", "gpuinfra.models"),
        "gpuinfra.diagnostics",
    ),
    "gpuinfra.scheduling": ("gpuinfra.templates", "gpuinfra.programs", "gpuinfra.diagnostics"),
    "gpuinfra.workspace": ("gpuinfra.models", "gpuinfra.diagnostics"),
    "gpuinfra.store": ("gpuinfra.models", "gpuinfra.diagnostics"),
    "gpuinfra.parse": ("gpuinfra.models", "gpuinfra.diagnostics"),
    "gpuinfra.templates": (),
    "gpuinfra.models": ("gpuinfra.diagnostics",),
    "gpuinfra.programs": (),
    "gpuinfra.diagnostics": (),
    "gpuinfra": ("gpuinfra.api",),
}
# The only importers of third-party packages.
KEPT = {
    "azure": ("gpuinfra.provision.azure",),
    "paramiko": ("gpuinfra.runner",),
    "docker": ("gpuinfra.runner",),
    "keyring": ("gpuinfra.runner",),
    "asyncssh": ("gpuinfra.sandbox",),
    "starlette": ("gpuinfra.sandbox",),
    "uvicorn": ("gpuinfra.sandbox",),
    "typer": ("gpuinfra.cli", "gpuinfra.views.frontend"),
    "rich": ("gpuinfra.views", "gpuinfra.cli"),
    "yaml": ("gpuinfra.parse", "gpuinfra.sandbox.guest"),
}

# The parts of a package in the order of its layers: each part imports only those before it, so there is no cycle.
LAYERS = {
    "gpuinfra.runner": (
        *("errors", "progress", "sources", "job_spec", "record", "connection", "docker", "link", "nvidia_smi", "gpu"),
        *("readiness", "outputs", "content", "ignore", "not_sent", "project_tree", "upload", "job_environment"),
        *("resolve", "job"),
        *("remote_runs", "heartbeat", "log", "log_window", "process", "container_log", "container"),
        *(
            "helper_containers",
            "beside",
            "forwarding",
            "settle",
            "fetch",
            "follower",
            "environment",
            "submission",
            "stored_images",
            "storage",
            "command",
        ),
    ),
    "gpuinfra.provision": (
        *("power", "tags", "observed_resource", "locks", "errors", "waiting", "market", "preflight"),
        *("purpose", "lease", "agent_role", "ownership", "login", "resources", "observed", "cloud", "task", "azure"),
        *("remove", "plan", "template", "costing", "power_log", "renew", "target", "health", "exposure"),
        *("fleet", "apply", "down", "placement", "up", "reaping", "inventory"),
    ),
}


def modules() -> Iterator[tuple[str, Path]]:
    """Every module of the package, with its file; `provision` and others are in it through links."""
    folders = os.walk(ROOT / "gpuinfra", followlinks=True)
    for file in sorted(Path(folder, name) for folder, _, names in folders for name in names if name.endswith(".py")):
        parts = file.relative_to(ROOT).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), file


def imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: a relative import hides where it points"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from names
            if not all(map(is_module, names)):  # a module may be imported from its package, which then adds nothing
                yield node.module or ""


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def room_of(module: str) -> str:
    return max((room for room in ROOMS if is_in(module, room)), key=len)


def breaches(module: str, imports: Iterator[str] | list[str]) -> Iterator[str]:
    room = room_of(module)
    for name in imports:
        if is_in(name, "gpuinfra") and name.count(".") <= 1 and room_of(name) == "gpuinfra":
            continue  # the package itself holds only the version
        if is_in(name, "gpuinfra") and room_of(name) not in {room, *ROOMS[room]}:
            yield f"{module} imports {name}"
        keepers = KEPT.get(name.split(".")[0])
        if keepers and not any(is_in(module, keeper) for keeper in keepers):
            yield f"{module} imports {name}, which is for {', '.join(keepers)}"


def part_of(module: str, package: str) -> str | None:
    """The part of a package that a module is in; None for the package itself and for others."""
    return module.removeprefix(f"{package}.").partition(".")[0] if module.startswith(f"{package}.") else None


def wrong_layers(module: str, imports: Iterator[str] | list[str]) -> Iterator[str]:
    for package, layers in LAYERS.items():
        own = part_of(module, package)
        if own is None:
            continue
        for name in imports:
            other = part_of(name, package)
            if other in layers and layers.index(other) > layers.index(own):
                yield f"{module} imports {name}"


def test_every_file_is_checked_once() -> None:
    files = [file.resolve() for _, file in modules()]
    assert len(files) == len(set(files)) > 300


def test_imports_point_one_way() -> None:
    found = [breach for module, file in modules() for breach in breaches(module, imported(file))]
    assert found == []


@pytest.mark.parametrize("package", LAYERS)
def test_layers_list_every_part_of_the_package(package: str) -> None:
    assert {part for module, _ in modules() if (part := part_of(module, package))} == set(LAYERS[package])


def test_parts_of_a_package_import_only_lower_layers() -> None:
    assert [wrong for module, file in modules() for wrong in wrong_layers(module, imported(file))] == []


def test_an_import_of_a_higher_layer_is_found() -> None:
    assert list(wrong_layers("gpuinfra.runner.docker.client", ["gpuinfra.runner.container"]))
    assert list(wrong_layers("gpuinfra.runner.errors", ["gpuinfra.runner.link"]))
    assert list(wrong_layers("gpuinfra.provision.resources.vm", ["gpuinfra.provision.cloud"]))
    assert list(wrong_layers("gpuinfra.provision.lease", ["gpuinfra.provision.up"]))
    assert not list(wrong_layers("gpuinfra.runner.container", ["gpuinfra.runner.docker.client"]))


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("gpuinfra.provision.up", "gpuinfra.runner.job"),
        ("gpuinfra.runner.job", "gpuinfra.provision.plan"),
        ("gpuinfra.sandbox.server", "gpuinfra.models.spec"),
        ("gpuinfra.sandbox.kernel.cloud", "gpuinfra.sandbox.web.app"),
        ("gpuinfra.sandbox.services.common", "gpuinfra.sandbox.web.app"),
        ("gpuinfra.models.spec", "gpuinfra.parse.spec"),
        ("gpuinfra.parse.spec", "gpuinfra.views.diagnostics"),
        ("gpuinfra.cli.up", "azure.identity"),
        ("gpuinfra.cli.up", "gpuinfra.provision.plan"),
        ("gpuinfra.app.up", "gpuinfra.cli.options"),
        ("gpuinfra.app.up", "gpuinfra.views.plan"),
        ("gpuinfra.app.up", "typer"),
        ("gpuinfra.app.up", "rich.console"),
        ("gpuinfra.provision.plan", "azure.mgmt.compute"),
        ("gpuinfra.provision.plan", "gpuinfra.cli.main"),
        ("gpuinfra.parse.files", "rich.console"),
    ],
)
def test_forbidden_import_is_found(module: str, name: str) -> None:
    assert list(breaches(module, [name]))


def test_allowed_import_is_not_reported() -> None:
    assert list(breaches("gpuinfra.provision.azure.clients", ["azure.mgmt.compute", "gpuinfra.models.spec"])) == []
