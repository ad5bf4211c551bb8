"""Compare the time of a job that does nothing with OpenSSH and Docker by hand, on the same machine.

Two figures: the whole program, including the start of Python and its packages, and the job alone, from the login to the
outputs, in a running Python.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from bench.ratio import Ratio
from tests.lab import PYTHON, REMOTEDOCKER, Lab, LabUser, running
from tests.real import program

ROUNDS = 9
LIMIT = 1.3
SCRIPT = "noop.py"
COMMAND = (str(Path(sys.executable).with_name("gpuinfra")), "submit", "-c", REMOTEDOCKER, SCRIPT)
WITHIN = """
import sys, time
from gpuinfra.cli.main import main
for _ in range(int(sys.argv[1])):
    began = time.perf_counter()
    code = main(["submit", "-c", sys.argv[2], sys.argv[3]])
    if code:
        sys.exit(code)
    print(time.perf_counter() - began)
"""
MANUAL = f"ssh host docker run --rm {PYTHON} python -c pass"


def measure(command: Sequence[str] = COMMAND, rounds: int = ROUNDS) -> Sequence[Ratio]:
    """Return ratios of median times in alternating rounds, each with its own connection and login.

    The project is already on the machine, as it is from the second job on.
    """
    with running() as lab:
        # Without a GPU, so that both start one container.
        user = lab.user()
        user.compute(nvidiaDocker=False)
        user.script("pass\n", SCRIPT)
        manual = by_hand(lab, user, "docker", "run", "--rm", PYTHON, "python", "-c", "pass")
        for each in (command, manual):
            _seconds(each, user)
        ours: list[float] = []
        theirs: list[float] = []
        for number in range(rounds):
            # Alternate which one is first.
            for words, times in ((command, ours), (manual, theirs))[:: 1 if number % 2 else -1]:
                times.append(_seconds(words, user))
        alone = _alone(user, rounds)
    print(f"no-op job: ours {_shown(ours)} · by hand {_shown(theirs)}", file=sys.stderr, flush=True)
    print(f"no-op job, Python started: {_shown(alone)}", file=sys.stderr, flush=True)
    return [
        Ratio("no-op container job", MANUAL, median(alone) / median(theirs), LIMIT),
        Ratio("no-op container job, whole program", MANUAL, median(ours) / median(theirs), LIMIT),
    ]


def _alone(user: LabUser, rounds: int) -> list[float]:
    """Return the times of consecutive jobs in one process, each with its own login, without the first one."""
    environment = {**os.environ, **user.variables}
    words = [sys.executable, "-c", WITHIN, str(rounds + 1), REMOTEDOCKER, SCRIPT]
    done = subprocess.run(
        words, cwd=user.workspace, env=environment, capture_output=True, text=True, timeout=300, check=True
    )
    return [float(word) for word in done.stdout.split()][1:]


def by_hand(lab: Lab, user: LabUser, *command: str) -> list[str]:
    """Return the words that run a command on the machine with OpenSSH."""
    known = user.home / ".ssh" / "known_hosts"
    known.write_text(f"[127.0.0.1]:{lab.server.port} {lab.target.host_key}\n")
    ssh = [program("ssh", "openssh-client"), "-F", "none", "-p", str(lab.server.port)]
    options = ["-i", str(user.home / ".ssh" / "id_ed25519"), "-o", f"UserKnownHostsFile={known}"]
    return [*ssh, *options, "127.0.0.1", *command]


def _seconds(command: Sequence[str], user: LabUser) -> float:
    # An installed package has its byte code; a checkout has it from the second round on.
    environment = {**os.environ, **user.variables, "PYTHONPYCACHEPREFIX": str(user.home / "bytecode")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    began = time.perf_counter()
    done = subprocess.run(
        command,
        cwd=user.workspace,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    seconds = time.perf_counter() - began
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
    return seconds


def _shown(times: Sequence[float]) -> str:
    return " ".join(f"{seconds:.2f}" for seconds in times)
