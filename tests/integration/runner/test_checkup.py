"""Check a machine: in real shells, and over SSH with a real Docker Engine."""

import contextlib
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuinfra.models.target import Checkup, TargetCheck
from gpuinfra.runner.connection.port import Completed
from gpuinfra.runner.connection.ssh import SshConnection
from gpuinfra.runner.docker import check as checkup_module
from gpuinfra.runner.readiness import examine
from tests.integration.runner.conftest import WAIT_SECONDS, PasswordServer, SshServer
from tests.lab import Lab
from tests.real import PATH, program

SMI = "echo 'Tesla T4, 535.161.08, 15360 MiB, 7.5'"
SHELLS = {"dash": ["dash"], "bash": ["bash"], "busybox": ["busybox", "sh"]}


class Shell:
    """This computer with one kind of shell and a few programs."""

    def __init__(self, words: list[str], folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.install("sh", f'exec {program(words[0], words[0])} {" ".join(words[1:])} "$@"')
        for name in ("uname", "id", "sleep", "timeout"):
            (folder / name).symlink_to(program(name, "coreutils"))

    def install(self, name: str, script: str) -> None:
        file = self.folder / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    def run(self, command: Sequence[str] | str, *, timeout: float) -> Completed:
        found = self.folder / command[0]
        if not found.exists():
            return Completed(127, "", f"sh: 1: {command[0]}: not found")
        words = [str(found), *command[1:]]
        environment = {"PATH": str(self.folder)}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=timeout, check=False)
        return Completed(done.returncode, done.stdout, done.stderr)

    def close(self) -> None:
        pass

    def examine(self, *, docker: bool = True, gpu: bool = True) -> Checkup:
        return examine(self, docker=docker, gpu=gpu, timeout=WAIT_SECONDS)


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Shell:
    return Shell(SHELLS[request.param], tmp_path / "bin")


def names(checkup: Checkup, *, passed: bool) -> list[str]:
    return [check.name for check in checkup.checks if check.passed is passed]


def test_missing_programs_are_found_in_every_shell(shell: Shell) -> None:
    checkup = shell.examine()
    assert names(checkup, passed=True) == ["ssh"]
    assert names(checkup, passed=False) == ["docker", "nvidia-runtime", "gpu"]
    assert checkup.checks[1].found == "no `docker` program"
    assert names(shell.examine(docker=False, gpu=False), passed=False) == ["python"]


def test_check_works_without_the_timeout_program(shell: Shell) -> None:
    (shell.folder / "timeout").unlink()
    assert shell.examine().checks[1].found == "no `docker` program"


def test_present_programs_are_found_in_every_shell(shell: Shell) -> None:
    engine = """case $1 in
    version) echo 'engine 28.2.2';;
    info) echo 'WARNING: no swap' >&2; printf '%s\\n' '{"Runtimes": {"nvidia": {"path": "a\\\\tb %s"}}}';;
    esac"""
    shell.install("docker", engine)
    shell.install("nvidia-smi", SMI)
    shell.install("python3", "echo Python 3.10.12")
    checkup = shell.examine()
    assert checkup.passed, checkup
    assert checkup.gpu
    assert checkup.checks[2].found == "the runtime `nvidia`"
    assert shell.examine(docker=False).passed


def test_hanging_engine_does_not_hide_the_other_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup_module, "SCRIPT", checkup_module.SCRIPT.replace("timeout 20", "timeout 1"))
    shell = Shell(SHELLS["dash"], tmp_path / "bin")
    shell.install("docker", "sleep 30")
    shell.install("nvidia-smi", SMI)
    checkup = shell.examine()
    assert "did not answer within" in checkup.checks[1].found
    assert names(checkup, passed=True) == ["ssh", "gpu"]


@pytest.fixture
def engine(lab: Lab) -> str:
    return lab.engine.address


def serve(server: SshServer, engine: str, folder: Path, *programs: str) -> None:
    folder.mkdir(exist_ok=True)
    for name in programs:
        (folder / name).write_text(f"#!/bin/sh\n{SMI if name == 'nvidia-smi' else 'exit 0'}\n")
        (folder / name).chmod(0o755)
    server.settings["SetEnv"] = f"PATH={folder}:{PATH} DOCKER_HOST={engine}"
    server.start()


def look(server: SshServer, *, docker: bool = True, gpu: bool = True) -> Checkup:
    def password() -> str:
        return PasswordServer.PASSWORD

    with contextlib.closing(SshConnection.open(server.target, WAIT_SECONDS, password)) as connection:
        return examine(connection, docker=docker, gpu=gpu, timeout=WAIT_SECONDS)


def test_machine_with_a_real_engine_can_run_jobs(server: SshServer, engine: str, tmp_path: Path) -> None:
    serve(server, engine, tmp_path / "bin", "nvidia-smi", "nvidia-container-runtime-hook")
    checkup = look(server)
    assert checkup.passed, checkup
    system, docker, runtime, gpu = checkup.checks
    assert system.found.startswith("Linux ")
    assert docker.found.startswith("Docker Engine ")
    assert runtime == TargetCheck("nvidia-runtime", True, str(tmp_path / "bin" / "nvidia-container-runtime-hook"))
    assert gpu.found == "Tesla T4, 15360 MiB, driver 535.161.08"


def test_engine_without_gpu_support_is_reported(server: SshServer, engine: str, tmp_path: Path) -> None:
    serve(server, engine, tmp_path / "bin", "nvidia-smi")
    assert names(look(server), passed=False) == ["nvidia-runtime"]
    assert look(server, gpu=False).passed
    assert look(server, docker=False).passed


def test_missing_engine_is_reported(server: SshServer, tmp_path: Path) -> None:
    program("docker", "docker.io")
    serve(server, f"unix://{tmp_path}/none.sock", tmp_path / "bin", "nvidia-smi")
    docker = look(server).checks[1]
    assert docker.help == "start it: `sudo systemctl enable --now docker`", docker


def test_user_without_permission_for_the_engine_is_reported(engine: str, tmp_path: Path) -> None:
    server = PasswordServer(tmp_path / "sshd")
    try:
        serve(server, engine, tmp_path / "bin")
        docker = look(server, gpu=False).checks[1]
    finally:
        server.stop()
    assert docker.help == f"`sudo usermod -aG docker {PasswordServer.USER}`, then log in again", docker
