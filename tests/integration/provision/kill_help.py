"""A world of its own for every worker: an embedded Azure as a process, a workspace, and commands that can be killed."""

import http.client
import json
import os
import select
import signal
import ssl
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar
from urllib.parse import urlencode

from sandbox.running import process
from sandbox.running.client import HEADER, SECRET

ROOT = Path(__file__).parents[3]
SECONDS = 90.0
"""The longest that a command may take here."""
WORKERS = 2
API = "api-version=2024-11-01"
RESOURCES_API = "api-version=2021-04-01"

Case = TypeVar("Case")


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    """Negative for a signal, as in subprocess."""
    out: str
    err: str
    seconds: float

    @property
    def said(self) -> str:
        return f"exit {self.code} after {self.seconds:.1f} s\n{self.out}{self.err}"


@dataclass
class Child:
    """A command on its way."""

    pid: int
    out: Path
    err: Path
    started: float


class Line:
    """One connection to an embedded Azure, for its own endpoints and for Azure's: a new one costs more than a question.

    It is the judge: it sees the subscription by ARM, and not by the code that is judged.
    """

    def __init__(self, folder: Path) -> None:
        description = process.status(folder)
        assert description, "the sandbox runs"
        self.description = description
        self._secret = (folder / SECRET).read_text("ascii")
        self._trusted = ssl.create_default_context(cafile=description.ca)
        self._open: http.client.HTTPSConnection | None = None

    def close(self) -> None:
        if self._open:
            self._open.close()
            self._open = None

    def control(self, method: str, path: str, payload: dict[str, Any] | None = None) -> dict[str, Any]:
        content = None if payload is None else json.dumps(payload)
        status, body = self._ask(method, f"/_sandbox/{path}", content, {HEADER: self._secret})
        assert status == 200, body
        return body

    def get(self, path: str) -> list[dict[str, Any]]:
        """A list of ARM's, below the subscription."""
        header = {"Authorization": f"Bearer {self._token()}"}
        status, body = self._ask("GET", f"/subscriptions/{self.description.subscription}{path}", None, header)
        assert status == 200, body
        assert "nextLink" not in body
        found: list[dict[str, Any]] = body["value"]
        return found

    def _token(self) -> str:
        known = self.control("GET", "credentials")
        form = {
            "grant_type": "client_credentials",
            "client_id": known["clientId"],
            "client_secret": known["clientSecret"],
            "scope": "https://management.azure.com/.default",
        }
        header = {"Content-Type": "application/x-www-form-urlencoded"}
        status, body = self._ask("POST", f"/{known['tenant']}/oauth2/v2.0/token", urlencode(form), header)
        assert status == 200, body
        return str(body["access_token"])

    def _ask(
        self, method: str, path: str, content: str | None, headers: dict[str, str], *, again: bool = True
    ) -> tuple[int, dict[str, Any]]:
        try:
            if self._open is None:
                port = self.description.port
                self._open = http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=self._trusted)
            self._open.request(method, path, content, {"Content-Type": "application/json", **headers})
            answer = self._open.getresponse()
            return answer.status, json.loads(answer.read() or b"{}")
        except (OSError, http.client.HTTPException):
            self.close()
            if not again:  # a connection that was idle is closed by the server
                raise
            return self._ask(method, path, content, headers, again=False)


