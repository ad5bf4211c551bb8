"""A lab: a machine for jobs, made of real programs with fake GPUs, and users who submit jobs.

The machine is a real OpenSSH server and a real Docker Engine of the test. A login has its home in the
lab's folder and finds the engine by DOCKER_HOST; `nvidia-smi` and NVIDIA's hook are fakes, and say so.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuinfra.models.target import Target
from gpuinfra.runner.connection.ssh import SshConnection
from gpuinfra.workbench.targets import write_target
from tests import program
from tests.e2e.user import inherited
from tests.engine import Engine, remove_control_groups
from tests.images import BUSYBOX, PYTHON, busybox_archive, python_archive
from tests.nvidia import Nvidia
from tests.real import PATH
from tests.sshd import SshServer, eventually

__all__ = ["BUSYBOX", "PYTHON", "Lab", "LabUser", "running"]

IMAGE_PATH = "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SECONDS = 110.0
"""For one call of the program: less than a test's timeout."""
PREFIX, LOCK = "gpuinfra-lab-", "lock"
KEPT = ":test"
"""Tags of images that tests keep: each test creates them identically."""

REMOTEDOCKER, REMOTE, LOCALDOCKER, LOCAL = "my_dsvm", "bare", "docker", "local"
"""The targets in a user's workspace, one of each type. Their runconfigs have the same names."""
TARGETS = (REMOTEDOCKER, REMOTE, LOCALDOCKER, LOCAL)


class Lab:
    """The lab's machine, and everything that tests do to it."""

    def __init__(self, folder: Path, *, gpus: int = 2) -> None:
        self.folder = folder
        self.home = folder / "home"
        """The home folder of logins on the machine."""
        self.home.mkdir()
        self.nvidia = Nvidia(folder / "nvidia", gpus)
        (folder / "engine").mkdir()
        self.engine = Engine(folder / "engine", path=f"{self.nvidia.hooks}:{PATH}")
        self.server = SshServer(folder / "sshd")
        self.server.settings["Subsystem"] = "sftp internal-sftp"
        self.path = f"{self.nvidia.programs}:{self.nvidia.hooks}:{PATH}"
        """The PATH of logins, and of users of this computer's own engine."""
        self.server.settings["SetEnv"] = f"HOME={self.home} PATH={self.path} DOCKER_HOST={self.engine.address}"
        self._users = 0

    def start(self) -> None:
        """Start everything, and wait until it answers."""
        self.engine.start()
        self.engine.add_image(BUSYBOX, busybox_archive(), IMAGE_PATH)
        self.engine.add_image(PYTHON, python_archive(), IMAGE_PATH)
        self.server.start()

    def close(self) -> None:
        """Stop everything."""
        self.server.stop()
        self.end_processes()
        self.engine.remove()

    def reset(self) -> None:
        """Restore the first state: no connection, no container, an empty home, idle and working GPUs."""
        if not self.engine.is_running:  # a failed test may have left it so
            self.engine.start()
        self.server.cut()
        self.end_processes()
        self.engine.clear()
        self.engine.remove_images(keep=KEPT)
        self.nvidia.repair()
        self.nvidia.idle()
        for folder in (self.home, *self.folder.glob("user-*")):
            shutil.rmtree(folder)
        self.home.mkdir()

    def end_processes(self) -> None:
        """Kill processes that outlive their connection or program: all with a home in the lab."""

        def is_over() -> bool:
            left = list(self._processes())
            for process in left:
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    os.kill(process, signal.SIGKILL)
            return not left

        assert eventually(is_over), "processes of the lab do not end"

    def _processes(self) -> Iterator[int]:
        home = f"HOME={self.folder}/".encode()
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if any(each.startswith(home) for each in (folder / "environ").read_bytes().split(b"\0")):
                    yield int(folder.name)

    @property
    def target(self) -> Target:
        """Return the machine as a target for container jobs with GPUs."""
        return self.target_with()

    def target_with(self, **changes: Any) -> Target:
        made = replace(self.server.target, base_docker_image=PYTHON, nvidia_docker=True)
        return replace(made, **changes)

    @contextlib.contextmanager
    def connected(self) -> Iterator[SshConnection]:
        """Connect to the machine."""
        connection = SshConnection.open(self.target, 20)
        try:
            yield connection
        finally:
            connection.close()

    @contextlib.contextmanager
    def small_disk(self, mebibytes: int) -> Iterator[None]:
        """Put gpuinfra's folder on the machine onto a new disk of this size."""
        folder = self.home / ".gpuinfra"
        folder.mkdir(mode=0o700, exist_ok=True)
        options = f"size={mebibytes}m,mode=700"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "gpuinfra", str(folder)], check=True, timeout=20)
        try:
            yield
        finally:
            # Lazily: a process may still have a file open there.
            subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=20)

    @contextlib.contextmanager
    def without_runtime(self) -> Iterator[None]:
        """Make the engine give no GPU to containers, as if NVIDIA's hook were not installed."""
        self.nvidia.remove_hook()
        self.engine.restart()
        try:
            yield
        finally:
            self.nvidia.install_hook()
            self.engine.restart()

    def user(self, **changes: Any) -> "LabUser":
        """Return a new user with a workspace that has the lab's targets. Changes are fields of all four."""
        self._users += 1
        return LabUser(self, self.folder / f"user-{self._users}", **changes)


