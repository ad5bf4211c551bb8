"""An embedded Azure with a workspace, for tests that kill, interrupt and race commands. Each pytest worker has one."""

import http.client
import json
import os
import signal
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

import pytest

from gpuinfra.sandbox import running
from gpuinfra.sandbox.running import HEADER, SECRET
from tests.conftest import Covered
from tests.program import Program, fork_server

# Far above what a command takes on a busy machine. A fault holds a request for at most 60 s, so a command that ends
# earlier did not wait for it.
END_SECONDS = 90.0
WHILE_HELD_SECONDS = 45.0
POLL_SECONDS = 0.03
API = "api-version=2024-11-01"
RESOURCES_API = "api-version=2021-04-01"
LOCKS, LOCKS_API = "/providers/Microsoft.Authorization/locks", "api-version=2016-09-01"

Test = TypeVar("Test", bound=Callable[..., None])


@dataclass(frozen=True)
class Result:
    """A command that has ended."""

    code: int
    """Negative for a signal, as in subprocess."""
    out: str
    err: str

    @property
    def text(self) -> str:
        """The exit code and both outputs, for messages of failed assertions."""
        return f"exit {self.code}\n{self.out}{self.err}"


class Command:
    """A command that was started. Its outputs are files, so that a test can read them while it runs."""

    def __init__(self, words: Sequence[str], folder: Path, variables: dict[str, str], outputs: Path) -> None:
        self.words = words
        self._out, self._err = outputs.with_suffix(".out"), outputs.with_suffix(".err")
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = Program(
                *words,
                cwd=folder,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def err(self) -> str:
        return self._err.read_text("utf-8")

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def end(self, seconds: float = END_SECONDS) -> Result:
        """Wait for its end. A command that runs longer is killed and fails the test."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(END_SECONDS)
            raise AssertionError(f"`{' '.join(self.words)}` did not end within {seconds:.0f} s\n{self.err}") from None
        return Result(code, self._out.read_text("utf-8"), self.err)

    def kill(self) -> Result:
        """Send SIGKILL, as a power cut would end it."""
        self.process.send_signal(signal.SIGKILL)
        return self.end()

    def wait_for(self, condition: Callable[[], bool], what: str) -> bool:
        """Wait until the condition holds. False if the command ends first."""
        deadline = time.monotonic() + END_SECONDS
        while not condition():
            if self.has_ended:
                return condition()
            assert time.monotonic() < deadline, (
                f"`{' '.join(self.words)}`: not within {END_SECONDS} s: {what}\n{self.err}"
            )
            time.sleep(POLL_SECONDS)
        return True


class SandboxClient:
    """One connection to the embedded Azure, for its control endpoints and for ARM.

    Tests verify the subscription through it, and not through the code under test.
    """

    def __init__(self, folder: Path) -> None:
        description = running.status(folder)
        assert description, "the sandbox runs"
        self.description = description
        self._secret = (folder / SECRET).read_text("ascii")
        self._trusted = ssl.create_default_context(cafile=description.ca)
        self._connection: http.client.HTTPSConnection | None = None

    def close(self) -> None:
        if self._connection:
            self._connection.close()
            self._connection = None

    def control(self, method: str, path: str, payload: dict[str, Any] | None = None) -> dict[str, Any]:
        content = None if payload is None else json.dumps(payload)
        status, body = self._send(method, f"/_sandbox/{path}", content, {HEADER: self._secret})
        assert status == 200, body
        return body

    def list(self, path: str) -> list[dict[str, Any]]:
        """Return a list of ARM's, below the subscription."""
        body = self.send("GET", path)
        assert "nextLink" not in body
        found: list[dict[str, Any]] = body["value"]
        return found

    def send(self, method: str, path: str, payload: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a request to ARM, below the subscription, as the subscription's owner. It must succeed."""
        header = {"Authorization": f"Bearer {self._token()}"}
        content = None if payload is None else json.dumps(payload)
        status, body = self._send(method, f"/subscriptions/{self.description.subscription}{path}", content, header)
        assert status < 300, body
        return body

    def _token(self) -> str:
        known = self.control("GET", "credentials")
        form = {
            "grant_type": "client_credentials",
            "client_id": known["clientId"],
            "client_secret": known["clientSecret"],
            "scope": "https://management.azure.com/.default",
        }
        header = {"Content-Type": "application/x-www-form-urlencoded"}
        status, body = self._send("POST", f"/{known['tenant']}/oauth2/v2.0/token", urlencode(form), header)
        assert status == 200, body
        return str(body["access_token"])

    def _send(
        self, method: str, path: str, content: str | None, headers: dict[str, str], *, retry: bool = True
    ) -> tuple[int, dict[str, Any]]:
        try:
            if self._connection is None:
                port = self.description.port
                self._connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=self._trusted)
            self._connection.request(method, path, content, {"Content-Type": "application/json", **headers})
            answer = self._connection.getresponse()
            return answer.status, json.loads(answer.read() or b"{}")
        except (OSError, http.client.HTTPException):
            self.close()
            if not retry:  # the server closes a connection that was idle
                raise
            return self._send(method, path, content, headers, retry=False)


class Harness:
    """The embedded Azure as a process, a workspace that is new in each test, and commands in it."""

    def __init__(self, folder: Path, *, exhaustive: bool = False) -> None:
        self.exhaustive = exhaustive
        self._root, self._home = folder, folder / "sandbox"
        self._tests = self._commands = 0
        self._running: list[Command] = []
        folder.mkdir(parents=True)
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "key")], check=True, timeout=60
        )
        running.start(self._home)
        self.client = SandboxClient(self._home)
        self.reset()
        spec = self.spec("warm")
        fork_server().warm_up(self.folder, self.variables, ["up", spec], ["down", "--delete", spec])

    def reset(self) -> None:
        """Begin a test: no process, no resource, no fault, real time, an empty workspace."""
        for command in self._running:
            if not command.has_ended:
                command.kill()
        self._running.clear()
        self.empty()
        self.clock(1)
        self._tests += 1
        self.folder = self._root / f"workspace{self._tests}"
        self.folder.mkdir()
        # Nothing of LANG or PYTHON…, which the fork server could not apply.
        self.variables = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            running.HOME: str(self._home),
            "GPUINFRA_CLOUD": "sandbox",
        }

    def close(self) -> None:
        self.reset()
        self.client.close()
        running.stop(self._home)

    # Commands

    def spec(self, name: str, *, regions: Sequence[str] = ("southcentralus",), **more: Any) -> str:
        """Write a spec into the workspace, and return its file name."""
        body = {
            "apiVersion": "gpuinfra/v1",
            "name": name,
            "regions": list(regions),
            "size": "Standard_NC4as_T4_v3",
            "admin": {"sshPublicKey": str(self._root / "key.pub")},
            **more,
        }
        (self.folder / f"{name}.yaml").write_text(json.dumps(body), "utf-8")
        return f"{name}.yaml"

    def start(self, *words: str) -> Command:
        """Start a command. Deletions have the user's consent: machines here are often off or incomplete."""
        words = (*words, "--yes") if "--delete" in words else words
        self._commands += 1
        command = Command(words, self.folder, self.variables, self._root / f"command{self._commands}")
        self._running.append(command)
        return command

    def run(self, *words: str) -> Result:
        """Run a command to its end."""
        return self.start(*words).end()

    def succeed(self, *words: str) -> Result:
        """Run a command that must exit with 0."""
        result = self.run(*words)
        assert result.code == 0, f"`{' '.join(words)}`: {result.text}"
        return result

    # Faults and time

    def arm(self, name: str, **fields: Any) -> None:
        """Arm a fault of the embedded Azure."""
        self.client.control("POST", "faults", {"name": name, **fields})

    def clear(self) -> None:
        """Disarm all faults and release all held requests."""
        self.client.control("DELETE", "faults")

    def release(self) -> None:
        """Release all held requests, and leave the faults armed that have not hit a request yet."""
        self.client.control("POST", "release", {})

    def faults(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.client.control("GET", "faults")["faults"]
        return found

    def held(self) -> int:
        """Return how many faults hold a request."""
        return sum(bool(fault.get("held")) for fault in self.faults())

    def wait_until_held(self, command: Command, faults: int = 1) -> bool:
        """Wait until this many faults hold a request. False if the command ends first."""
        return command.wait_for(lambda: self.held() >= faults, "a fault holds a request")

    def empty(self) -> None:
        """Delete all resources, faults and logged requests from the embedded Azure."""
        self.client.control("POST", "reset", {})

    def clock(self, speed: float) -> None:
        self.client.control("POST", "clock", {"speed": speed})

    def advance(self, seconds: float) -> None:
        self.client.control("POST", "clock", {"advance": seconds})

    # What others do in the subscription

    def group(self, name: str, location: str = "southcentralus") -> None:
        """Create a resource group."""
        self.client.send("PUT", f"/resourceGroups/{name}?{RESOURCES_API}", {"location": location})

    def lock(self, level: str, scope: str = "") -> str:
        """Lock the subscription or a scope in it, and return the lock's ID."""
        body = {"properties": {"level": level}}
        return str(self.client.send("PUT", f"{scope}{LOCKS}/keep?{LOCKS_API}", body)["id"])

    def unlock(self) -> None:
        """Delete all locks in the subscription."""
        for each in self.client.list(f"{LOCKS}?{LOCKS_API}"):
            place = each["id"].removeprefix(f"/subscriptions/{self.client.description.subscription}")
            self.client.send("DELETE", f"{place}?{LOCKS_API}")

    # What exists, as ARM shows it

    def requests(self, after: int = 0) -> list[dict[str, Any]]:
        """Return the requests that Azure has answered, or dropped (status 0)."""
        found: list[dict[str, Any]] = self.client.control("GET", f"log?after={after}")["requests"]
        return found

    def last_request(self) -> int:
        """Return the number of the last logged request."""
        return max((int(each["number"]) for each in self.requests()), default=0)

    def operations(self) -> list[dict[str, Any]]:
        """Return all operations, with their status."""
        found: list[dict[str, Any]] = self.client.control("GET", "operations")["operations"]
        return found

    def is_operation_in_progress(self) -> bool:
        return "InProgress" in [each["status"] for each in self.operations()]

    def resources(self) -> set[str]:
        """Return everything in the subscription, ours or not: type and name, and groups, in lower case."""
        groups = {f"group/{each['name']}" for each in self.client.list(f"/resourcegroups?{RESOURCES_API}")}
        others = {f"{each['type']}/{each['name']}" for each in self.client.list(f"/resources?{RESOURCES_API}")}
        return {each.lower() for each in groups | others}

    def machines(self) -> list[tuple[str, str, str]]:
        """Return name, region and power state of every VM in the subscription."""
        path = "/providers/Microsoft.Compute/virtualMachines"
        found = self.client.list(f"{path}?{API}&statusOnly=true")
        return [(each["name"], each["location"], _power_state(each)) for each in found]

    def billed(self) -> list[str]:
        """Return the names of the VMs that cost something now, by the sandbox's own meter."""
        bill = self.client.control("GET", "bill")["machines"]
        return [each["name"] for each in bill if each["powerState"] not in {"deallocated", "deleted"}]


def resources_of(name: str) -> set[str]:
    """Return all resources that one machine consists of."""
    found = {
        f"group/gpuinfra-{name}",
        f"Microsoft.Network/networkSecurityGroups/{name}-nsg",
        f"Microsoft.Network/virtualNetworks/{name}-vnet",
        f"Microsoft.Network/publicIPAddresses/{name}-ip",
        f"Microsoft.Network/networkInterfaces/{name}-nic",
        f"Microsoft.Compute/virtualMachines/{name}",
        f"Microsoft.Compute/disks/{name}-disk",
        f"Microsoft.DevTestLab/schedules/shutdown-computevm-{name}",
    }
    return {each.lower() for each in found}


def resource_type(request: dict[str, Any]) -> str:
    """Return the type of resource that a logged request is about, in lower case, as a fault's `type` takes it."""
    path = str(request["path"]).strip("/").lower()
    if "/providers/" not in path:
        return path.split("/")[::2][-1]
    namespace, *rest = path.rpartition("/providers/")[2].split("/")
    if not rest:
        return namespace
    return rest[0] if request["method"] == "POST" else rest[::2][-1]


def _power_state(machine: dict[str, Any]) -> str:
    codes = [status["code"] for status in machine["properties"]["instanceView"]["statuses"]]
    return next((code.removeprefix("PowerState/") for code in codes if code.startswith("PowerState/")), "unknown")


@pytest.fixture(scope="session")
def session_harness(tmp_path_factory: pytest.TempPathFactory, exhaustive: bool) -> Iterator[Harness]:
    """The harness of this pytest worker."""
    made = Harness(tmp_path_factory.mktemp("harness") / "root", exhaustive=exhaustive)
    yield made
    made.close()


@pytest.fixture
def harness(session_harness: Harness) -> Iterator[Harness]:
    """The harness with nothing in it."""
    session_harness.reset()
    yield session_harness
    with suppress(OSError):
        session_harness.clear()


# Cases: one of each kind by default, all with `--exhaustive`


@dataclass(frozen=True)
class Cases:
    """The parameters of a test."""

    names: str
    default: Sequence[Any]
    every: Sequence[Any]
    is_reported: bool


def cases(names: str, default: Sequence[Any], every: Sequence[Any], *, report: bool = True) -> Callable[[Test], Test]:
    """Parametrize a test with some cases, and with every case if `--exhaustive` is given. Report how many."""

    def mark(test: Test) -> Test:
        test.cases = Cases(names, default, every, report)  # type: ignore[attr-defined]
        return test

    return mark


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Apply `cases`."""
    found: Cases | None = getattr(metafunc.function, "cases", None)
    if found:
        chosen = found.every if metafunc.config.getoption("--exhaustive") else found.default
        metafunc.parametrize(found.names, chosen)


@pytest.fixture(autouse=True)
def report_cases(request: pytest.FixtureRequest, covered: Covered) -> None:
    """Count each case of a test that has `cases`."""
    found: Cases | None = getattr(request.function, "cases", None)
    if found and found.is_reported:
        covered(f"{request.node.path.stem}::{request.function.__name__}, cases", 1, len(found.every))
