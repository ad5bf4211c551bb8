"""Checks of a machine, from outputs of Docker 20.10 and 28.2 on real machines."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from gpuinfra.models.target import TargetCheck
from gpuinfra.runner.connection.port import Completed
from gpuinfra.runner.docker.check import LIMIT_SECONDS, MARK, judge, read, script
from gpuinfra.runner.errors import Broken, ConnectError, TimedOut
from gpuinfra.runner.readiness import examine

SYSTEM = f"\n{MARK} system 0\nLinux 5.15.0-1053-azure x86_64\n\n{MARK} user 0\nazureuser\n"
ENGINE = f"\n{MARK} docker 0\nengine 20.10.24+dfsg1\n"
NOT_RUNNING = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"
NEWER_NOT_RUNNING = (
    "failed to connect to the docker API at unix:///var/run/docker.sock; check if the path is correct and if the "
    "daemon is running: dial unix /var/run/docker.sock: connect: no such file or directory"
)
NO_PERMISSION = (
    "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock: Get "
    '"http://%2Fvar%2Frun%2Fdocker.sock/v1.50/version": dial unix /var/run/docker.sock: connect: permission denied'
)
RUNC = {"io.containerd.runc.v2": {"path": "runc"}, "runc": {"path": "runc"}}
NVIDIA = {**RUNC, "nvidia": {"path": "nvidia-container-runtime"}}
CDI = [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}, {"Source": "cdi", "ID": "nvidia.com/gpu=all"}]
GPU = Completed(0, "Tesla T4, 535.161.08, 15360 MiB, 7.5\n", "")


def docker(said: str, code: int = 1) -> str:
    return f"{SYSTEM}\n{MARK} docker {code}\nengine \n{said}\n"


def runtime(info: object, hook: str = "") -> str:
    text = info if isinstance(info, str) else json.dumps(info)
    return f"{SYSTEM}{ENGINE}\n{MARK} info 0\n{text}\n\n{MARK} hook {0 if hook else 127}\n{hook}\n"


def check_of(output: str, name: str, *, gpu: bool = False) -> TargetCheck:
    return next(check for check in judge(read(output), docker=True, gpu=gpu) if check.name == name)


def test_text_of_the_shell_before_the_output_is_ignored() -> None:
    parts = read(f"Welcome to lab!\n{MARK}\n{SYSTEM}{ENGINE}")
    assert judge(parts, docker=True, gpu=False) == (
        TargetCheck("ssh", True, "Linux 5.15.0-1053-azure x86_64"),
        TargetCheck("docker", True, "Docker Engine 20.10.24+dfsg1"),
    )


def test_other_operating_system_is_refused() -> None:
    (check, _) = judge(
        read(f"{MARK} system 0\nDarwin 23.1.0 arm64\n{MARK} python 0\nPython 3.9.6\n"), docker=False, gpu=False
    )
    assert (check.passed, check.found, check.help) == (False, "Darwin 23.1.0 arm64", "jobs run on Linux")


@pytest.mark.parametrize(
    ("output", "found", "help_line"),
    [
        (docker("sh: 5: docker: not found", 127), "no `docker` program", "docs.docker.com/engine/install"),
        (docker(NO_PERMISSION), NO_PERMISSION, "`sudo usermod -aG docker azureuser`, then log in again"),
        (docker(NOT_RUNNING), NOT_RUNNING, "`sudo systemctl enable --now docker`"),
        (docker(NEWER_NOT_RUNNING), NEWER_NOT_RUNNING, "`sudo systemctl enable --now docker`"),
        (docker("", 124), f"the engine did not answer within {LIMIT_SECONDS} s", "systemctl status docker"),
        (docker("", 143), f"the engine did not answer within {LIMIT_SECONDS} s", "systemctl status docker"),
        (docker("exec format error", 126), "exec format error", "make `docker version` work"),
        (docker("", 1), "no output, exit code 1", "make `docker version` work"),
    ],
)
def test_docker_faults_are_distinguished(output: str, found: str, help_line: str) -> None:
    check = check_of(output, "docker")
    assert (check.passed, check.found) == (False, found)
    assert check.help
    assert help_line in check.help


def test_warning_next_to_the_version_is_ignored() -> None:
    warning = "WARNING: Error loading config file: /home/me/.docker/config.json: permission denied"
    check = check_of(f"{SYSTEM}\n{MARK} docker 0\n{warning}\nengine 28.2.2\n", "docker")
    assert (check.passed, check.found) == (True, "Docker Engine 28.2.2")


@pytest.mark.parametrize(
    ("output", "found"),
    [
        (runtime({"Runtimes": NVIDIA}), "the runtime `nvidia`"),
        (
            runtime({"Runtimes": RUNC, "DiscoveredDevices": CDI}),
            "the devices nvidia.com/gpu=0, nvidia.com/gpu=all",
        ),
        (
            runtime({"Runtimes": RUNC}, "/usr/bin/nvidia-container-runtime-hook"),
            "/usr/bin/nvidia-container-runtime-hook",
        ),
        (runtime("", "/usr/bin/nvidia-container-toolkit"), "/usr/bin/nvidia-container-toolkit"),
    ],
)
def test_runtime_devices_or_hook_provide_gpus(output: str, found: str) -> None:
    assert check_of(output, "nvidia-runtime", gpu=True) == TargetCheck("nvidia-runtime", True, found)


@pytest.mark.parametrize(
    "info",
    [
        {"Runtimes": RUNC, "DiscoveredDevices": [{"Source": "cdi", "ID": "amd.com/gpu=0"}]},
        {"Runtimes": None, "DiscoveredDevices": None},
        "",
        "nonsense",
        "[]",
    ],
)
def test_engine_without_gpu_support_is_reported(info: object) -> None:
    check = check_of(runtime(info), "nvidia-runtime", gpu=True)
    assert not check.passed
    assert check.help
    assert "nvidia-container-toolkit" in check.help
    assert "nvidia-ctk runtime configure" in check.help


def test_runtime_is_unknown_if_the_engine_does_not_answer() -> None:
    checks = judge(read(docker(NOT_RUNNING)), docker=True, gpu=True)
    assert [(check.name, check.passed) for check in checks] == [
        ("ssh", True),
        ("docker", False),
        ("nvidia-runtime", False),
    ]
    assert checks[2].found == "unknown, because Docker does not answer"


@pytest.mark.parametrize(
    ("said", "code", "passed"),
    [("Python 3.10.12", 0, True), ("Python 2.7.18", 0, False), ("sh: 1: python3: not found", 127, False)],
)
def test_target_without_docker_needs_python(said: str, code: int, passed: bool) -> None:
    output = f"{SYSTEM}\n{MARK} python {code}\n{said}\n"
    (_, check) = judge(read(output), docker=False, gpu=True)
    assert (check.name, check.passed, check.found, bool(check.help)) == ("python", passed, said, not passed)


@dataclass
class Machine:
    """Returns one answer to the script, and another to `nvidia-smi`."""

    output: str
    gpu: Completed | ConnectError = GPU
    asked: list[str] = field(default_factory=list)

    def run(self, command: Sequence[str] | str, *, timeout: float) -> Completed:
        self.asked.append("nvidia-smi" if "nvidia-smi" in command else command[0])
        if self.asked[-1] == "sh":
            return Completed(0, self.output, "")
        if isinstance(self.gpu, ConnectError):
            raise self.gpu
        return self.gpu

    def close(self) -> None:
        pass


def test_examination_needs_two_round_trips() -> None:
    machine = Machine(runtime({"Runtimes": NVIDIA}))
    checkup = examine(machine, docker=True, gpu=True, timeout=5)
    assert machine.asked == ["sh", "nvidia-smi"]
    assert checkup.passed
    assert checkup.gpu
    assert checkup.gpu.models == ("Tesla T4",)
    document = checkup.as_json()
    assert [check["name"] for check in document["checks"]] == ["ssh", "docker", "nvidia-runtime", "gpu"]
    assert document["checks"][3] == {
        "name": "gpu",
        "passed": True,
        "found": "Tesla T4, 15360 MiB, driver 535.161.08",
        "help": None,
    }
    assert document["gpu"]["count"] == 1


@pytest.mark.parametrize(
    ("row", "simulated"),
    [("Tesla T4 (simulated), 535.161.08, 15360 MiB, 7.5", True), ("Tesla T4, 535.161.08, 15360 MiB, 7.5", False)],
)
def test_unneeded_gpu_shows_whether_the_machine_is_simulated(row: str, simulated: bool) -> None:
    checkup = examine(Machine(SYSTEM + ENGINE, Completed(0, f"{row}\n", "")), docker=True, gpu=False, timeout=5)
    assert [check.name for check in checkup.checks] == ["ssh", "docker"]
    assert checkup.gpu
    assert checkup.gpu.simulated is simulated
    assert "docker info --format" not in script(docker=True, gpu=False).rpartition("part system")[2]


@pytest.mark.parametrize("gpu", [Completed(127, "", "sh: 1: nvidia-smi: not found"), TimedOut("did not end")])
def test_unneeded_gpu_need_not_work(gpu: Completed | ConnectError) -> None:
    checkup = examine(Machine(SYSTEM + ENGINE, gpu), docker=True, gpu=False, timeout=5)
    assert [check.name for check in checkup.checks] == ["ssh", "docker"]
    assert checkup.passed
    assert checkup.gpu is None


@pytest.mark.parametrize("gpu", [Completed(127, "", "sh: 1: nvidia-smi: not found"), TimedOut("did not end")])
def test_gpu_fault_is_reported_with_other_faults(gpu: Completed | ConnectError) -> None:
    checkup = examine(Machine(docker(NOT_RUNNING), gpu), docker=True, gpu=True, timeout=5)
    assert [check.name for check in checkup.checks if not check.passed] == ["docker", "nvidia-runtime", "gpu"]
    assert checkup.gpu is None
    assert checkup.checks[-1].help


def test_lost_connection_is_raised() -> None:
    with pytest.raises(Broken):
        examine(Machine(SYSTEM + ENGINE, Broken("lost")), docker=True, gpu=True, timeout=5)


def test_incomplete_output_is_not_an_internal_error() -> None:
    checkup = examine(Machine(SYSTEM), docker=True, gpu=True, timeout=5)
    assert [check.name for check in checkup.checks if not check.passed] == ["docker", "nvidia-runtime"]


def test_user_without_a_shell_is_reported() -> None:
    (check,) = examine(Machine("This account is currently not available.\n"), docker=True, gpu=True, timeout=5).checks
    assert not check.passed
    assert "This account is currently not available." in check.found
