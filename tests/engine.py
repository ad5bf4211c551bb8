"""A real Docker Engine of the test's own, from Debian's packages, with an image made from busybox."""

import fcntl
import os
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.real import PATH, missing, program

IMAGE = "busybox:test"


@contextmanager
def docker_engine(folder: Path) -> Iterator[str]:
    """Run an engine; its address for DOCKER_HOST. It needs root, and is stopped by its own process id."""
    engine, client = program("dockerd", "docker.io"), program("docker", "docker.io")
    if os.geteuid() != 0:
        missing("a Docker Engine of one's own needs root")
    with _only_one():
        yield from _run(engine, client, folder)


@contextmanager
def _only_one() -> Iterator[None]:
    """Engines share the host's network bridge, and tests run side by side: one at a time."""
    with Path(tempfile.gettempdir(), "gpuinfra-tests-engine.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(engine: str, client: str, folder: Path) -> Iterator[str]:
    address = f"unix://{folder}/docker.sock"
    arguments = ["-H", address, "--data-root", str(folder / "data"), "--exec-root", str(folder / "exec")]
    command = [engine, *arguments, "--pidfile", str(folder / "docker.pid")]
    environment = {**os.environ, "PATH": PATH, "DOCKER_HOST": address}
    with (folder / "dockerd.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        _wait(process, client, environment, folder / "dockerd.log")
        _import_busybox(client, environment, folder)
        yield address
    finally:
        process.terminate()
        process.wait(timeout=30)


def _wait(process: "subprocess.Popen[bytes]", client: str, environment: dict[str, str], log: Path) -> None:
    deadline = time.monotonic() + 60
    while subprocess.run([client, "info"], env=environment, capture_output=True, timeout=30, check=False).returncode:
        assert process.poll() is None, log.read_text()[-2000:]
        assert time.monotonic() < deadline, log.read_text()[-2000:]
        time.sleep(0.2)


def _import_busybox(client: str, environment: dict[str, str], folder: Path) -> None:
    """There is no registry to pull from: an image is a file system, and busybox is one in a single file."""
    archive = folder / "busybox.tar"
    with tarfile.open(archive, "w") as files:
        files.add(program("busybox", "busybox-static"), "bin/busybox")
        for name in ("sh", "echo", "cat", "ls", "sleep", "true"):
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            files.addfile(link)
    subprocess.run(
        [client, "import", str(archive), IMAGE], env=environment, check=True, capture_output=True, timeout=60
    )
