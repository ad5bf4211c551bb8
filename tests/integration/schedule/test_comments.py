"""The plan as a comment on a pull request: written once, and then updated in place."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from gpuinfra.scheduling.rendering import Scheduler, render
from tests.real import program
from tests.schedule_help import order

PLAN = "  + machine   my-dsvm   Standard_NC4as_T4_v3\n\nPlan: 1 to add, 0 to change, 0 to replace, 0 to destroy.\n"
MARK = "<!-- gpuinfra plan -->"

# Only what the workflow uses: comments are files, and `--jq` is applied literally.
GH = """
import json, pathlib, re, sys
words, store = sys.argv[1:], pathlib.Path(__file__).parent / "comments"
store.mkdir(exist_ok=True)
method = words[words.index("--method") + 1] if "--method" in words else "GET"
path = next(word for word in words if word.startswith("repos/"))
with (store.parent / "asked").open("a") as asked:
    asked.write(method + " " + path + "\\n")
if method == "GET":
    mark = re.search(r'startswith\\("(.*?)"\\)', words[words.index("--jq") + 1]).group(1)
    for file in sorted(store.iterdir()):
        if file.read_text().startswith(mark):
            print(file.name)
else:
    name = path.rsplit("/", 1)[-1] if method == "PATCH" else str(100 + len(list(store.iterdir())))
    field = words[words.index("--field") + 1]
    assert field.startswith("body=@")
    (store / name).write_text(pathlib.Path(field[len("body=@"):]).read_text())
"""


def steps(scheduler: Scheduler, job: str) -> list[dict[str, Any]]:
    (file,) = render(scheduler, order(program=("gpuinfra",)))
    jobs = yaml.safe_load(file.text)["jobs"]
    if isinstance(jobs, list):
        # Each job is below a condition.
        jobs = {each["job"]: each for choice in jobs for each in next(iter(choice.values()))}
    found = jobs[job]
    return list(found["steps"])


def named(found: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(step for step in found if name in {step.get("name"), step.get("displayName")})


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder with fakes of `gh` and `gpuinfra`."""
    folder = tmp_path / "tools"
    folder.mkdir()
    (folder / "gh.py").write_text(GH)
    # Not as the first line of the script: a shebang allows no spaces in a path.
    (folder / "gh").write_text(f"#!/bin/sh\nexec '{sys.executable}' '{folder}/gh.py' \"$@\"\n")
    (folder / "gpuinfra").write_text('#!/bin/sh\ncat "$PLAN_FILE"\nexit "${PLAN_CODE:-0}"\n')
    for tool in folder.iterdir():
        tool.chmod(0o755)
    (tmp_path / "plan").write_text(PLAN)
    return folder


