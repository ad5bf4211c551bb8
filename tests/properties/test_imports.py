"""Imports point one way, from the commands to the vocabulary; CONTRIBUTING.md draws it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = ("far", "gpuinfra", "provision", "runner", "sandbox", "templates")

# A room may import what stands to the right of its own line, and itself. The longest name that fits counts.
ROOMS: dict[str, tuple[str, ...]] = {
    "gpuinfra.__main__": ("gpuinfra.cli",),
    "gpuinfra.cli": (
        *("gpuinfra", "gpuinfra.views", "provision", "runner", "sandbox", "gpuinfra.workspace", "gpuinfra.load"),
        *(
            "gpuinfra.lint",
            "gpuinfra.workbench",
            "gpuinfra.scheduling",
            "gpuinfra.ledger",
            "gpuinfra.log",
            "gpuinfra.programs",
            "templates",
            "gpuinfra.models",
            "gpuinfra.suggest",
            "gpuinfra.diagnostics",
        ),
    ),
    "gpuinfra.views": (
        "gpuinfra.lint",
        "gpuinfra.scheduling",
        "gpuinfra.workbench",
        "gpuinfra.load",
        "gpuinfra.models",
        "gpuinfra.diagnostics",
    ),
    "provision": (
        *("gpuinfra.git", "gpuinfra.workspace", "gpuinfra.load", "templates", "gpuinfra.models"),
        *("gpuinfra.suggest", "gpuinfra.diagnostics"),
    ),
    "runner": (
        *(
            "far",
            "gpuinfra.git",
            "gpuinfra.programs",
            "gpuinfra.workbench",
            "gpuinfra.workspace",
            "gpuinfra.load",
            "templates",
            "gpuinfra.models",
        ),
        *("gpuinfra.suggest", "gpuinfra.diagnostics"),
    ),
    "far": (),
    "sandbox": (),
    "gpuinfra.lint": (
        *("gpuinfra.workbench", "gpuinfra.workspace", "gpuinfra.load", "gpuinfra.models"),
        *("gpuinfra.suggest", "gpuinfra.diagnostics"),
    ),
    "gpuinfra.workbench": (
        *("gpuinfra.workspace", "gpuinfra.load", "templates", "gpuinfra.models"),
        *("gpuinfra.suggest", "gpuinfra.diagnostics"),
    ),
    "gpuinfra.scheduling": ("templates", "gpuinfra.programs", "gpuinfra.diagnostics"),
    "gpuinfra.workspace": ("gpuinfra.models", "gpuinfra.diagnostics"),
    "gpuinfra.ledger": ("gpuinfra.models", "gpuinfra.diagnostics"),
    "gpuinfra.load": ("gpuinfra.models", "gpuinfra.suggest", "gpuinfra.diagnostics"),
    "templates": (),
    "gpuinfra.models": ("gpuinfra.suggest", "gpuinfra.diagnostics"),
    "gpuinfra.log": (),
    "gpuinfra.git": ("gpuinfra.programs",),
    "gpuinfra.programs": (),
    "gpuinfra.suggest": (),
    "gpuinfra.diagnostics": (),
    "gpuinfra": (),
}
# Who alone may import a package of others.
KEPT = {
    "azure": ("provision.azure",),
    "paramiko": ("runner",),
    "docker": ("runner",),
    "keyring": ("runner",),
    "asyncssh": ("sandbox",),
    "starlette": ("sandbox",),
    "uvicorn": ("sandbox",),
    "typer": ("gpuinfra.cli",),
    "rich": ("gpuinfra.views", "gpuinfra.cli"),
    "yaml": ("gpuinfra.load", "sandbox.guest"),
}


def modules() -> Iterator[tuple[str, Path]]:
    for package in OURS:
        for file in sorted((ROOT / package).rglob("*.py")):
            parts = file.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), file


def imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: a relative import hides where it points"
            # `from gpuinfra import log` imports a module as well as a package.
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def room_of(module: str) -> str:
    return max((room for room in ROOMS if is_in(module, room)), key=len)


def breaches(module: str, imports: Iterator[str] | list[str]) -> Iterator[str]:
    room = room_of(module)
    for name in imports:
        if is_in(name, "gpuinfra") and name.count(".") <= 1 and room_of(name) == "gpuinfra":
            continue  # the package itself holds nothing but the version
        if name.split(".")[0] in OURS and room_of(name) not in {room, *ROOMS[room]}:
            yield f"{module} imports {name}"
        keepers = KEPT.get(name.split(".")[0])
        if keepers and not any(is_in(module, keeper) for keeper in keepers):
            yield f"{module} imports {name}, which is for {', '.join(keepers)}"


def test_imports_point_one_way() -> None:
    found = [breach for module, file in modules() for breach in breaches(module, imported(file))]
    assert found == []


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("provision.up", "runner.job"),
        ("runner.job", "provision.plan"),
        ("sandbox.server", "gpuinfra.models.spec"),
        ("gpuinfra.models.spec", "gpuinfra.load.spec"),
        ("gpuinfra.load.spec", "gpuinfra.views.diagnostics"),
        ("gpuinfra.cli.up", "azure.identity"),
        ("provision.plan", "azure.mgmt.compute"),
        ("provision.plan", "gpuinfra.cli.main"),
        ("gpuinfra.load.files", "rich.console"),
    ],
)
def test_a_wrong_import_would_be_found(module: str, name: str) -> None:
    assert list(breaches(module, [name]))


def test_an_allowed_import_is_not_found() -> None:
    assert list(breaches("provision.azure.clients", ["azure.mgmt.compute", "gpuinfra.models.spec"])) == []
