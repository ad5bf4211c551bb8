"""Text from specs, tags, files and Azure that a CI system would take for a command."""

import json
import re
import subprocess
from pathlib import Path

from tests.e2e.user import Run, User

AZURE_PIPELINES = "##vso[task.setvariable variable=token]owned"
GROUP = "##[group]hidden"
GITHUB = "::add-mask::owned"
# Azure Pipelines looks for these anywhere in a line, GitHub for `::` at its start.
COMMAND = re.compile(r"##\w*\[|^\s*::", re.MULTILINE)


def check(done: "subprocess.CompletedProcess[str]", *expected: str) -> None:
    """Check that the output contains no CI command, and that each text appears with a space in it."""
    printed = done.stdout + done.stderr
    assert not COMMAND.search(printed), printed
    assert "Traceback" not in printed, printed
    for text in expected:
        assert text in printed, printed


def test_values_of_a_spec_print_no_ci_commands(run: Run, tmp_path: Path) -> None:
    spec = {"apiVersion": "gpuinfra/v1", "name": "a-dsvm", "region": AZURE_PIPELINES, "size": GROUP}
    (tmp_path / "gpu.yaml").write_text(json.dumps(spec, indent=1))
    check(run("validate", "gpu.yaml"), "# #vso[task.setvariable", "# #[group]hidden")
    in_json = run("validate", "--json", "gpu.yaml")
    check(in_json)
    assert len(json.loads(in_json.stdout)["diagnostics"]) == 2


def test_file_names_print_no_ci_commands(run: Run, tmp_path: Path) -> None:
    check(run("validate", AZURE_PIPELINES), "# #vso[task.setvariable")
    check(run("validate", "--json", AZURE_PIPELINES))
    (tmp_path / f"{GROUP}.yaml").write_text("apiVersion: gpuinfra/v1\nname: 7\n")
    check(run("validate", f"{GROUP}.yaml"), "# #[group]hidden.yaml")


def test_tags_print_no_ci_commands(user: User) -> None:
    tags = {"team": GITHUB, "owner": AZURE_PIPELINES, "note": GROUP}
    user.spec(tags=tags)
    check(user("plan", "gpu.yaml"))
    check(user("up", "gpu.yaml", "--verbose"))
    for tag, shown in (("team", ": :add-mask::owned"), ("owner", "# #vso["), ("note", "# #[group]")):
        check(user("cost", "--by", "tag", "--tag", tag), shown)
        check(user("cost", "--by", "tag", "--tag", tag, "--csv"), shown)
    in_json = user("cost", "--by", "tag", "--tag", "team", "--json")
    check(in_json)
    assert GITHUB not in in_json.stdout
    assert GITHUB in json.dumps(json.loads(in_json.stdout))
    check(user("status"))
    check(user("status", "--json"))
    exported = user("export", "gpu.yaml", "--format", "arm")
    check(exported)
    assert json.dumps(AZURE_PIPELINES) in json.dumps(json.loads(exported.stdout))


def test_schedule_prints_its_own_commands_unchanged(run: Run, tmp_path: Path) -> None:
    (tmp_path / "specs").mkdir()
    done = run("schedule", "render", "--with", "azure-pipelines", "--specs", "specs", "--package", "gpuinfra==1.0")
    assert "##vso[task.uploadsummary]" in done.stdout, done.stderr


def test_job_output_is_passed_on_unchanged(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"print({AZURE_PIPELINES!r})\nprint({GITHUB!r})\n")
    done = run("submit", "-c", "local", "train.py", HOME=str(tmp_path / "home"))
    assert done.stdout == f"{AZURE_PIPELINES}\n{GITHUB}\n", done.stderr