class World:
    """An embedded Azure, a spec for it, and the program."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, folder / "sandbox"
        folder.mkdir(parents=True)
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "key")], check=True, timeout=30
        )
        process.start(self.home)
        self.line = Line(self.home)
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        self._helper = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.fork_help"],
            cwd=ROOT,
            env={**kept, "HOME": str(folder), process.HOME: str(self.home), "GPUINFRA_CLOUD": "sandbox"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._number = 0
        spec = self.spec("warm")
        warm = self._order({"warm": [["up", spec], ["down", "--delete", spec]], "folder": str(folder)})
        assert warm["codes"] == [0, 0]

    def close(self) -> None:
        assert self._helper.stdin
        assert self._helper.stdout
        self._helper.stdin.close()
        self._helper.stdout.close()
        self._helper.wait(30)
        self.line.close()
        process.stop(self.home)

    # The program

    def spec(self, name: str, *, regions: Sequence[str] = ("southcentralus",), **more: Any) -> str:
        """A spec in the workspace."""
        body = {
            "apiVersion": "gpuinfra/v1",
            "name": name,
            "regions": list(regions),
            "size": "Standard_NC4as_T4_v3",
            "admin": {"sshPublicKey": str(self.folder / "key.pub")},
            **more,
        }
        (self.folder / f"{name}.yaml").write_text(json.dumps(body), "utf-8")
        return f"{name}.yaml"

    def start(self, *words: str) -> Child:
        """Begin a command."""
        self._number += 1
        out, err = (self.folder / f"{self._number}.{kind}" for kind in ("out", "err"))
        err.touch()
        order = {"run": words, "folder": str(self.folder), "out": str(out), "err": str(err)}
        started = time.monotonic()
        return Child(self._order(order)["pid"], out, err, started)

    def end(self, child: Child, seconds: float = SECONDS) -> Done:
        """Wait for a command to end; one that does not is killed, and fails the test."""
        status = self._order({"wait": child.pid}, seconds, child)["status"]
        took = time.monotonic() - child.started
        done = Done(os.waitstatus_to_exitcode(status), child.out.read_text("utf-8"), child.err.read_text("utf-8"), took)
        child.out.unlink()
        child.err.unlink()
        return done

    def run(self, *words: str) -> Done:
        """A command from beginning to end."""
        return self.end(self.start(*words))

    def succeed(self, *words: str) -> Done:
        """A command that has to end with 0."""
        done = self.run(*words)
        assert done.code == 0, f"`{' '.join(words)}`: {done.said}"
        return done

    def has_ended(self, child: Child, seconds: float = 0) -> bool:
        """Whether it is over, or is so within a while."""
        deadline = time.monotonic() + seconds
        while not _has_ended(child.pid):
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        return True

    def interrupt(self, child: Child) -> Done:
        """Ctrl-C."""
        os.kill(child.pid, signal.SIGINT)
        return self.end(child)

    def kill(self, child: Child) -> Done:
        """End it as a power cut would. It is ours until `end` has waited for it."""
        os.kill(child.pid, signal.SIGKILL)
        return self.end(child)

    def _order(self, order: dict[str, Any], seconds: float = SECONDS, child: Child | None = None) -> dict[str, Any]:
        assert self._helper.stdin
        assert self._helper.stdout
        self._helper.stdin.write(json.dumps(order).encode() + b"\n")
        self._helper.stdin.flush()
        in_time = bool(select.select([self._helper.stdout], [], [], seconds)[0])
        if not in_time and child:
            os.kill(child.pid, signal.SIGKILL)
        answer: dict[str, Any] = json.loads(self._helper.stdout.readline())
        said = child.err.read_text("utf-8") if child else ""
        assert in_time, f"the command did not end within {seconds:.0f} s\n{said}"
        return answer

    def pause(self, seconds: float) -> None:
        """Let commands go on for a while."""
        time.sleep(seconds)

    # Faults

    def arm(self, name: str, **fields: Any) -> None:
        self.line.control("POST", "faults", {"name": name, **fields})

    def clear(self) -> None:
        self.line.control("DELETE", "faults")

    def reset(self) -> None:
        self.line.control("POST", "reset", {})

    def clock(self, speed: float) -> None:
        self.line.control("POST", "clock", {"speed": speed})

    def advance(self, seconds: float) -> None:
        self.line.control("POST", "clock", {"advance": seconds})

    def held(self) -> int:
        """How many faults hold somebody."""
        return sum(bool(fault.get("held")) for fault in self.line.control("GET", "faults")["faults"])

    def wait_until_held(self, child: Child, faults: int = 1, seconds: float = SECONDS) -> bool:
        """Until a request is held; False where the command ends first, and is not to be killed any more."""
        deadline = time.monotonic() + seconds
        while self.held() < faults:
            if _has_ended(child.pid):
                return False
            assert time.monotonic() < deadline, f"nothing is held\n{child.err.read_text('utf-8')}"
            time.sleep(0.01)
        return True

    # What there is, by ARM itself

    def requests(self, after: int = 0) -> list[dict[str, Any]]:
        """What Azure was sent."""
        found: list[dict[str, Any]] = self.line.control("GET", f"log?after={after}")["requests"]
        return found

    def last_request(self) -> int:
        """The number of the last one that Azure was sent."""
        return max((int(each["number"]) for each in self.requests()), default=0)

    def operations(self) -> list[dict[str, Any]]:
        """What went on, or still does."""
        found: list[dict[str, Any]] = self.line.control("GET", "operations")["operations"]
        return found

    def resources(self) -> set[str]:
        """Everything in the subscription, whosever it is: type and name, and groups, in lower case."""
        groups = {f"group/{each['name']}" for each in self.line.get(f"/resourcegroups?{RESOURCES_API}")}
        others = {f"{each['type']}/{each['name']}" for each in self.line.get(f"/resources?{RESOURCES_API}")}
        return {each.lower() for each in groups | others}

    def machines(self) -> list[tuple[str, str, str]]:
        """Every machine in the subscription: name, region and power."""
        path = "/providers/Microsoft.Compute/virtualMachines"
        return [
            (each["name"], each["location"], _power(each)) for each in self.line.get(f"{path}?{API}&statusOnly=true")
        ]

    def billed(self) -> list[str]:
        """Names of machines that cost something at this moment, by the sandbox's own meter."""
        bill = self.line.control("GET", "bill")["machines"]
        return [each["name"] for each in bill if each["powerState"] not in {"deallocated", "deleted"}]


