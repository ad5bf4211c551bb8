"""A real OpenSSH server of the test's own, on loopback, and a user who may log in to it."""

import contextlib
import getpass
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuinfra.models.target import Target
from tests.real import missing, program

WAIT_SECONDS = 20.0


def make_key(file: Path, kind: str = "ed25519", passphrase: str = "") -> Path:
    keygen = program("ssh-keygen", "openssh-client")
    size = ["-b", "2048"] if kind == "rsa" else []  # longer ones take seconds to make
    command = [keygen, "-q", "-t", kind, *size, "-N", passphrase, "-C", "test", "-f", str(file)]
    subprocess.run(command, check=True, timeout=WAIT_SECONDS)
    return file


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def eventually(holds: Callable[[], bool], seconds: float = WAIT_SECONDS) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


class SshServer:
    """sshd with a configuration of its own. What it starts for connections dies with it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.port = free_port()
        self.host_key = make_key(folder / "host_key")
        self.user_key = make_key(folder / "user_key")
        self.authorized_keys = folder / "authorized_keys"
        self.authorize(self.user_key)
        self.settings: dict[str, str] = {}
        self.prefix: list[str] = []
        """What the server is started by, where it is not started by itself."""
        self._process: subprocess.Popen[bytes] | None = None

    def authorize(self, *keys: Path) -> None:
        self.authorized_keys.write_text("".join(Path(f"{key}.pub").read_text() for key in keys))

    def start(self) -> None:
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(
                mode=0o755, exist_ok=True
            )  # where root's sshd locks itself in; Debian's unit makes it
        settings = {
            "ListenAddress": "127.0.0.1",
            "Port": str(self.port),
            "HostKey": str(self.host_key),
            "AuthorizedKeysFile": str(self.authorized_keys),
            "PidFile": "none",
            "UsePAM": "no",
            "StrictModes": "no",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            **self.settings,
        }
        config = self.folder / "sshd_config"
        config.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
        command = [program("sshd", "openssh-server"), "-D", "-E", str(self.folder / "log"), "-f", str(config)]
        self._process = subprocess.Popen([*self.prefix, *command], start_new_session=True)
        assert eventually(self.is_listening), (self.folder / "log").read_text()

    def is_listening(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def serving(self) -> list[int]:
        """Processes that serve connections: of the server's own children, one each."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        return [int(pid) for pid in children.read_text().split()]

    def cut(self) -> None:
        """End every connection, and nothing else."""
        for pid in self.serving():
            with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        if self._process is None:
            return
        self.cut()
        self._process.kill()
        self._process.wait(WAIT_SECONDS)
        self._process = None

    @property
    def target(self) -> Target:
        return Target(
            name="my_dsvm",
            machine="my-dsvm",
            type="remotedocker",
            address="127.0.0.1",
            port=self.port,
            username=getpass.getuser(),
            host_key=Path(f"{self.host_key}.pub").read_text().strip(),
            identity=str(self.user_key),
        )

    def target_with(self, **changes: Any) -> Target:
        return replace(self.target, **changes)


class PasswordServer(SshServer):
    """One that knows a user with a password. Only to it do the system's files of users look as if there was one."""

    USER, PASSWORD = "somebody", 'naïve $(id) "x'
    HASH = "$6$gpuinfratest$Qj7CT3jtYobDBBL/nsF58M.wci7E26jLIgh0rKSu8Q8Vt14E3NBVJlRH.QKeNgEXYUsQ6p2u4yT7RvHuQ4re70"
    MOUNT = 'for name in passwd shadow pam.d/sshd; do mount --bind "$0/$name" "/etc/$name" || exit; done; exec "$@"'

    def __init__(self, folder: Path, *, interactive: bool = False) -> None:
        super().__init__(folder)
        if os.geteuid() != 0:
            missing("a server with users of its own needs root")
        etc = folder / "etc"
        (etc / "pam.d").mkdir(parents=True)
        user = f"{self.USER}:x:65533:65534::/:/bin/sh\n"
        (etc / "passwd").write_text(Path("/etc/passwd").read_text() + user)
        (etc / "shadow").write_text(f"root:*:::::::\n{self.USER}:{self.HASH}:19000:0:99999:7:::\n")
        (etc / "pam.d" / "sshd").write_text(
            "auth required pam_unix.so\naccount required pam_permit.so\nsession required pam_permit.so\n"
        )
        program("unshare", "util-linux")
        # A mount namespace of its own: nothing of this machine changes, and it ends with the process.
        self.prefix = ["unshare", "--mount", "--propagation", "private", "sh", "-c", self.MOUNT, str(etc)]
        self.settings |= {
            "PubkeyAuthentication": "no",
            "UsePAM": "yes" if interactive else "no",
            "PasswordAuthentication": "no" if interactive else "yes",
            "KbdInteractiveAuthentication": "yes" if interactive else "no",
            "LogLevel": "VERBOSE",
        }

    @property
    def target(self) -> Target:
        return replace(super().target, username=self.USER, identity=None, password="ask")
