"""Measure how long a machine is billed after its job: from the job's exit to Azure's acceptance of the deallocation.

In the sandbox, with operation times as recorded in Azure and a delay of 0.2 s per response, as over a real network.
Once with a client, and once with a client killed during the job, where the guest agent must notice by itself.
"""

import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from statistics import median

from bench.ratio import Ratio
from gpuinfra.sandbox import running
from tests.e2e.azure import Azure
from tests.e2e.run_help import Client, guest_home, project
from tests.e2e.user import User

ROUNDS = 3
ALIVE_SECONDS, KILLED_SECONDS = 2.0, 75.0
LONGEST = 180.0
ANSWER_SECONDS = 0.2
# The last action of the job is to read the clock.
SCRIPT = """
import pathlib, time
home = pathlib.Path.home()
print("begun", flush=True)
while not (home / "go").exists():
    time.sleep(0.01)
(home / "go").unlink()
pathlib.Path("outputs/model.txt").write_text("weights")
(home / "ended").write_text(str(time.time()))
"""
OF = "seconds from the job's exit to the accepted deallocation"


def measure(rounds: int = ROUNDS) -> Sequence[Ratio]:
    """Return both figures: the median of several rounds with a client, and one round with a killed client."""
    with tempfile.TemporaryDirectory(prefix="gpuinfra-bench-") as name:
        folder = Path(name)
        azure = Azure(folder / "sandbox")
        try:
            user = User(azure, folder / "home", folder / "project")
            project(user)
            (user.workspace / "tail.py").write_text(SCRIPT)
            alive = [_tail(user, killed=False) for _ in range(rounds)]
            killed = _tail(user, killed=True)
        finally:
            running.stop(azure.folder)
    shown = " ".join(f"{seconds:.2f}" for seconds in alive)
    print(f"tail: client alive {shown} s · client killed {killed:.2f} s", file=sys.stderr, flush=True)
    return [
        Ratio("tail with a client", OF, median(alive), ALIVE_SECONDS),
        Ratio("tail without a client", OF, killed, KILLED_SECONDS),
    ]


def _tail(user: User, *, killed: bool) -> float:
    azure = user.azure
    azure.clear_faults()
    azure.control("POST", "profile", {"profile": "instant"})
    user.up()
    azure.control("POST", "profile", {"profile": "realistic"})
    azure.fault("slow", seconds=ANSWER_SECONDS, count=0)
    last, home = azure.last_request(), guest_home(azure)
    with Client(user, "run", "gpu.yaml", "tail.py") as client:
        client.until_says("begun")
        if killed:
            client.kill()
        (home / "go").touch()
        accepted = _accepted(azure, last)
        if not killed:
            client.end(LONGEST)
    return accepted - float((home / "ended").read_text())


def _accepted(azure: Azure, last: int) -> float:
    """Return when Azure accepted it, in local time: the sandbox's clock has an offset but the same speed."""
    ends = time.monotonic() + LONGEST
    while time.monotonic() < ends:
        ahead = float(azure.control("GET", "clock")["now"]) - time.time()
        for request in azure.requests(last):
            if request["method"] == "POST" and request["path"].endswith("/deallocate") and request["status"] == 202:
                return _moment(request["end"]) - ahead
        time.sleep(0.05)
    sys.exit("the machine was not deallocated")


def _moment(text: str) -> float:
    # Azure has seven digits, one more than Python can parse.
    return datetime.fromisoformat(text[:26] + text[27:]).timestamp()