def parts(name: str) -> set[str]:
    """All that one machine consists of, and not one resource more."""
    found = {
        f"group/gpuinfra-{name}",
        f"Microsoft.Network/networkSecurityGroups/{name}-security",
        f"Microsoft.Network/virtualNetworks/{name}-network",
        f"Microsoft.Network/publicIPAddresses/{name}-address",
        f"Microsoft.Network/networkInterfaces/{name}-interface",
        f"Microsoft.Compute/virtualMachines/{name}",
        f"Microsoft.Compute/disks/{name}-disk",
        f"Microsoft.DevTestLab/schedules/shutdown-computevm-{name}",
    }
    return {each.lower() for each in found}


def _power(machine: dict[str, Any]) -> str:
    codes = [status["code"] for status in machine["properties"]["instanceView"]["statuses"]]
    return next((code.removeprefix("PowerState/") for code in codes if code.startswith("PowerState/")), "unknown")


def _has_ended(pid: int) -> bool:
    """Whether a process is over, while nobody has waited for it yet."""
    return Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()[0] == "Z"


@contextmanager
def worlds(folder: Path, number: int = WORKERS) -> Iterator[list[World]]:
    """So many worlds."""
    made: list[World] = []
    try:
        made.extend(World(folder / f"world{each}") for each in range(number))
        yield made
    finally:
        for world in made:
            world.close()


def for_every(made: Sequence[World], cases: Iterable[Case], check: Callable[[World, Case], None]) -> list[str]:
    """Check every case in whichever world is free; what went wrong, a text a case."""
    free: SimpleQueue[World] = SimpleQueue()
    for world in made:
        free.put(world)

    def one(case: Case) -> str | None:
        world = free.get()
        try:
            check(world, case)
        except Exception:  # all cases are seen, whatever comes of one
            return f"{case}: {traceback.format_exc(limit=-3)}"
        finally:
            free.put(world)
        return None

    with ThreadPoolExecutor(len(made)) as pool:
        return [failure for failure in pool.map(one, cases) if failure]
