"""What a run records to be repeated, and what it says that changed since."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gpuinfra.app.again import changes, check_machine, environment_digest, recorded_request
from gpuinfra.app.job_request import JobRequest
from gpuinfra.diagnostics import Code, Problem
from gpuinfra.models.run import Run, RunState
from gpuinfra.models.target import Target
from gpuinfra.runner.job_spec import GpuNeed, JobSpec
from gpuinfra.runner.sources.requirements_file import read_requirements

TARGET = Target("local", "", "local", "", 0, "", "")
JOB = JobSpec(Path(), "local", TARGET, GpuNeed.IF_ANY, says_gpu=False)
RUN = Run(
    id="20261116-121530-3f9c",
    target="my_dsvm",
    type="remote",
    configuration="my_dsvm",
    command=("python", "train.py"),
    state=RunState.COMPLETED,
    created=datetime(2026, 11, 16, tzinfo=UTC),
    git_commit="a" * 40,
    git_dirty=False,
    spec_digest="one",
    environment_digest="one",
)


def test_unchanged_run_says_what_is_the_same() -> None:
    assert list(changes(RUN, RUN)) == ["unchanged: commit aaaaaaaaaa, environment, spec"]


@pytest.mark.parametrize(
    ("before", "now", "line"),
    [
        ({}, {"command": ("python", "other.py")}, "command changed: python other.py"),
        ({"command": ("/usr/bin/python3", "train.py")}, {}, "unchanged: commit aaaaaaaaaa, environment, spec"),
        ({}, {"git_commit": "b" * 40}, "commit changed: aaaaaaaaaa -> bbbbbbbbbb"),
        ({}, {"git_dirty": True}, "uncommitted changes now: the files may differ"),
        ({"git_dirty": True}, {"git_dirty": True}, "uncommitted changes then and now: the files may differ"),
        ({"git_commit": None}, {}, "it is not known whether the files changed: there is no git commit of them"),
        ({}, {"environment_digest": "two"}, "environment changed"),
        ({}, {"spec_digest": "two"}, "spec changed"),
        ({}, {"spec_digest": None}, "spec changed"),
    ],
)
def test_every_change_is_said(before: dict[str, Any], now: dict[str, Any], line: str) -> None:
    assert line in list(changes(replace(RUN, **before), replace(RUN, **now)))


def test_request_is_recorded_with_the_resolved_command_and_without_secrets() -> None:
    request = JobRequest(
        None,
        gpus="2",
        environment=("A=1", "API_TOKEN=abc", "URL=https://me:pass@example.com", "GH_PAT=abc", "SENTRY_DSN=abc"),
        environment_files=(Path(".env"),),
        secrets=("KEY",),
        detach=True,
    )
    found = recorded_request(request, replace(JOB, program=("/bin/sh", "-c", "make all"), script=""))
    assert found == {
        "command": ["/bin/sh", "-c", "make all"],
        "gpus": "2",
        "environment": ["A=1"],
        "environment_files": [str(Path(".env").absolute())],
        "secrets": ["KEY", "API_TOKEN", "URL", "GH_PAT", "SENTRY_DSN"],
    }
    script = recorded_request(JobRequest("../train.py", words=("--x", "1")), replace(JOB, script="src/train.py"))
    assert script == {"script": "src/train.py", "words": ["--x", "1"]}


VM = "/subscriptions/s/resourceGroups/gpuinfra-box/providers/Microsoft.Compute/virtualMachines/box"


@pytest.mark.parametrize(
    "now",
    [
        {"target": "other"},
        {"machine": "another", "resource_id": ""},
        {"resource_id": VM.replace("gpuinfra-box", "theirs")},
    ],
)
def test_run_is_not_repeated_on_another_machine(now: dict[str, Any]) -> None:
    before = replace(RUN, machine="box", resource_id=VM)
    for same in (before, replace(before, resource_id=VM.upper()), replace(before, machine="", resource_id="")):
        check_machine(before, same)
    with pytest.raises(Problem) as caught:
        check_machine(before, replace(before, **now))
    assert caught.value.diagnostics[0].code is Code.OTHER_TARGET


def test_digest_of_the_environment_reads_no_lock_file_behind_a_link(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "requirements.txt").write_text("numpy\n")
    job = replace(JOB, project=project, packages=read_requirements(project, "requirements.txt"))
    without = environment_digest(job)
    (tmp_path / "uv.lock").write_text("outside")
    for place in (tmp_path / "uv.lock", Path("/dev/zero")):
        (project / "uv.lock").symlink_to(place)
        assert environment_digest(job) == without
        (project / "uv.lock").unlink()
    (project / "uv.lock").write_text("inside")
    assert environment_digest(job) != without
