"""The documentation has every command, option, error code, exit code and field, and its examples work."""

import re
from typing import Any

import pytest

from gpuinfra.cli.main import COMMANDS, load_command
from gpuinfra.cli.options import shared_parameters
from gpuinfra.diagnostics import Code, Exit
from gpuinfra.models.images import ALIASES
from gpuinfra.models.sizes import SIZES
from gpuinfra.parse.files import load_paths
from gpuinfra.parse.schema import json_schema
from gpuinfra.parse.spec import load_bytes
from gpuinfra.sandbox.kernel.faults import ERRORS, NAMES, OTHERS
from gpuinfra.views.diagnostics import render
from tests.pages import ROOT, blocks

SPEC, COMMANDS_PAGE, ERRORS_PAGE, SANDBOX = (
    (ROOT / "docs" / name).read_text("utf-8") for name in ("spec.md", "commands.md", "errors.md", "sandbox.md")
)


@pytest.mark.parametrize("code", Code)
def test_every_error_code_is_explained(code: Code) -> None:
    assert f"| `{code.value}` |" in ERRORS_PAGE


def test_every_explained_error_code_exists() -> None:
    assert set(re.findall(r"^\| `([a-z0-9-]+)` \|", ERRORS_PAGE, re.MULTILINE)) == {code.value for code in Code}


@pytest.mark.parametrize("entry", COMMANDS)
def test_every_command_and_option_is_explained(entry: Any) -> None:
    command = load_command(*entry)
    assert f"## gpuinfra {entry.name}\n" in COMMANDS_PAGE
    assert_options_explained(command, COMMANDS_PAGE)
    for name, part in getattr(command, "commands", {}).items():
        heading = f"### gpuinfra {entry.name} {name}\n"
        assert heading in COMMANDS_PAGE
        # Its own section has its own options; shared options are explained once.
        section = COMMANDS_PAGE.partition(heading)[2].partition("\n## ")[0].partition("\n### ")[0]
        shared = {parameter.opts[0] for parameter in shared_parameters()}
        assert_options_explained(part, section, leaving_out=shared)


def assert_options_explained(command: Any, text: str, leaving_out: set[str] | None = None) -> None:
    for parameter in command.params:
        word = parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar
        assert word in (leaving_out or set()) or f"`{word}" in text, f"{word} of {command.name}"


def test_every_explained_sandbox_command_exists() -> None:
    commands = load_command("sandbox", "").commands
    assert set(re.findall(r"^### gpuinfra sandbox (\w+)$", COMMANDS_PAGE, re.MULTILINE)) == set(commands)


def test_faults_are_explained_exactly_with_their_status() -> None:
    rows = re.findall(r"^\| `([A-Za-z-]+)` \| (.+) \|$", SANDBOX.partition("## Faults")[2], re.MULTILINE)
    assert [name for name, _ in rows] == list(NAMES)
    explained = dict(rows)
    for name, (status, _) in ERRORS.items():
        assert explained[name] == str(status)
    for name, meaning in OTHERS.items():
        assert explained[name] == meaning


def test_every_shared_option_and_exit_code_is_explained() -> None:
    for parameter in shared_parameters():
        assert f"`{parameter.opts[0]}" in COMMANDS_PAGE
    for exit_code in Exit:
        assert f"| {exit_code.value} |" in COMMANDS_PAGE


def fields(schema: dict[str, Any], node: dict[str, Any], path: str = "") -> list[str]:
    found = []
    for name, field in node.get("properties", {}).items():
        found.append(f"{path}{name}")
        # A field with a short form, such as `gpu: T4`, has its mapping as the other choice.
        for choice in (field, *field.get("anyOf", ())):
            if "$ref" in choice:
                found += fields(schema, schema["$defs"][choice["$ref"].rsplit("/", 1)[1]], f"{path}{name}.")
    return found


def test_fields_are_explained_exactly() -> None:
    schema = json_schema()
    documented = set(re.findall(r"^\| `([A-Za-z.]+)` \|", SPEC, re.MULTILINE))
    sections = {"spot", "admin", "network", "disk", "target", "lifecycle", "gpu", "lifecycle.hours"}
    sections |= {"job", "job.environment"}
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
    for block in blocks(page):
        if block.language == "yaml" and "apiVersion" in block.text:
            assert load_bytes(block.place, block.text.encode()).diagnostics == []


def test_error_in_the_readme_matches_the_output() -> None:
    (shown,) = (block.text for block in blocks("README.md") if block.text.startswith("error: "))
    text = b"apiVersion: gpuinfra/v1\nname: my-dsvm\nregion: southcentralus\nsize: Standard_NC24rs_v3\n"
    (diagnostic,) = load_bytes("gpu.yaml", text).diagnostics
    assert render(diagnostic).plain + "\n" == shown


def test_links_between_pages_work() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for link, anchor in re.findall(r"\]\(([^)#:]*)#?([^):]*)\)", page.read_text("utf-8")):
            target = page.parent / link if link else page
            assert target.exists(), f"{page.name}: {link}"
            assert not anchor or anchor in anchors(target.read_text("utf-8")), f"{page.name}: {link}#{anchor}"


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}
