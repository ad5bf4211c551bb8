"""The documentation has every command, option, error code, exit code and field; and what it shows is true."""

import re
from pathlib import Path
from typing import Any

import pytest

from gpuinfra.cli.commands import COMMANDS
from gpuinfra.cli.front import load_command
from gpuinfra.cli.options import shared_parameters
from gpuinfra.diagnostics import Code, Exit
from gpuinfra.load.files import load_paths
from gpuinfra.load.schema import json_schema
from gpuinfra.load.spec import load_bytes
from gpuinfra.models.images import ALIASES
from gpuinfra.models.sizes import SIZES
from gpuinfra.views.diagnostics import render

ROOT = Path(__file__).parents[2]
SPEC, COMMANDS_PAGE, ERRORS = (
    (ROOT / "docs" / name).read_text("utf-8") for name in ("spec.md", "commands.md", "errors.md")
)


@pytest.mark.parametrize("code", Code)
def test_every_error_code_is_explained(code: Code) -> None:
    assert f"| `{code.value}` |" in ERRORS


def test_no_error_code_is_explained_that_is_gone() -> None:
    assert set(re.findall(r"^\| `([a-z0-9-]+)` \|", ERRORS, re.MULTILINE)) == {code.value for code in Code}


@pytest.mark.parametrize("entry", COMMANDS)
def test_every_command_and_option_is_explained(entry: Any) -> None:
    assert f"## gpuinfra {entry.name}" in COMMANDS_PAGE
    for parameter in load_command(*entry).params:
        word = parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar
        assert f"`{word}" in COMMANDS_PAGE, f"{word} of {entry.name}"


def test_every_shared_option_and_exit_code_is_explained() -> None:
    for parameter in shared_parameters():
        assert f"`{parameter.opts[0]}" in COMMANDS_PAGE
    for exit_code in Exit:
        assert f"| {exit_code.value} |" in COMMANDS_PAGE


def fields(schema: dict[str, Any], node: dict[str, Any], path: str = "") -> list[str]:
    found = []
    for name, field in node.get("properties", {}).items():
        found.append(f"{path}{name}")
        if "$ref" in field:
            found += fields(schema, schema["$defs"][field["$ref"].rsplit("/", 1)[1]], f"{path}{name}.")
    return found


def test_every_field_is_explained_and_no_other() -> None:
    schema = json_schema()
    documented = set(re.findall(r"^\| `([A-Za-z.]+)` \|", SPEC, re.MULTILINE))
    sections = {"spot", "admin", "network", "disk", "target", "lifecycle", "gpu", "lifecycle.hours"}
    assert documented == set(fields(schema, schema)) - sections


def test_every_size_and_image_is_listed() -> None:
    for name in (*SIZES, *ALIASES, *ALIASES.values()):
        assert f"`{name}`" in SPEC


def test_examples_and_starter_are_valid() -> None:
    for path, least in ((ROOT / "examples", 5), (ROOT / "templates" / "starter.yaml", 1)):
        loaded = load_paths([str(path)])
        assert [render(diagnostic).plain for diagnostic in loaded.diagnostics] == []
        assert len(loaded.specs) >= least


@pytest.mark.parametrize("page", ["README.md", "docs/spec.md", "CONTRIBUTING.md"])
def test_specs_in_the_documentation_are_valid(page: str) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)
    for block in blocks:
        if "apiVersion" in block:
            assert load_bytes(page, block.encode()).diagnostics == []


def test_the_error_in_the_readme_is_what_is_printed() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    (shown,) = re.findall(r"```\n(error: .*?)```", readme, re.DOTALL)
    text = b"apiVersion: gpuinfra/v1\nname: my-dsvm\nregion: southcentralus\nsize: Standard_NC24rs_v3\n"
    (diagnostic,) = load_bytes("gpu.yaml", text).diagnostics
    assert render(diagnostic).plain + "\n" == shown


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)[^):]*\)", page.read_text("utf-8")):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