def bash(script: str, tools: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "HOME": str(tools.parent),
        "PLAN_FILE": str(tools.parent / "plan"),
        "RUNNER_TEMP": str(tools.parent),
        "AGENT_TEMPDIRECTORY": str(tools.parent),
        "BUILD_SOURCEVERSION": "abc",
        **variables,
    }
    return subprocess.run(
        ["bash", "-e", "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def comment(tools: Path, code: str = "0") -> subprocess.CompletedProcess[str]:
    """Run the comment steps of the workflow, as GitHub runs them."""
    found = steps(Scheduler.GITHUB_ACTIONS, "plan")
    output = tools.parent / "output"
    planned = bash(named(found, "Plan")["run"], tools, GITHUB_OUTPUT=str(output), PLAN_CODE=code)
    assert planned.returncode == 0, planned.stderr
    said = dict(line.split("=") for line in output.read_text().splitlines())
    given = {"GITHUB_REPOSITORY": "me/it", "NUMBER": "7", "COMMIT": "abc", "CODE": said["code"]}
    return bash(named(found, "Comment")["run"], tools, **given)


def test_github_plan_is_one_comment(tools: Path) -> None:
    assert comment(tools).returncode == 0
    (tools.parent / "plan").write_text("No changes: Azure matches the file.\n")
    done = comment(tools)
    assert done.returncode == 0, done.stderr
    (only,) = (tools / "comments").iterdir()
    text = only.read_text()
    assert text.startswith(MARK)
    assert "No changes" in text
    assert "Plan: 1 to add" not in text
    asked = (tools / "asked").read_text().splitlines()
    assert asked == [
        *("GET repos/me/it/issues/7/comments", "POST repos/me/it/issues/7/comments"),
        *("GET repos/me/it/issues/7/comments", "PATCH repos/me/it/issues/comments/100"),
    ]


def test_failing_github_plan_is_commented_and_fails(tools: Path) -> None:
    assert comment(tools, code="2").returncode == 2
    assert len(list((tools / "comments").iterdir())) == 1


def test_long_github_plan_is_cut_between_characters(tools: Path) -> None:
    # The preceding character moves them so that the cut falls into one.
    (tools.parent / "plan").write_text("-" + "±" * 40_000)
    done = comment(tools)
    assert done.returncode == 0, done.stderr
    (only,) = (tools / "comments").iterdir()
    assert only.read_text().count("±") == 29_999


class DevOps(ThreadingHTTPServer):
    """The part of Azure DevOps that a comment needs."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), DevOpsHandler)
        self.threads: list[dict[str, Any]] = [{"id": 1, "comments": [{"id": 1, "content": "looks good"}]}]
        self.asked: list[tuple[str, str]] = []


class DevOpsHandler(BaseHTTPRequestHandler):
    server: DevOps

    def answer(self) -> None:
        assert self.headers["Authorization"] == "Bearer token"
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        self.server.asked.append((self.command, self.path))
        if self.command == "POST":
            self.server.threads.append({"id": 2, "comments": [{"id": 1, **body["comments"][0]}]})
        elif self.command == "PATCH":
            self.server.threads[-1]["comments"][0].update(body)
        content = json.dumps({"value": self.server.threads}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PATCH = answer  # noqa: N815 the names are http.server's

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 the name is http.server's
        pass


@pytest.fixture
def devops() -> Iterator[DevOps]:
    server = DevOps()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_azure_pipelines_plan_is_one_comment(tools: Path, devops: DevOps) -> None:
    found = steps(Scheduler.AZURE_PIPELINES, "plan")
    script = named(found, "Comment")["inputs"]["script"]
    environment = {
        "AGENT_TEMPDIRECTORY": str(tools.parent),
        "SYSTEM_ACCESSTOKEN": "token",
        "SYSTEM_COLLECTIONURI": f"http://127.0.0.1:{devops.server_port}/",
        "SYSTEM_TEAMPROJECT": "My project",
        "BUILD_REPOSITORY_ID": "id",
        "SYSTEM_PULLREQUEST_PULLREQUESTID": "7",
    }
    for plan in (PLAN, "No changes: Azure matches the file.\n"):
        (tools.parent / "plan").write_text(plan)
        planned = bash(named(found, "Plan")["inputs"]["inlineScript"], tools)
        assert planned.returncode == 0, planned.stderr
        assert f"##vso[task.uploadsummary]{tools.parent}/plan.md" in planned.stdout
        subprocess.run([sys.executable, "-c", script], env=environment, check=True, timeout=60)
    threads = "/My%20project/_apis/git/repositories/id/pullRequests/7/threads"
    assert devops.asked == [
        ("GET", f"{threads}?api-version=7.1"),
        ("POST", f"{threads}?api-version=7.1"),
        ("GET", f"{threads}?api-version=7.1"),
        ("PATCH", f"{threads}/2/comments/1?api-version=7.1"),
    ]
    assert devops.threads[0]["comments"][0]["content"] == "looks good"
    (ours,) = devops.threads[1]["comments"]
    assert ours["content"].startswith(MARK)
    assert "No changes" in ours["content"]
    assert "Plan: 1 to add" not in ours["content"]


def test_failing_azure_pipelines_plan_is_shown_and_fails(tools: Path) -> None:
    script = named(steps(Scheduler.AZURE_PIPELINES, "plan"), "Plan")["inputs"]["inlineScript"]
    done = bash(script, tools, PLAN_CODE="1", GPUINFRA_SSH_PUBLIC_KEY="ssh-ed25519 AAAA me")
    assert done.returncode == 1
    assert "task.uploadsummary" in done.stdout
    assert (tools.parent / ".ssh" / "id_ed25519.pub").read_text() == "ssh-ed25519 AAAA me\n"


def test_pull_request_of_a_fork_is_validated_without_a_login() -> None:
    for scheduler, condition in (
        (Scheduler.GITHUB_ACTIONS, "env.OURS == 'true'"),
        (Scheduler.AZURE_PIPELINES, "ne(variables['System.PullRequest.IsFork'], 'True')"),
    ):
        found = steps(scheduler, "plan")
        assert not {"if", "condition"} & set(named(found, "Validate"))
        kept = [step for step in found if condition in str(step.get("if") or step.get("condition") or "")]
        assert {"Plan", "Comment"} <= {step.get("name") or step.get("displayName") for step in kept}
        for step in found:
            logs_in = "azure/login" in step.get("uses", "") or "azureSubscription" in step.get("inputs", {})
            assert step in kept or not logs_in, step


# Failed runs and receipts

ISSUES_GH = """
import json, pathlib, sys
words, store = sys.argv[1:], pathlib.Path(__file__).parent / "issue"
if "--method" not in words:
    assert words[1] == "repos/me/it/issues?state=open&labels=gpuinfra-reap", words
    print("7" if store.exists() else "")
elif "state=closed" in words:
    assert words[words.index("--method") + 1] == "PATCH" and words[4] == "repos/me/it/issues/7", words
    store.unlink()
else:
    assert ("PATCH" in words) == store.exists(), words
    store.write_text(next(word for word in words if word.startswith("body=")))
"""


def reap_in_ci(tools: Path, scheduler: Scheduler, answer: str, code: int) -> tuple[int, str]:
    """Run the reap step as CI does, and return its exit code and what it says to CI."""
    program("jq", "jq")
    script = named(steps(scheduler, "reap"), "Switch off what is past its lease")
    (tools / "git").write_text("#!/bin/sh\n")
    (tools / "git").chmod(0o755)
    (tools.parent / "plan").write_text(answer)
    output = tools.parent / "output"
    output.write_text("")
    text = script.get("run") or script["inputs"]["inlineScript"]
    done = bash(text, tools, GITHUB_OUTPUT=str(output), GITHUB_REF_NAME="main", PLAN_CODE=str(code))
    assert answer in done.stdout
    return done.returncode, output.read_text() + done.stdout.replace(answer, "")


@pytest.mark.parametrize("scheduler", [Scheduler.GITHUB_ACTIONS, Scheduler.AZURE_PIPELINES])
@pytest.mark.parametrize(
    ("answer", "code", "kept"),
    [
        ('{"stopped": [{"name": "a"}], "deleted": []}', 4, True),
        ('{"stopped": [], "deleted": [{"name": "a"}]}', 0, True),
        ('{"stopped": [], "deleted": []}', 0, False),
        ('{"diagnostics": []}', 1, False),
        ("no JSON", 1, False),
    ],
)
def test_run_keeps_its_exit_code_and_receipts(
    tools: Path, scheduler: Scheduler, answer: str, code: int, *, kept: bool
) -> None:
    found, said = reap_in_ci(tools, scheduler, answer, code)
    assert found == code
    assert ("true" in said) is kept


def test_failed_run_has_one_open_issue_until_one_succeeds(tools: Path) -> None:
    (tools / "gh.py").write_text(ISSUES_GH)
    script = named(steps(Scheduler.GITHUB_ACTIONS, "reap"), "Report a failure in an issue")["run"]
    for status, is_open in (("success", False), ("failure", True), ("cancelled", True), ("success", False)):
        done = bash(script, tools, GITHUB_REPOSITORY="me/it", STATUS=status, RUN="https://run")
        assert done.returncode == 0, done.stderr
        assert (tools / "issue").exists() is is_open
        if is_open:
            assert f"({status})" in (tools / "issue").read_text()
            assert "https://run" in (tools / "issue").read_text()


@pytest.mark.parametrize("scheduler", [Scheduler.GITHUB_ACTIONS, Scheduler.AZURE_PIPELINES])
@pytest.mark.parametrize("job", ["reap", "plan"])
def test_job_has_the_history_of_the_specs(scheduler: Scheduler, job: str) -> None:
    checkout = steps(scheduler, job)[0]
    depth = checkout.get("fetchDepth", (checkout.get("with") or {}).get("fetch-depth"))
    assert str(depth) == "0", "otherwise it does not know which specs were removed"


def test_pull_request_needs_an_identity_of_its_own(tools: Path) -> None:
    script = named(steps(Scheduler.GITHUB_ACTIONS, "plan"), "Check that plans have an identity that only reads")["run"]
    for reader, code in (("", 1), ("writer", 1), ("reader", 0)):
        done = bash(script, tools, READER=reader, WRITER="writer")
        assert done.returncode == code
        assert ("AZURE_PLAN_CLIENT_ID" in done.stdout) == bool(code)
    for scheduler, reading, writing in (
        (Scheduler.GITHUB_ACTIONS, "vars.AZURE_PLAN_CLIENT_ID", "vars.AZURE_CLIENT_ID"),
        (Scheduler.AZURE_PIPELINES, '"gpuinfra-plan"', '"gpuinfra"'),
    ):
        logins = [
            str(
                (step.get("with") or {}).get("client-id")
                or json.dumps((step.get("inputs") or {}).get("azureSubscription"))
            )
            for job in ("reap", "plan")
            for step in steps(scheduler, job)
            if "login" in str(step.get("uses")) or "azureSubscription" in (step.get("inputs") or {})
        ]
        assert len(logins) == 2
        assert writing in logins[0]
        assert reading in logins[1]
        assert writing not in logins[1]


class Posted(BaseHTTPRequestHandler):
    """A webhook."""

    bodies: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        self.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def test_failed_pipeline_calls_the_webhook(tools: Path) -> None:
    for tool in ("jq", "curl"):
        program(tool, tool)
    script = named(steps(Scheduler.AZURE_PIPELINES, "reap"), "Report a failure")["script"]
    assert "type=warning" in bash(script, tools, RUN="https://run").stdout
    Posted.bodies.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Posted)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}/"
        done = bash(script, tools, RUN="https://run", GPUINFRA_WEBHOOK=url)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert done.returncode == 0, done.stderr
    assert "https://run" in Posted.bodies[0]["text"]
