"""A real Docker Engine of the test's own, from Debian's packages, with images made from this machine's files."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.images import BUSYBOX, busybox_archive
from tests.real import PATH, missing, program

IMAGE = BUSYBOX
# Whatever was started so ends with this process, even if that is killed.
TIED = ("setpriv", "--pdeathsig", "TERM")
# Engines would share the host's bridge and packet filter, and tests run side by side: each has a network of its own.
NETWORK = ("unshare", "--net", "sh", "-c", "busybox ip link set lo up && echo up && exec sleep infinity")
WAIT_SECONDS = 60.0


class Engine:
    """It needs root, and is stopped by its own process id. What it keeps is removed by `remove`."""

    def __init__(self, folder: Path, *, path: str = PATH, options: Sequence[str] = ()) -> None:
        self._program, self._client = program("dockerd", "docker.io"), program("docker", "docker.io")
        for each, package in (("setpriv", "util-linux"), ("unshare", "util-linux"), ("busybox", "busybox-static")):
            program(each, package)
        if os.geteuid() != 0:
            missing("a Docker Engine of one's own needs root")
        self.folder, self.options = folder, tuple(options)
        self.socket = folder / "docker.sock"
        self.address = f"unix://{self.socket}"
        """For DOCKER_HOST."""
        self.log = folder / "dockerd.log"
        self._path = path
        self._process: subprocess.Popen[bytes] | None = None
        self._network: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def variables(self) -> dict[str, str]:
        return {**os.environ, "PATH": self._path, "DOCKER_HOST": self.address}

    def start(self) -> None:
        """It answers when this returns. Not to be called from a thread: it would end with that."""
        folders = ["--data-root", str(self.folder / "data"), "--exec-root", str(self.folder / "exec")]
        command = [self._program, "-H", self.address, *folders, "--pidfile", str(self.folder / "docker.pid")]
        self._network = self._network or self._make_network()
        inside = [*TIED, "nsenter", f"--net=/proc/{self._network.pid}/ns/net", *command, *self.options]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(inside, stdout=log, stderr=log, env=self.variables)
        deadline = time.monotonic() + WAIT_SECONDS
        while self.docker("version", check=False).returncode:
            assert self._process.poll() is None, self.log.read_text()[-2000:]
            assert time.monotonic() < deadline, self.log.read_text()[-2000:]
            time.sleep(0.05)

    def _make_network(self) -> "subprocess.Popen[bytes]":
        """It outlives the engine, as a machine's does."""
        holder = subprocess.Popen([*TIED, *NETWORK], stdout=subprocess.PIPE, env=self.variables)
        assert holder.stdout is not None
        with holder.stdout as said:
            assert said.readline() == b"up\n"
        return holder

    def stop(self) -> None:
        """As a system does that shuts down: containers are ended. To do so twice is no error."""
        process, self._process = self._process, None
        if process:
            process.terminate()
            process.wait(timeout=WAIT_SECONDS)

    def kill(self) -> None:
        """It is gone at once, as after a crash. Containers go on until it is started again, which then ends them, as
        Docker does, or with the option `--live-restore` lets them go on."""
        process, self._process = self._process, None
        if not process:
            return
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=WAIT_SECONDS)
        self._forget_containerd()

    def _forget_containerd(self) -> None:
        """It dies with the engine. The next engine must not take one that nobody has buried yet for one that runs."""
        file = self.folder / "exec" / "containerd" / "containerd.pid"
        status = Path(f"/proc/{file.read_text().strip()}/status")
        deadline = time.monotonic() + WAIT_SECONDS
        while status.exists() and "\nState:\tZ" not in status.read_text():
            assert time.monotonic() < deadline, status.read_text()
            time.sleep(0.02)
        file.unlink()

    def restart(self) -> None:
        """With all that it knew."""
        self.stop()
        self.start()

    def remove(self) -> None:
        """Stop it, and all that it runs, and leave nothing but its log."""
        try:
            if self._process is None and (self.folder / "data").exists():
                self.start()  # one that was killed has left processes behind
            if self._process and self._process.poll() is None:
                self.clear()
        finally:
            self.stop()
            if self._network:
                self._network.kill()
                self._network.wait(timeout=WAIT_SECONDS)
                self._network = None
        # Engines mount it upon itself, which not all of their ends undo; then nobody could remove it.
        while not self._run("umount", "--lazy", str(self.folder / "data")).returncode:
            pass
        for name in ("data", "exec"):
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def clear(self) -> None:
        """Remove every container."""
        if ids := self.docker("ps", "-aq").stdout.split():
            self.docker("rm", "-f", "-v", *ids)

    def docker(self, *words: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """By the Docker program."""
        done = self._run(self._client, *words)
        assert not check or done.returncode == 0, (words, done.stderr)
        return done

    def _run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(words, env=self.variables, capture_output=True, text=True, timeout=120, check=False)

    def add_image(self, name: str, archive: Path, *settings: str) -> str:
        """Its id. The settings are lines of a Dockerfile, as `ENV A=b`."""
        changes = [word for setting in settings for word in ("--change", setting)]
        return self.docker("import", *changes, str(archive), name).stdout.strip()


@contextmanager
def docker_engine(folder: Path) -> Iterator[str]:
    """Run an engine with a busybox image; its address for DOCKER_HOST."""
    engine = Engine(folder)
    try:
        engine.start()
        engine.add_image(IMAGE, busybox_archive())
        yield engine.address
    finally:
        engine.remove()