class LabUser:
    """A user with the installed program, a home, a key that the machine accepts, and a project."""

    def __init__(self, lab: Lab, folder: Path, **changes: Any) -> None:
        self.lab, self.home, self.workspace = lab, folder / "home", folder / "project"
        self.workspace.mkdir(parents=True)
        (self.home / ".ssh").mkdir(parents=True, mode=0o700)
        key = self.home / ".ssh" / "id_ed25519"
        for end in ("", ".pub"):
            shutil.copy(f"{lab.server.user_key}{end}", f"{key}{end}")
        here = {"address": "", "port": 22, "username": "", "host_key": "", "identity": None, "machine": ""}
        remote = {"identity": str(key)}
        for name, kind, more in (
            (REMOTEDOCKER, "remotedocker", remote),
            (REMOTE, "remote", remote),
            (LOCALDOCKER, "localdocker", here),
            (LOCAL, "local", here),
        ):
            write_target(self.workspace, lab.target_with(name=name, type=kind, **{**more, **changes}))
        self.compute(LOCALDOCKER, baseDockerImage=PYTHON, nvidiaDocker=True)
        self.configure(PrepareEnvironment=False)

    def configure(self, *names: str, **values: Any) -> None:
        """Write these keys into the runconfigs of these targets, or of all."""
        for name in names or TARGETS:
            _write(self.workspace / "aml_config" / f"{name}.runconfig", values)

    def compute(self, *names: str, **values: Any) -> None:
        """Write these keys into the compute files of these targets, or of all."""
        for name in names or TARGETS:
            _write(self.workspace / "aml_config" / f"{name}.compute", values)

    def script(self, text: str, name: str = "train.py") -> str:
        """Write a script into the project, and return its name."""
        (self.workspace / name).write_text(text)
        return name

    @property
    def variables(self) -> dict[str, str]:
        return {"HOME": str(self.home), "PATH": self.lab.path, "DOCKER_HOST": self.lab.engine.address}

    def start(self, *words: str, **more: str) -> "subprocess.Popen[str]":
        """Start the program."""
        return program.Program(
            *words,
            cwd=self.workspace,
            env={**inherited(), **self.variables, **more},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *words: str, stdin: str = "", **more: str) -> "subprocess.CompletedProcess[str]":
        """Run the program. Any result is fine, except a traceback."""
        variables = {**inherited(), **self.variables, **more}
        done = program.run(*words, cwd=self.workspace, env=variables, stdin=stdin, timeout=SECONDS, errors="replace")
        assert "Traceback" not in done.stderr, done.stderr
        assert "internal error" not in done.stdout + done.stderr, done.stdout + done.stderr
        return done

    def does(self, *words: str, **more: str) -> dict[str, Any]:
        """Run a command that must succeed, and return the object that it prints."""
        done = self(*words, "--json", **more)
        assert done.returncode == 0, done.stdout + done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        assert document["schemaVersion"] == 1
        return document

    def fails(self, *words: str, code: str, exit_code: int = 1, **more: str) -> dict[str, Any]:
        """Run a command that must fail with this one problem, which has a help text."""
        done = self(*words, "--json", **more)
        assert done.returncode == exit_code, done.stdout + done.stderr
        (diagnostic,) = json.loads(done.stdout)["diagnostics"]
        assert diagnostic["code"] == code, diagnostic
        assert diagnostic.get("help"), f"no next step: {diagnostic}"
        return dict(diagnostic)


def _write(file: Path, values: dict[str, Any]) -> None:
    """Replace values. JSON is YAML. Lists on the lines below their key stay there: do not replace these."""
    kept = [line for line in file.read_text().splitlines() if line.partition(":")[0] not in values]
    file.write_text("\n".join([*kept, *(f"{key}: {json.dumps(value)}" for key, value in values.items()), ""]))


@contextlib.contextmanager
def running(*, gpus: int = 2) -> Iterator[Lab]:
    """Run a lab. Its folder has a short path, for sockets, and is accessible to unprivileged users."""
    _remove_abandoned()
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name, Path(name, "new-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder, before = Path(name), os.umask(0o022)
        (folder / "new-lock").rename(folder / LOCK)
        folder.chmod(0o755)
        try:
            made = Lab(folder, gpus=gpus)
        finally:
            os.umask(before)
        try:
            made.start()
            yield made
        finally:
            made.close()


def _remove_abandoned() -> None:
    """Remove leftovers of labs whose tests were killed: their locks are free."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError), (folder / LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for process in _started_from(folder):
                os.kill(process, signal.SIGKILL)
            mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
            for mount in reversed([each for each in mounts if each.startswith(f"{folder}/")]):
                subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True, timeout=20)
            remove_control_groups(folder / "engine")
            shutil.rmtree(folder)


def _started_from(folder: Path) -> Iterator[int]:
    """Return processes with this folder in their command lines: servers, engines, and their children."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{folder}/".encode() in (process / "cmdline").read_bytes():
                yield int(process.name)
