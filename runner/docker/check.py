"""Whether a machine can run jobs: its system, Docker, NVIDIA's runtime, its GPU. One script asks for most of it."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpuinfra.models.target import TargetCheck
from gpuinfra.runner.connection.port import Shell

MARK = "@@gpuinfra"
# For one question to an engine that hangs, so that the others are still answered.
LIMIT_SECONDS = 20
NOT_FOUND = 127
LONGEST_FINDING = 300
# Of `timeout` in coreutils, and of a command that busybox's ends by SIGTERM.
OVERDUE = (124, 143)

PRINT = f'printf "\\n{MARK} %s %s\\n%s\\n" "$name" "$code" "$said"'
REST = '"$@"'
MORE_FOLDERS = "/usr/local/sbin:/usr/sbin:/sbin"
HOOKS = ("nvidia-container-runtime-hook", "nvidia-container-toolkit")
# On one line: csh, which may be the user's shell, takes no line break in quotes, and no `!`.
SCRIPT = "; ".join(
    (
        "LC_ALL=C",
        "export LC_ALL",
        f'part() {{ name=$1; shift; said=$("$@" 2>&1); code=$?; {PRINT}; }}',
        f"limited() {{ if command -v timeout >/dev/null 2>&1; then timeout {LIMIT_SECONDS} {REST}; else {REST}; fi; }}",
        'info() { limited docker info --format "{{json .}}" 2>/dev/null; }',
        f"hook() {{ PATH=$PATH:{MORE_FOLDERS}; command -v {HOOKS[0]} || command -v {HOOKS[1]}; }}",
        "part system uname -srm",
        "part user id -un",
    )
)
ASK_DOCKER = '; part docker limited docker version --format "engine {{.Server.Version}}"'
ASK_RUNTIME = "; part info info; part hook hook"
ASK_BOOT = "; part boot limited cloud-init status"
ASK_PYTHON = "; part python python3 --version"

NO_PERMISSION = "permission denied"
NOT_RUNNING = (
    "cannot connect to the docker daemon",
    "failed to connect to the docker api",
    "is the daemon running",
    "failed to open the raw stream connection",
)
TOOLKIT = (
    "install the package `nvidia-container-toolkit`, then: "
    "`sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker`"
)


@dataclass(frozen=True, slots=True)
class Said:
    """What one command of the script said, on both streams."""

    code: int
    text: str

    @property
    def brief(self) -> str:
        """On one line, and not all of a long one."""
        return " ".join(self.text.split())[:LONGEST_FINDING] or f"nothing, and ended with {self.code}"


def look_at_docker(connection: Shell, username: str, timeout: float) -> tuple[TargetCheck, bool]:
    """Return the check of Docker, and whether the machine's first boot is still under way."""
    done = connection.run(["sh", "-c", SCRIPT + ASK_DOCKER + ASK_BOOT], timeout=timeout)
    parts = defaultdict(lambda: Said(-1, ""), read(done.stdout))
    return docker_check(parts["docker"], username), "status: running" in parts["boot"].text


def is_denied(check: TargetCheck) -> bool:
    """Whether Docker may work, and not for this user."""
    return NO_PERMISSION in check.found.casefold()


def script(*, docker: bool, gpu: bool) -> str:
    """What to ask, for any POSIX shell."""
    return SCRIPT + (ASK_DOCKER + (ASK_RUNTIME if gpu else "") if docker else ASK_PYTHON)


def read(output: str) -> dict[str, Said]:
    """What each command said. What a user's own shell prints before is left out."""
    # No exit code has more digits, and Python reads no number that has thousands.
    parts = re.split(rf"^{MARK} (\w+) ([0-9]{{1,3}})\n", output, flags=re.MULTILINE)
    return {
        name: Said(int(code), text.strip())
        for name, code, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True)
    }


def judge(parts: Mapping[str, Said], *, docker: bool, gpu: bool) -> tuple[TargetCheck, ...]:
    """What the answers mean. The GPU itself is asked for by others."""
    # A script that was ended half-way has not asked for all.
    answers = defaultdict(lambda: Said(-1, ""), parts)
    return tuple(_judged(answers, docker=docker, gpu=gpu))


def _judged(parts: Mapping[str, Said], *, docker: bool, gpu: bool) -> Iterator[TargetCheck]:
    system = parts["system"]
    is_linux = system.text.startswith("Linux ")
    yield TargetCheck("ssh", is_linux, system.brief, None if is_linux else "jobs run on Linux")
    if not docker:
        yield _python(parts["python"])
        return
    engine = docker_check(parts["docker"], parts["user"].text)
    yield engine
    if gpu and engine.passed:
        yield _runtime(parts["info"], parts["hook"])
    elif gpu:
        yield TargetCheck("nvidia-runtime", False, "not known while Docker does not answer")


def _python(said: Said) -> TargetCheck:
    passed = said.code == 0 and said.text.startswith("Python 3")
    return TargetCheck("python", passed, said.brief, None if passed else "install it: `sudo apt-get install python3`")


def docker_check(said: Said, user: str) -> TargetCheck:
    """What a `docker` command that had to reach the engine means by what it said."""
    version = re.search(r"^engine (\S{1,100})$", said.text, re.MULTILINE)
    if said.code == 0 and version:
        return TargetCheck("docker", True, f"Docker Engine {version[1]}")
    # The template's own word is there even when the engine is not.
    said = Said(said.code, said.text.removeprefix("engine"))
    words = said.text.casefold()
    if said.code == NOT_FOUND:
        return TargetCheck(
            "docker", False, "no `docker` program", "install it: https://docs.docker.com/engine/install/"
        )
    if NO_PERMISSION in words:
        return TargetCheck("docker", False, said.brief, f"`sudo usermod -aG docker {user}`, then log in again")
    if said.code in OVERDUE:
        found = f"the engine does not answer within {LIMIT_SECONDS} s"
        return TargetCheck("docker", False, found, "look at it: `sudo systemctl status docker`")
    if any(sign in words for sign in NOT_RUNNING):
        return TargetCheck("docker", False, said.brief, "start it: `sudo systemctl enable --now docker`")
    return TargetCheck("docker", False, said.brief, "make `docker version` work on the machine")


def _runtime(info: Said, hook: Said) -> TargetCheck:
    known = _object(info.text) if info.code == 0 else {}
    # Engines before 28.2 do not list devices.
    gpus = [name for name in _device_names(known.get("DiscoveredDevices")) if name.startswith("nvidia.com/gpu")]
    runtimes = known.get("Runtimes")
    if isinstance(runtimes, dict) and "nvidia" in runtimes:
        return TargetCheck("nvidia-runtime", True, "the runtime `nvidia`")
    if gpus:
        return TargetCheck("nvidia-runtime", True, f"the devices {', '.join(gpus)}"[:LONGEST_FINDING])
    if hook.code == 0 and hook.text:
        return TargetCheck("nvidia-runtime", True, hook.brief)
    return TargetCheck("nvidia-runtime", False, "Docker gives no GPU to containers", TOOLKIT)


def _device_names(devices: object) -> list[str]:
    """What an engine says is of any form until it was looked at."""
    listed = devices if isinstance(devices, list) else []
    names = [device.get("ID") for device in listed if isinstance(device, dict)]
    return [name for name in names if isinstance(name, str)]


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):  # the latter where it is nested without end
        found = None
    return found if isinstance(found, dict) else {}
