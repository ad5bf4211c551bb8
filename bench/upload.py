"""Compare the time to upload a project with `rsync -a` over OpenSSH, both through the same real sshd."""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from bench.ratio import Ratio
from gpuinfra.runner.connection.remote_client import RemoteClient
from gpuinfra.runner.connection.ssh import SshConnection
from gpuinfra.runner.project_tree import read_tree
from gpuinfra.runner.upload import upload
from tests.progress import SilentProgress
from tests.real import program
from tests.sshd import SshServer

ROUNDS = 3
BIG = 1 << 30
MANY = 10_000
RSYNC = "rsync -a -e ssh"


def measure() -> Sequence[Ratio]:
    """Return ratios of median times in alternating rounds, each with its own connection and login."""
    with tempfile.TemporaryDirectory(prefix="gpuinfra-bench-") as name:
        folder = Path(name)
        server = SshServer(folder / "sshd")
        (folder / "home").mkdir()
        server.settings["SetEnv"] = f"HOME={folder / 'home'}"
        server.start()
        try:
            bench = Bench(folder, server)
            return [bench.big(), bench.many(), bench.unchanged()]
        finally:
            server.stop()


class Bench:
    """One machine, and two ways to upload to it."""

    def __init__(self, folder: Path, server: SshServer) -> None:
        self._folder, self._server = folder, server
        self._rsync = program("rsync", "rsync")
        known = folder / "known_hosts"
        known.write_text(f"[127.0.0.1]:{server.port} {Path(f'{server.host_key}.pub').read_text()}")
        options = ["-F", "none", "-o", f"UserKnownHostsFile={known}", "-o", "IdentitiesOnly=yes"]
        there = ["-p", str(server.port), "-i", str(server.user_key)]
        self._ssh = shlex.join([program("ssh", "openssh-client"), *options, *there])

    def big(self) -> Ratio:
        project = self._folder / "big"
        project.mkdir()
        with (project / "data").open("wb") as file:
            for _ in range(BIG >> 20):
                file.write(os.urandom(1 << 20))
        value = self._compared(project, from_scratch=True)
        shutil.rmtree(project)
        # A rate of 0.8 is a time of 1.25.
        return Ratio("upload of 1 GiB", RSYNC, value, 1.25)

    def many(self) -> Ratio:
        project = self._folder / "many"
        for number in range(MANY):
            file = project / f"package{number // 100:03}" / f"module{number:05}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"# {number}\n" + "def function(argument):\n    return argument\n" * 32)
        return Ratio("upload of 10,000 small files", RSYNC, self._compared(project, from_scratch=True), 1.0)

    def unchanged(self) -> Ratio:
        project = self._folder / "many"
        time.sleep(2.5)  # file times younger than this are not trusted
        value = self._compared(project, from_scratch=False)
        return Ratio("upload of 10,000 unchanged files", RSYNC, value, 1.0)

    def _compared(self, project: Path, *, from_scratch: bool) -> float:
        ways: tuple[Callable[[Path], None], ...] = (self._by_us, self._by_rsync)
        times: tuple[list[float], ...] = ([], [])
        if not from_scratch:
            for way in ways:
                way(project)
        for number in range(ROUNDS):
            # Alternate which one is first: disk writes left over from one slow down the next.
            for which in (0, 1) if number % 2 else (1, 0):
                if from_scratch:
                    shutil.rmtree(self._folder / "home")
                    shutil.rmtree(self._folder / "state", ignore_errors=True)
                    (self._folder / "home").mkdir()
                os.sync()
                began = time.perf_counter()
                ways[which](project)
                times[which].append(time.perf_counter() - began)
        new = "all" if from_scratch else "nothing"
        line = f"{project.name}, {new} new: {_shown(times[0])} s · rsync {_shown(times[1])} s"
        print(line, file=sys.stderr, flush=True)
        return median(times[0]) / median(times[1])

    def _by_us(self, project: Path) -> None:
        connection = SshConnection.open(self._server.target, 20)
        remote = RemoteClient(connection)
        try:
            tree = read_tree(project, self._folder / "state", SilentProgress())
            upload(remote, tree, project=project.name, run="run", progress=SilentProgress())
        finally:
            remote.close()
            connection.close()

    def _by_rsync(self, project: Path) -> None:
        there = f"127.0.0.1:{self._folder / 'home' / 'rsync'}/{project.name}/"
        (self._folder / "home" / "rsync").mkdir(exist_ok=True)
        subprocess.run([self._rsync, "-a", "-e", self._ssh, f"{project}/", there], check=True, timeout=600)


def _shown(times: Sequence[float]) -> str:
    return " ".join(f"{seconds:.2f}" for seconds in times)
