"""A real Docker Engine of the test, from Debian's packages, with images made from this machine's files."""

import os
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import docker  # type: ignore[import-untyped]
from docker.errors import APIError  # type: ignore[import-untyped]

from tests.images import BUSYBOX, busybox_archive
from tests.real import PATH, missing, program

IMAGE = BUSYBOX
# Started processes end with this process, even if it is killed.
TIED = ("setpriv", "--pdeathsig", "TERM")
# Engines run in parallel with each other and with the host's engine. Each has its own network,
# control groups, containerd namespace and settings. It chooses ports below those that the host gives to other programs,
# so that a test can use the same number on the host.
PORTS = "echo 20000 29999 > /proc/sys/net/ipv4/ip_local_port_range"
NETWORK = ("unshare", "--net", "sh", "-c", f"busybox ip link set lo up && {PORTS} && echo up && exec sleep infinity")
CONTROL_GROUPS = Path("/sys/fs/cgroup")
WAIT_SECONDS = 60.0
GONE, BUSY = 404, 409


class Engine:
    """An engine. It needs root, and is stopped by its process id. `remove` deletes its data."""

    def __init__(self, folder: Path, *, path: str = PATH, options: Sequence[str] = ()) -> None:
        self._program, self._client = program("dockerd", "docker.io"), program("docker", "docker.io")
        for each, package in (("setpriv", "util-linux"), ("unshare", "util-linux"), ("busybox", "busybox-static")):
            program(each, package)
        if os.geteuid() != 0:
            missing("a Docker Engine of one's own needs root")
        self.folder, self.options = folder, tuple(options)
        self.socket = folder / "docker.sock"
        self.address = f"unix://{self.socket}"
        """The value for DOCKER_HOST."""
        self.log = folder / "dockerd.log"
        self.name = f"gpuinfra-tests-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        """The parent of its control groups, unique on the machine."""
        (folder / "name").write_text(self.name)
        self._path = path
        self._version: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._network: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def variables(self) -> dict[str, str]:
        return {**os.environ, "PATH": self._path, "DOCKER_HOST": self.address}

    def start(self) -> None:
        """Start the engine and wait until it answers. Not from a thread: the engine would end with it."""
        self._network = self._network or self._make_network()
        (self.folder / "daemon.json").write_text("{}")
        files = {
            "--data-root": "data",
            "--exec-root": "exec",
            "--pidfile": "docker.pid",
            "--config-file": "daemon.json",
        }
        command = [self._program, "-H", self.address]
        command += [word for option, name in files.items() for word in (option, str(self.folder / name))]
        command += ["--exec-opt", "native.cgroupdriver=cgroupfs", "--cgroup-parent", f"/{self.name}"]
        command += ["--containerd-namespace", self.name, "--containerd-plugins-namespace", f"{self.name}-plugins"]
        command += ["--iptables=false", *self.options]
        inside = [*TIED, "nsenter", f"--net={self.network}", *command]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(inside, stdout=log, stderr=log, env=self.variables)
        deadline = time.monotonic() + WAIT_SECONDS
        while not self._answers():
            assert self._process.poll() is None, self.log.read_text()[-2000:]
            assert time.monotonic() < deadline, self.log.read_text()[-2000:]
            time.sleep(0.02)

    def _answers(self) -> bool:
        with suppress(OSError), socket.socket(socket.AF_UNIX) as link:
            link.settimeout(WAIT_SECONDS)
            link.connect(str(self.socket))
            link.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return b" 200 " in link.recv(100)
        return False

    @property
    def network(self) -> str:
        """Return the path of the engine's network namespace."""
        assert self._network is not None
        return f"/proc/{self._network.pid}/ns/net"

    @property
    def is_running(self) -> bool:
        """Return whether its process exists."""
        return self._process is not None and self._process.poll() is None

    @contextmanager
    def api(self) -> Iterator[docker.APIClient]:
        """Connect to the engine without our own code, and without the start-up time of the Docker program."""
        # Asked once: to answer, an engine starts several programs.
        client = docker.APIClient(base_url=self.address, version=self._version or "auto")
        self._version = client.api_version
        try:
            yield client
        finally:
            client.close()

    def _make_network(self) -> "subprocess.Popen[bytes]":
        """Create the network namespace. It outlives the engine, as a machine's network does."""
        holder = subprocess.Popen([*TIED, *NETWORK], stdout=subprocess.PIPE, env=self.variables)
        assert holder.stdout is not None
        with holder.stdout as said:
            assert said.readline() == b"up\n"
        return holder

    def stop(self) -> None:
        """Stop the engine as a shutdown does, which ends containers. A second call does nothing."""
        process, self._process = self._process, None
        if process:
            process.terminate()
            process.wait(timeout=WAIT_SECONDS)

    def kill(self) -> None:
        """Kill the engine, as a crash does. Containers run until it is started again, which then ends them, as
        Docker does, or keeps them running with the option `--live-restore`."""
        process, self._process = self._process, None
        if not process:
            return
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=WAIT_SECONDS)
        self._forget_containerd()

    def _forget_containerd(self) -> None:
        """End containerd and wait for it: the next engine must not mistake a zombie for a running one."""
        file = self.folder / "exec" / "containerd" / "containerd.pid"
        if not file.exists():  # the system's containerd is used, which keeps running
            return
        status = Path(f"/proc/{file.read_text().strip()}/status")
        deadline = time.monotonic() + WAIT_SECONDS
        while status.exists() and "\nState:\tZ" not in status.read_text():
            assert time.monotonic() < deadline, status.read_text()
            time.sleep(0.02)
        file.unlink()

    def restart(self) -> None:
        """Start the engine again with its data."""
        self.stop()
        self.start()

    def remove(self) -> None:
        """Stop the engine and its containers, and delete everything except its log."""
        try:
            if self._process is None and (self.folder / "data").exists():
                self.start()  # a killed engine has left processes behind
            if self.is_running:
                self.clear()
        finally:
            self.stop()
            if self._network:
                self._network.kill()
                self._network.wait(timeout=WAIT_SECONDS)
                self._network = None
        # Engines mount it on itself, and some exits leave the mount, which prevents the removal.
        while not self._run("umount", "--lazy", str(self.folder / "data")).returncode:
            pass
        for name in ("data", "exec"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        remove_control_groups(self.folder)

    def clear(self) -> None:
        """Remove every container."""
        deadline = time.monotonic() + WAIT_SECONDS
        with self.api() as api:
            while found := api.containers(all=True, quiet=True):
                for each in found:
                    with _unless(GONE, BUSY):  # another process is removing it
                        api.remove_container(each["Id"], v=True, force=True)
                assert time.monotonic() < deadline, found

    def containers(self, *, running: bool = False, **filters: str) -> list[str]:
        """Return the ids of containers: of all, or of running ones, or filtered by `name="…"` and `label="…"`."""
        with self.api() as api:
            return [each["Id"] for each in api.containers(all=not running, quiet=True, filters=filters)]

    def remove_images(self, keep: str) -> None:
        """Remove every image except those whose tags end so, each after the images that were built from it."""
        before: list[str] = []
        with self.api() as api:
            while found := [
                str(each["Id"])
                for each in api.images()
                if not any(tag.endswith(keep) for tag in each["RepoTags"] or ())
            ]:
                if found == before:
                    return
                before = found
                for image in found:
                    with _unless(GONE, BUSY):
                        api.remove_image(image, force=True)

    def docker(self, *words: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """Run the Docker program."""
        done = self._run(self._client, *words)
        assert not check or done.returncode == 0, (words, done.stderr)
        return done

    def _run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(words, env=self.variables, capture_output=True, text=True, timeout=120, check=False)

    def add_image(self, name: str, archive: Path, *settings: str) -> str:
        """Import an image and return its id. The settings are Dockerfile lines such as `ENV A=b`."""
        changes = [word for setting in settings for word in ("--change", setting)]
        return self.docker("import", *changes, str(archive), name).stdout.strip()


def remove_control_groups(folder: Path) -> None:
    """Remove the control groups of the engine with this folder."""
    name = (folder / "name").read_text()
    # One for each controller, or one for all, depending on the system.
    for group in (CONTROL_GROUPS / name, *CONTROL_GROUPS.glob(f"*/{name}")):
        for each, _, _ in os.walk(group, topdown=False):
            with suppress(OSError):  # a process in it has not ended yet
                Path(each).rmdir()


@contextmanager
def _unless(*statuses: int) -> Iterator[None]:
    """Ignore these responses of an engine."""
    try:
        yield
    except APIError as error:
        if error.response is None or error.response.status_code not in statuses:
            raise


@contextmanager
def docker_engine(folder: Path) -> Iterator[str]:
    """Run an engine with a busybox image, and return its address for DOCKER_HOST."""
    engine = Engine(folder)
    try:
        engine.start()
        engine.add_image(IMAGE, busybox_archive())
        yield engine.address
    finally:
        engine.remove()
