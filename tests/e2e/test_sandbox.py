"""The embedded Azure as a program: started, used by a real client, killed, started again, stopped."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.identity import ClientSecretCredential
from azure.mgmt.compute import ComputeManagementClient
from azure.mgmt.resource.resources import ResourceManagementClient

from gpuinfra.cli.main import main
from gpuinfra.sandbox import running as process
from gpuinfra.sandbox.kernel.meter import Meter
from gpuinfra.sandbox.kernel.store import Store
from tests.e2e.conftest import Run
from tests.variants import variant, variants

DISK: Any = {"location": "eastus", "properties": {"creationData": {"createOption": "Empty"}, "diskSizeGB": 32}}
VARIABLES = [
    "AZURE_TENANT_ID",
    "AZURE_CLIENT_ID",
    "AZURE_CLIENT_SECRET",
    "AZURE_SUBSCRIPTION_ID",
    "AZURE_AUTHORITY_HOST",
    "GPUINFRA_ARM_ENDPOINT",
    "REQUESTS_CA_BUNDLE",
    "AZURE_CORE_INSTANCE_DISCOVERY",
]


class Program:
    """`gpuinfra sandbox …` on a folder of its own."""

    def __init__(self, run: Run, folder: Path) -> None:
        self._run, self.folder = run, folder

    def __call__(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return self._run("sandbox", *words, **{"GPUINFRA_SANDBOX_HOME": str(self.folder), **variables})

    def data(self, *words: str) -> dict[str, Any]:
        done = self(*words, "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        assert document["schemaVersion"] == 1
        return document


@pytest.fixture
def inside(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the program's own `main` in this process: for what the many words mean, a process each is too slow."""

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        capsys.readouterr()
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            code = main(arguments)
        shown = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, code, shown.out, shown.err)

    return run


@pytest.fixture
def program(run: Run, tmp_path: Path) -> Iterator[Program]:
    """The installed program."""
    folder = tmp_path / "home"
    yield Program(run, folder)
    process.stop(folder)


@pytest.fixture
def words(inside: Run, tmp_path: Path) -> Iterator[Program]:
    """The same in this process, on the same folder."""
    folder = tmp_path / "home"
    yield Program(inside, folder)
    process.stop(folder)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("running") / "home"
    process.start(folder)
    yield folder
    process.stop(folder)


@pytest.fixture
def running(inside: Run, home: Path) -> Program:
    """One server for the tests that change nothing in it."""
    return Program(inside, home)


