"""The target files of a deleted machine: removed with it, unless the user edited them."""

import json

import pytest

from tests.integration.provision.harness import Harness

NAME = "again"
SPEC = f"{NAME}.yaml"
IMAGE = "example.azurecr.io/own:1"


@pytest.fixture(autouse=True)
def write_spec(harness: Harness) -> None:
    harness.spec(NAME)
    harness.succeed("up", SPEC)


def up_by_another_user(harness: Harness) -> None:
    """Run `up` as on another computer, which has no files and no known host keys of this one."""
    own, other = harness.variables, harness.folder / "colleague"
    other.mkdir()
    harness.variables = {**own, "HOME": str(other)}
    try:
        harness.succeed("up", SPEC, "--workspace", str(other))
    finally:
        harness.variables = own


def test_target_is_removed_with_its_machine(harness: Harness) -> None:
    result = harness.succeed("down", "--delete", NAME)
    assert f"the target `{NAME}` was removed with its machine: aml_config/{NAME}.runconfig" in result.err
    assert harness.resources() == set()
    assert list((harness.folder / "aml_config").iterdir()) == []
    assert json.loads(harness.succeed("targets", "--json").out)["targets"] == []
    up_by_another_user(harness)
    harness.succeed("up", SPEC, "--yes")  # no host key of the deleted machine refuses the new one


def test_edited_target_keeps_what_the_user_wrote(harness: Harness) -> None:
    file = harness.folder / "aml_config" / f"{NAME}.compute"
    file.write_text(f"{file.read_text()}baseDockerImage: {IMAGE}\n# ours\n")
    harness.succeed("down", "--delete", SPEC)
    kept = file.read_text().splitlines()
    assert {"address: null", "hostKey: null", "resourceId: null", "vmId: null", "# ours"} <= set(kept)
    assert file.with_suffix(".runconfig").exists()
    up_by_another_user(harness)
    harness.succeed("up", SPEC, "--yes")
    assert f"baseDockerImage: {IMAGE}" in file.read_text()
