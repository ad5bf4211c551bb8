"""Check whether a machine can run jobs: its system, Docker and NVIDIA's runtime, with one script."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpuinfra.models.target import TargetCheck
from gpuinfra.runner.connection.port import Shell

# The summary of an engine's error. Here, because importing the other errors imports the SDK.
CANNOT_RUN = "the image cannot run the command"

MARK = "@@gpuinfra"
# For each command, so that an engine that hangs does not prevent the other checks.
LIMIT_SECONDS = 20
NOT_FOUND = 127
MAX_FINDING = 300
# Exit codes of `timeout` in coreutils and in busybox.
TIMED_OUT = (124, 143)

PRINT = f'printf "\\n{MARK} %s %s\\n%s\\n" "$name" "$code" "$output"'
REST = '"$@"'
MORE_FOLDERS = "/usr/local/sbin:/usr/sbin:/sbin"
HOOKS = ("nvidia-container-runtime-hook", "nvidia-container-toolkit")
# On one line and without `!`, because csh, which may be the user's shell, accepts neither in quotes.
SCRIPT = "; ".join(
    (
        "LC_ALL=C",
        "export LC_ALL",
        f'part() {{ name=$1; shift; output=$("$@" 2>&1); code=$?; {PRINT}; }}',
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
class CommandOutput:
    """The exit code of a command, and its output on both streams."""

    code: int
    text: str

    @property
    def brief(self) -> str:
        """Return the output on one line, shortened."""
        return " ".join(self.text.split())[:MAX_FINDING] or f"no output, exit code {self.code}"


def look_at_docker(connection: Shell, username: str, timeout: float) -> tuple[TargetCheck, bool]:
    """Return the check of Docker, and whether cloud-init still runs on the machine."""
    done = connection.run(["sh", "-c", SCRIPT + ASK_DOCKER + ASK_BOOT], timeout=timeout)
    parts = defaultdict(lambda: CommandOutput(-1, ""), read(done.stdout))
    return docker_check(parts["docker"], username), "status: running" in parts["boot"].text


def is_denied(check: TargetCheck) -> bool:
    """Return whether Docker refuses this user."""
    return NO_PERMISSION in check.found.casefold()


def script(*, docker: bool, gpu: bool) -> str:
    """Return the script, for any POSIX shell."""
    return SCRIPT + (ASK_DOCKER + (ASK_RUNTIME if gpu else "") if docker else ASK_PYTHON)


def read(output: str) -> dict[str, CommandOutput]:
    """Return the output of each command, without text that the user's shell printed before."""
    # An exit code has at most three digits.
    parts = re.split(rf"^{MARK} (\w+) ([0-9]{{1,3}})\n", output, flags=re.MULTILINE)
    return {
        name: CommandOutput(int(code), text.strip())
        for name, code, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True)
    }


def judge(parts: Mapping[str, CommandOutput], *, docker: bool, gpu: bool) -> tuple[TargetCheck, ...]:
    """Return the checks. The GPU itself is checked separately."""
    # The output of a script that was interrupted is incomplete.
    answers = defaultdict(lambda: CommandOutput(-1, ""), parts)
    return tuple(_checks(answers, docker=docker, gpu=gpu))


def _checks(parts: Mapping[str, CommandOutput], *, docker: bool, gpu: bool) -> Iterator[TargetCheck]:
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
        yield TargetCheck("nvidia-runtime", False, "unknown, because Docker does not answer")


def _python(output: CommandOutput) -> TargetCheck:
    passed = output.code == 0 and output.text.startswith("Python 3")
    return TargetCheck("python", passed, output.brief, None if passed else "install it: `sudo apt-get install python3`")


def docker_check(output: CommandOutput, user: str) -> TargetCheck:
    """Return the check for the output of a `docker` command that connects to the engine."""
    version = re.search(r"^engine (\S{1,100})$", output.text, re.MULTILINE)
    if output.code == 0 and version:
        return TargetCheck("docker", True, f"Docker Engine {version[1]}")
    # The template's word `engine` is printed even without an engine.
    output = CommandOutput(output.code, output.text.removeprefix("engine"))
    text = output.text.casefold()
    if output.code == NOT_FOUND:
        return TargetCheck(
            "docker", False, "no `docker` program", "install it: https://docs.docker.com/engine/install/"
        )
    if NO_PERMISSION in text:
        return TargetCheck("docker", False, output.brief, f"`sudo usermod -aG docker {user}`, then log in again")
    if output.code in TIMED_OUT:
        found = f"the engine did not answer within {LIMIT_SECONDS} s"
        return TargetCheck("docker", False, found, "check its state: `sudo systemctl status docker`")
    if any(sign in text for sign in NOT_RUNNING):
        return TargetCheck("docker", False, output.brief, "start it: `sudo systemctl enable --now docker`")
    return TargetCheck("docker", False, output.brief, "make `docker version` work on the machine")


def _runtime(info: CommandOutput, hook: CommandOutput) -> TargetCheck:
    known = _object(info.text) if info.code == 0 else {}
    # Engines before 28.2 do not list devices.
    gpus = [name for name in _device_names(known.get("DiscoveredDevices")) if name.startswith("nvidia.com/gpu")]
    runtimes = known.get("Runtimes")
    if isinstance(runtimes, dict) and "nvidia" in runtimes:
        return TargetCheck("nvidia-runtime", True, "the runtime `nvidia`")
    if gpus:
        return TargetCheck("nvidia-runtime", True, f"the devices {', '.join(gpus)}"[:MAX_FINDING])
    if hook.code == 0 and hook.text:
        return TargetCheck("nvidia-runtime", True, hook.brief)
    return TargetCheck("nvidia-runtime", False, "Docker gives containers no GPU", TOOLKIT)


def _device_names(devices: object) -> list[str]:
    """Return the names of devices. The engine's answer may have any form."""
    listed = devices if isinstance(devices, list) else []
    names = [device.get("ID") for device in listed if isinstance(device, dict)]
    return [name for name in names if isinstance(name, str)]


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {}
