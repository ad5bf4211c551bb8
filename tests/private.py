"""A mount namespace for programs that keep files in system folders; it needs root."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.real import missing, program

SPOOL = "/var/spool/cron/crontabs"
RUNTIME = "/run/user/manager"
# `systemd --user` runs only where a folder shows that systemd runs.
SET_UP = f"""set -e
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/systemd/system {RUNTIME}
if [ -d {SPOOL} ]; then mount -t tmpfs -o mode=1730 tmpfs {SPOOL}; fi
echo ready
exec sleep 300
"""


class Private:
    """Changes in `/run` and in cron's spool folder are not visible outside."""

    def __init__(self, pid: int, environment: dict[str, str]) -> None:
        self._enter = [program("nsenter", "util-linux"), f"--target={pid}", "--mount"]
        self.environment = {**environment, "XDG_RUNTIME_DIR": RUNTIME}

    def __call__(self, *words: str, folder: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a program in the namespace."""
        return subprocess.run(
            [*self._enter, f"--wdns={folder}", *words],
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    @contextmanager
    def systemd(self, folder: Path) -> Iterator[None]:
        """Run the real systemd user manager."""
        systemd = program("systemd", "systemd")
        said = folder / "systemd.log"
        with said.open("w") as log:
            manager = subprocess.Popen(
                [*self._enter, systemd, "--user", "--log-target=console"],
                env=self.environment,
                stdout=log,
                stderr=log,
            )
        try:
            self._await_systemd(folder, manager, said)
            yield
        finally:
            manager.terminate()
            try:
                manager.wait(20)
            except subprocess.TimeoutExpired:
                manager.kill()
                manager.wait(20)

    def _await_systemd(self, folder: Path, manager: subprocess.Popen[bytes], said: Path) -> None:
        deadline = time.monotonic() + 20
        while self("systemctl", "--user", "show-environment", folder=folder).returncode != 0:
            if manager.poll() is not None or time.monotonic() > deadline:
                missing(f"systemd's manager of a user does not run here: {said.read_text()[-500:]}")
            time.sleep(0.05)


@contextmanager
def private(environment: dict[str, str]) -> Iterator[Private]:
    """Create a namespace for the block."""
    if os.getuid() != 0:
        missing("not root, which alone can mount something over /run and the spool of cron")
    unshare = program("unshare", "util-linux")
    holder = subprocess.Popen(
        [unshare, "--mount", "sh", "-c", SET_UP], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stderr is not None
    try:
        if holder.stdout.readline() != "ready\n":
            missing(f"mount namespaces are not available here: {holder.stderr.read()}")
        yield Private(holder.pid, environment)
    finally:
        holder.kill()
        holder.wait(20)
        holder.stdout.close()
        holder.stderr.close()