class Azure:
    """Clients of the real SDK, with nothing but what `env` says."""

    def __init__(self, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
        environment = program.data("env")
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", environment["REQUESTS_CA_BUNDLE"])
        self.credential = ClientSecretCredential(
            environment["AZURE_TENANT_ID"],
            environment["AZURE_CLIENT_ID"],
            environment["AZURE_CLIENT_SECRET"],
            authority=environment["AZURE_AUTHORITY_HOST"],
            disable_instance_discovery=True,
        )
        settings: Any = {
            "base_url": environment["GPUINFRA_ARM_ENDPOINT"],
            "credential_scopes": ["https://management.azure.com/.default"],
            "retry_total": 0,
        }
        subscription = environment["AZURE_SUBSCRIPTION_ID"]
        self.resource = ResourceManagementClient(self.credential, subscription, **settings)
        self.compute = ComputeManagementClient(self.credential, subscription, **settings)
        self.groups = self.resource.resource_groups

    def close(self) -> None:
        self.resource.close()
        self.compute.close()
        self.credential.close()


@pytest.fixture
def azure(words: Program, monkeypatch: pytest.MonkeyPatch) -> Iterator[Azure]:
    assert words("start").returncode == 0
    clients = Azure(words, monkeypatch)
    yield clients
    clients.close()


def kill(program: Program) -> None:
    pid = program.data("status")["pid"]
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while process.status(program.folder):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def time_kept(folder: Path, *, after: float) -> float:
    """The time that the server has written down, which it does every second, once that is later than this."""
    store, deadline = Store(folder / "state.sqlite3"), time.monotonic() + 60
    try:
        while (kept := float(store.setting("clock")["now"])) <= after:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        store.close()
    return kept


def test_start_status_stop(program: Program, words: Program) -> None:
    assert program.data("status") == {"schemaVersion": 1, "running": False, "folder": str(program.folder)}
    assert not program.folder.exists()
    started = program("start")
    assert started.returncode == 0
    assert re.fullmatch(r"started  https://localhost:\d+  pid \d+  profile instant\n", started.stdout)
    assert 'eval "$(gpuinfra sandbox env)"' in started.stderr
    status = program.data("status")
    assert (status["running"], status["profile"], status["speed"], status["machines"]) == (True, "instant", 1.0, 0)
    again = words.data("start")
    assert (again["started"], again["pid"]) == (False, status["pid"])
    assert process.ensure_started(program.folder) == process.status(program.folder)
    human = words("status").stdout
    assert f"endpoint      {status['endpoint']}\n" in human
    assert program("stop").stdout == "stopped\n"
    assert not Path(f"/proc/{status['pid']}/exe").exists()
    assert not (program.folder / "server.json").exists()
    second = words("stop")
    assert (second.returncode, second.stdout) == (0, "not running\n")
    assert words("status").stdout.startswith("state   not running\n")
    assert process.ensure_started(program.folder).pid != status["pid"]


def test_only_the_owner_can_read_what_is_kept(running: Program) -> None:
    assert running.folder.stat().st_mode & 0o777 == 0o700
    assert (running.folder / "server.json").exists()
    for file in running.folder.iterdir():
        assert file.stat().st_mode & 0o077 == 0, file


def test_secrets_are_printed_by_env_alone(running: Program) -> None:
    started = running("start")
    environment = running.data("env")
    secrets = [environment["AZURE_CLIENT_SECRET"], (running.folder / "secret").read_text()]
    assert all(len(secret) > 20 for secret in secrets)
    status = running.data("status")
    outputs = [started.stdout, started.stderr, json.dumps(status), (running.folder / "server.json").read_text()]
    outputs += [running(word, "--verbose").stdout for word in ("status", "log", "bill", "clock", "fault")]
    outputs += [(running.folder / "server.log").read_text(), Path(f"/proc/{status['pid']}/cmdline").read_text()]
    outputs += [Path(f"/proc/{status['pid']}/environ").read_text()]
    for secret in secrets:
        assert not any(secret in output for output in outputs)


def test_a_shell_can_evaluate_env(running: Program) -> None:
    lines = running("env").stdout.splitlines()
    assert [line.split("=")[0] for line in lines][: len(VARIABLES)] == [f"export {name}" for name in VARIABLES]
    script = "\n".join([*lines, 'printf "%s\\n" "$AZURE_CLIENT_SECRET" "$REQUESTS_CA_BUNDLE"'])
    shown = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout.splitlines()
    assert shown == [running.data("env")["AZURE_CLIENT_SECRET"], str(running.folder / "ca.pem")]


@variant
def test_a_path_with_a_quote_in_it(inside: Run, tmp_path: Path) -> None:
    program = Program(inside, tmp_path / "it's mine")
    try:
        program("start")
        script = f'{program("env").stdout}printf "%s" "$REQUESTS_CA_BUNDLE"'
        shown = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
        assert shown == str(program.folder / "ca.pem")
    finally:
        process.stop(program.folder)


@variant
def test_the_sdk_by_env_log_faults_and_clock(words: Program, azure: Azure) -> None:
    azure.groups.create_or_update("demo", {"location": "eastus"})
    (request,) = words.data("log")["requests"]
    assert (request["method"], request["status"]) == ("PUT", 201)
    assert request["path"].lower().endswith("/resourcegroups/demo")
    assert request["start"] <= request["end"]
    assert re.search(r"^ +1  \S+Z +\d+ ms +201  PUT +/subscriptions/", words("log").stdout, re.MULTILINE)
    assert words.data("log", "--after", "1")["requests"] == []

    armed = words("fault", "Conflict", "--method", "get", "--type", "resourceGroups", "--message", "busy")
    assert armed.stdout == "Conflict  1  method=GET type=resourceGroups message=busy\n"
    assert [fault["name"] for fault in words.data("fault")["faults"]] == ["Conflict"]
    with pytest.raises(HttpResponseError, match="busy"):
        azure.groups.get("demo")
    assert azure.groups.get("demo").name == "demo"
    assert words("fault", "--list").stderr == "no fault is armed\n"
    words("fault", "TooManyRequests", "--retry-after", "9", "--count", "0")
    assert words("fault").stdout.splitlines()[1] == "TooManyRequests  always  retryAfter=9"
    assert words.data("fault", "--clear")["faults"] == []
    azure.groups.get("demo")

    before = words.data("clock")["now"]
    for advance, seconds in (("30s", 30), ("1h30m", 5400), ("90m", 5400), ("45d", 45 * 86_400)):
        after = words.data("clock", "--advance", advance)["now"]
        assert 0 <= after - before - seconds < 30
        before = after
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ  speed 60\n", words("clock", "--speed", "60").stdout)


HELD_CLIENT = """
import ssl, sys, urllib.request
url, token, trusted = sys.argv[1:]
headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
request = urllib.request.Request(url, b'{"location": "eastus"}', headers, method="PUT")
urllib.request.urlopen(request, context=ssl.create_default_context(cafile=trusted))
"""


@variant
def test_a_program_is_killed_while_its_third_request_is_held(words: Program, azure: Azure) -> None:
    armed = words("fault", "hold-after", "--method", "PUT", "--skip", "2")
    assert armed.stdout == "hold-after  1  method=PUT skip=2\n"
    for name in ("one", "two"):
        azure.groups.create_or_update(name, {"location": "eastus"})
    state = words.data("status")
    url = f"{state['endpoint']}/subscriptions/{state['subscription']}/resourceGroups/three?api-version=2024-11-01"
    token = azure.credential.get_token("https://management.azure.com/.default").token
    with subprocess.Popen([sys.executable, "-c", HELD_CLIENT, url, token, state["ca"]]) as client:
        deadline = time.monotonic() + 20
        while not any(fault.get("held") for fault in words.data("fault")["faults"]):
            assert time.monotonic() < deadline
            assert client.poll() is None
            time.sleep(0.05)
        assert words("fault").stdout.splitlines()[1] == "hold-after  1      method=PUT skip=0 held"
        client.kill()
    assert words.data("fault", "--clear")["faults"] == []
    assert azure.groups.check_existence("three"), "its last word was heard"
    azure.groups.create_or_update("four", {"location": "eastus"})


@variant
def test_operations_as_data_and_for_people(words: Program, azure: Azure) -> None:
    assert words("log", "--operations").stderr == "no operations so far\n"
    azure.groups.create_or_update("demo", {"location": "eastus"})
    azure.compute.disks.begin_create_or_update("demo", "disk", DISK).result()
    words("fault", "slow", "--operation", "--seconds", "600")
    azure.compute.disks.begin_delete("demo", "disk", polling=False)
    first, second = words.data("log", "--operations")["operations"]
    assert (first["action"], first["status"], first["location"]) == ("disks/write", "Succeeded", "eastus")
    assert first["resource"].endswith("/resourceGroups/demo/providers/Microsoft.Compute/disks/disk")
    assert first["start"] <= first["end"] <= second["start"]
    assert (second["action"], second["status"], second["end"]) == ("disks/delete", "InProgress", None)
    assert words.data("log", "--operations", "--after", str(first["number"]))["operations"] == [second]
    heading, done, goes_on = words("log", "--operations").stdout.splitlines()
    assert heading.split() == ["NUMBER", "START", "END", "STATUS", "ACTION", "RESOURCE"]
    assert re.match(r" +1  \S+Z  \S+Z +Succeeded +disks/write +/subscriptions/", done)
    assert re.match(r" +2  \S+Z  - +InProgress +disks/delete +/subscriptions/", goes_on)
    words("reset")
    assert words.data("log", "--operations")["operations"] == []


@variant
def test_a_client_that_only_reads(words: Program, azure: Azure) -> None:
    azure.groups.create_or_update("demo", {"location": "eastus"})
    assert words("fault", "read-only").stdout == "read-only  always\n"
    assert azure.groups.get("demo").name == "demo"
    with pytest.raises(HttpResponseError, match="does not have authorization to perform action"):
        azure.groups.create_or_update("other", {"location": "eastus"})
    words("fault", "--clear")
    azure.groups.create_or_update("other", {"location": "eastus"})


@variant
def test_the_bill_as_data_and_for_people(words: Program) -> None:
    words("start")
    assert words.data("bill") == {"schemaVersion": 1, "machines": []}
    nothing = words("bill")
    assert (nothing.stdout, nothing.stderr) == ("", "no machines so far\n")
    words("stop")
    store = Store(words.folder / "state.sqlite3")
    for key, state, price, moment in (
        ("/a", "running", 0.5, 0),
        ("/b", "running", 3.0, 0),
        ("/a", "deallocated", 0.5, 5400),
        ("/b", "deleted", 3.0, 3600 * 30),
    ):
        Meter(store).change(key, f"machine{key}", state, price, moment)
    store.close()
    words("start")
    first, second = words.data("bill")["machines"]
    assert first == {
        "name": "machine/a",
        "id": "/a",
        "powerState": "deallocated",
        "billedSeconds": 5400.0,
        "costUsd": 0.75,
        "timeline": [
            {
                "state": "running",
                "from": "1970-01-01T00:00:00.0000000+00:00",
                "to": "1970-01-01T01:30:00.0000000+00:00",
            },
            {"state": "deallocated", "from": "1970-01-01T01:30:00.0000000+00:00", "to": None},
        ],
    }
    assert second["costUsd"] == 90.0
    assert words("bill").stdout.splitlines() == [
        "MACHINE    STATE          BILLED  COST (simulated)",
        "machine/a  deallocated   1:30:00           $0.7500",
        "machine/b  deleted      30:00:00          $90.0000",
        "total                   31:30:00          $90.7500",
    ]


def test_nothing_is_lost_when_the_server_is_killed(
    words: Program, azure: Azure, monkeypatch: pytest.MonkeyPatch
) -> None:
    azure.groups.create_or_update("demo", {"location": "eastus"})
    words("start", "--profile", "realistic")
    words("fault", "Conflict", "--resource", "other")
    words("fault", "slow", "--operation", "--seconds", "600")
    azure.compute.disks.begin_create_or_update("demo", "disk", DISK, polling=False)
    assert azure.compute.disks.get("demo", "disk").provisioning_state == "Updating"
    words("clock", "--speed", "100", "--advance", "5h")
    # Five hours later the first one is over; a second one is on its way.
    words("fault", "slow", "--operation", "--seconds", "80000")
    fresh = Azure(words, monkeypatch)
    assert fresh.compute.disks.get("demo", "disk").provisioning_state == "Succeeded"
    fresh.compute.disks.begin_create_or_update("demo", "second", DISK, polling=False)
    before = words.data("status")
    kept = time_kept(words.folder, after=before["now"])
    kill(words)
    assert words("log").returncode == 1
    assert words.data("status")["running"] is False

    started = words.data("start")
    assert started["started"] is True
    assert started["pid"] != before["pid"]
    assert [started[name] for name in ("port", "tenant", "subscription", "profile", "speed", "faults")] == [
        before[name] for name in ("port", "tenant", "subscription", "profile", "speed", "faults")
    ]
    assert 0 <= started["now"] - kept < 30_000, "it goes on from the time that was written down, at a hundred a second"
    # The same client goes on as if nothing had been: port, certificate, token, and the operation.
    assert [group.name for group in fresh.groups.list()] == ["demo"]
    assert fresh.compute.disks.get("demo", "second").provisioning_state == "Updating"
    words("clock", "--advance", "23h")
    assert fresh.compute.disks.get("demo", "second").provisioning_state == "Succeeded"
    assert len(words.data("log")["requests"]) == before["requests"] + 3
    fresh.close()


def test_two_starts_at_once_give_one_server(program: Program) -> None:
    results: list[dict[str, Any]] = []
    threads = [threading.Thread(target=lambda: results.append(program.data("start"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(results) == 3
    assert len({result["pid"] for result in results}) == 1
    log = (program.folder / "server.log").read_text()
    assert log.count("INFO sandbox: serving") == 1
    assert "already" not in log


def serve(folder: Path) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "gpuinfra.sandbox", "serve", "--folder", str(folder)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", variants(signal.SIGTERM, signal.SIGINT))
def test_in_the_foreground_a_signal_ends_it_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with serve(tmp_path / "own") as server:
        deadline = time.monotonic() + 20
        while (description := process.status(tmp_path / "own")) is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert description.pid == server.pid
        with serve(tmp_path / "own") as second:
            assert second.wait(20) == 1
            assert "already" in second.communicate()[1]
        server.send_signal(number)
        assert server.wait(20) == 0
        assert server.communicate() == ("", "")
    assert not (tmp_path / "own" / "server.json").exists()


def test_a_process_that_only_has_the_number_is_left_alone(words: Program) -> None:
    words("start")
    stale = (words.folder / "server.json").read_text()
    kill(words)
    with subprocess.Popen(["sleep", "60"]) as innocent:
        (words.folder / "server.json").write_text(json.dumps({**json.loads(stale), "pid": innocent.pid}))
        assert words.data("status")["running"] is False
        assert words("stop").stdout == "not running\n"
        assert innocent.poll() is None
        innocent.kill()


@variant
def test_reset(words: Program, azure: Azure) -> None:
    azure.groups.create_or_update("demo", {"location": "eastus"})
    before = words.data("status")
    assert words("reset").stdout == "reset\n"
    after = words.data("status")
    assert (after["resources"], after["requests"], after["pid"]) == (0, 0, before["pid"])
    assert not azure.groups.check_existence("demo")
    azure.groups.create_or_update("demo", {"location": "eastus"})
    words("stop")
    assert words.data("reset") == {"schemaVersion": 1, "reset": True}
    again = words.data("start")
    assert (again["resources"], again["requests"]) == (0, 0)
    assert [again[name] for name in ("tenant", "subscription", "clientId")] == [
        before[name] for name in ("tenant", "subscription", "clientId")
    ]
    assert not azure.groups.check_existence("demo")


@pytest.mark.parametrize("command", ["env", "fault", "clock", "bill", "log"])
def test_a_command_that_needs_the_server_says_how_to_start_it(words: Program, command: str) -> None:
    done = words(command)
    assert (done.returncode, done.stdout) == (1, "")
    assert "the sandbox is not running" in done.stderr
    assert "`gpuinfra sandbox start` starts it" in done.stderr
    assert json.loads(words(command, "--json").stdout)["diagnostics"][0]["code"] == "sandbox-not-running"
    assert not words.folder.exists()


@pytest.mark.parametrize(
    ("given", "code", "says"),
    [
        (["fault", "Conflct"], "unknown-fault", "did you mean `Conflict`?"),
        (["fault", "--clear", "Conflict"], "usage", "take no NAME"),
        (["fault", "--count", "3"], "usage", "take no NAME"),
        (["fault", "Conflict", "--method", "FETCH"], "sandbox-refused", "it can be: GET"),
        (["fault", "Conflict", "--region", "moon"], "sandbox-refused", "no region"),
        (["fault", "no-boot", "--skip", "1"], "sandbox-refused", "skip goes with"),
        (["fault", "read-only", "--type", "disks"], "sandbox-refused", "does not go with read-only"),
        (["fault", "evict", "--resource", "ghost"], "sandbox-refused", "no machine is called"),
        (["clock", "--advance", "tomorrow"], "bad-duration", "expected days"),
        (["clock", "--advance", ""], "bad-duration", "expected days"),
        (["clock", "--advance", "30m1h"], "bad-duration", "expected days"),
        (["clock", "--advance", "9999d"], "sandbox-refused", "ten years"),
        (["clock", "--speed", "-2"], "sandbox-refused", "more than 0"),
        (["start", "--profile", "fast"], "usage", "realistic"),
        (["statsu"], "unknown-command", "did you mean `status`?"),
        (["start", "now"], "usage", "now"),
    ],
)
def test_wrong_words_are_refused_with_a_reason(running: Program, given: list[str], code: str, says: str) -> None:
    done = running(*given, "--json")
    assert done.returncode == 2
    (diagnostic,) = json.loads(done.stdout)["diagnostics"]
    assert diagnostic["code"] == code
    assert says in json.dumps(diagnostic)


def test_shared_options_stand_anywhere(running: Program, inside: Run) -> None:
    home = {"GPUINFRA_SANDBOX_HOME": str(running.folder)}
    for words in (["--json", "sandbox", "status"], ["sandbox", "--json", "status"], ["sandbox", "status", "--json"]):
        assert json.loads(inside(*words, **home).stdout)["running"] is True
    for command in ("start", "stop", "status", "reset", "env", "fault", "clock", "bill", "log"):
        shown = inside("sandbox", command, "--help").stdout
        for option in ("--json", "--yes", "--sandbox", "--workspace", "--verbose"):
            assert option in shown
    assert inside("sandbox").stdout == inside("sandbox", "--help").stdout


def test_a_proxy_of_the_environment_is_not_asked(running: Program) -> None:
    done = running("status", "--json", HTTPS_PROXY="http://127.0.0.1:1", https_proxy="http://127.0.0.1:1")
    assert json.loads(done.stdout)["running"] is True


def test_a_server_that_cannot_start_shows_its_log(words: Program) -> None:
    words.folder.mkdir(mode=0o700)
    (words.folder / "state.sqlite3").write_text("this is no database, whatever its name says" * 40)
    done = words("start")
    assert done.returncode == 1
    assert "the server ended with exit code 1" in done.stderr
    assert "file is not a database" in done.stderr
    assert "server.log" in done.stderr


def test_a_folder_that_cannot_be_made(inside: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = Program(inside, tmp_path / "file" / "home")("start")
    assert done.returncode == 1
    assert "cannot be used: Not a directory" in done.stderr


def test_without_the_extra_it_says_what_to_install(program: Program, tmp_path: Path) -> None:
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "sitecustomize.py").write_text("import sys\nsys.modules['starlette'] = None\n")
    done = program("start", PYTHONPATH=str(tmp_path / "without"))
    assert done.returncode == 1
    assert "starlette cannot be imported" in done.stderr
    assert "pip install 'gpuinfra[sandbox]'" in done.stderr


def test_a_folder_called_sandbox_is_not_taken_for_ours(
    words: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for place in (tmp_path, words.folder):
        (place / "sandbox").mkdir(parents=True)
        (place / "sandbox" / "__init__.py").write_text("raise SystemExit('not ours')\n")
    assert words("start").returncode == 0


@pytest.mark.parametrize("arguments", [["sandbox", "--help"], ["sandbox", "status"]])
def test_its_commands_import_nothing_of_the_server(arguments: list[str], program: Program) -> None:
    script = (
        "import sys\n"
        "from gpuinfra.cli.main import main\n"
        f"main({arguments!r})\n"
        "print(*sys.modules, sep='\\n', file=sys.stderr)\n"
    )
    environment = {**os.environ, "GPUINFRA_SANDBOX_HOME": str(program.folder)}
    words = [sys.executable, "-c", script]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=True)
    loaded = {name.split(".")[0] for name in done.stderr.split()}
    assert not loaded & {"starlette", "uvicorn", "cryptography", "asyncssh", "azure"}


@variant
def test_a_quota_limit_is_shown_and_set(words: Program) -> None:
    words("start")
    assert words("quota").stderr == "no limits set; those of the catalogue apply\n"
    family = "Standard NCASv3_T4 Family"
    limits = words.data("quota", "--region", "southcentralus", "--family", family, "--limit", "0")["limits"]
    assert limits == {"southcentralus": {family: 0}}
    assert words("quota").stdout.splitlines()[1].split("  ") == ["southcentralus", family, "0"]
    incomplete = words("quota", "--region", "southcentralus")
    assert incomplete.returncode == 2
    assert "a limit also needs --family and --limit" in incomplete.stderr
    unknown = words("quota", "--region", "atlantis", "--family", family, "--limit", "0")
    assert unknown.returncode in {1, 2}
    assert "no region" in unknown.stderr
