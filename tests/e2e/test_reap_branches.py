"""`reap --specs` compares with the default branch of the whole repository, whatever is checked out."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.azure import Azure, advance
from tests.e2e.repository import commit_all, git
from tests.e2e.test_reap import LATER, bare, machine, powers
from tests.e2e.user import SPEC, User

DAY = 24 * 3600
NAME = "bobm"


def write(folder: Path, path: str, **fields: Any) -> None:
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({**SPEC, "name": NAME, "resourceGroup": "bare", **fields}))


def reap(user: User, clone: Path, *words: str, code: int = 0) -> dict[str, Any]:
    done = user("reap", "--specs", str(clone / "specs"), "--delete", "--yes", "--json", *words)
    assert done.returncode == code, done.stdout + done.stderr
    return dict(json.loads(done.stdout))


@pytest.fixture
def clone(user: User, azure: Azure, tmp_path: Path) -> Path:
    """A clone of a repository with one spec, whose machine is on. Its branch `tidy` deletes the spec two days ago."""
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    write(origin, "specs/bob.yaml")
    write(origin, "specs/other.yaml", name="other")
    (user.workspace / "gpu.yaml").unlink()
    commit_all(user, "two machines", origin)
    git(user, "branch", "-M", "trunk", folder=origin)
    git(user, "clone", "-q", str(origin), str(clone))
    bare(azure, NAME, until=LATER)
    tag_as_from(user, azure, origin)
    git(user, "checkout", "-q", "-b", "tidy", folder=clone)
    (clone / "specs/bob.yaml").unlink()
    commit_all(user, "not merged", clone)
    advance(azure, 2 * DAY)
    return clone


def tag_as_from(user: User, azure: Azure, origin: Path) -> None:
    from gpuinfra.programs import open_repository

    with open_repository(origin) as repository:
        tag = repository.identify()
    path = azure.id("Microsoft.Compute/virtualMachines", NAME, "bare")
    azure.send("PATCH", path, {"tags": {**machine(NAME, "", LATER)["tags"], "gpuinfra:repository": tag}})


def test_spec_missing_on_another_branch_ends_no_machine(user: User, azure: Azure, clone: Path) -> None:
    found = reap(user, clone)
    assert (found["stopped"], found["deleted"]) == ([], [])
    source = found["specs"]
    assert (source["ref"], source["checkedOut"], source["isDefault"]) == ("origin/trunk", "tidy", False)

    # As in CI: detached, and without origin/HEAD.
    git(user, "checkout", "-q", "--detach", folder=clone)
    git(user, "remote", "set-head", "origin", "--delete", folder=clone)
    found = reap(user, clone)
    assert (found["stopped"], found["deleted"]) == ([], [])
    assert found["specs"]["ref"] == "origin/trunk"
    done = user("reap", "--specs", str(clone / "specs"))
    assert "specs: origin/trunk at " in done.stderr
    assert powers(azure)[NAME] == "running"

    # On the default branch, the grace time begins with the commit there.
    git(user, "push", "-q", "origin", "HEAD:refs/heads/merged", folder=clone)
    git(user, "remote", "set-head", "origin", "trunk", folder=clone)
    origin = clone.parent / "origin"
    git(user, "merge", "-q", "--no-ff", "-m", "merge", "merged", folder=origin)
    git(user, "fetch", "-q", folder=clone)
    assert reap(user, clone)["deleted"] == []
    advance(azure, 2 * DAY)
    assert [each["name"] for each in reap(user, clone)["deleted"]] == [NAME]


def test_spec_moved_to_another_folder_or_a_stale_checkout_ends_no_machine(
    user: User, azure: Azure, clone: Path
) -> None:
    origin = clone.parent / "origin"
    (origin / "teams").mkdir()
    (origin / "specs/bob.yaml").rename(origin / "teams/bob.yaml")
    commit_all(user, "move", origin)
    git(user, "fetch", "-q", folder=clone)
    advance(azure, 2 * DAY)
    for branch in ("tidy", "trunk", "origin/trunk"):
        git(user, "checkout", "-q", branch, folder=clone)
        found = reap(user, clone)
        assert (found["stopped"], found["deleted"]) == ([], []), branch
    assert powers(azure)[NAME] == "running"


def test_required_clean_checkout_compares_nothing_otherwise(user: User, azure: Azure, clone: Path) -> None:
    git(user, "checkout", "-q", "trunk", folder=clone)
    assert reap(user, clone, "--require-clean")["specs"]["dirty"] == []
    write(clone, "specs/bob.yaml", power="deallocated")
    found = reap(user, clone, "--require-clean", code=2)
    assert found["stopped"] == []
    assert found["specs"]["dirty"] == ["specs/bob.yaml"]
    assert "no machine was compared with its spec: specs/bob.yaml is not committed" in found["notes"]
    git(user, "checkout", "-q", "--", ".", folder=clone)
    git(user, "checkout", "-q", "tidy", folder=clone)
    found = reap(user, clone, "--require-clean", code=2)
    assert "not origin/trunk" in found["notes"][0]
    assert powers(azure)[NAME] == "running"
