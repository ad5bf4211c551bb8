"""A real OpenSSH server of the test on loopback, and a user who may log in."""

import contextlib
import getpass
import os
import signal
import socket
import subprocess
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuinfra.models.target import Target
from tests.real import missing, program

WAIT_SECONDS = 20.0


def make_key(file: Path, kind: str = "ed25519", passphrase: str = "") -> Path:
    keygen = program("ssh-keygen", "openssh-client")
    size = ["-b", "2048"] if kind == "rsa" else []  # longer keys take seconds to create
    command = [keygen, "-q", "-t", kind, *size, "-N", passphrase, "-C", "test", "-f", str(file)]
    subprocess.run(command, check=True, timeout=WAIT_SECONDS)
    return file


class ReservedPort:
    """A free port on loopback. No other process gets it while this object exists.

    A server that shares its address, as sshd does, can still listen there.
    """

    def __init__(self) -> None:
        with socket.socket() as bound:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(("127.0.0.1", 0))
            self.number = int(bound.getsockname()[1])
            weakref.finalize(self, os.close, bound.detach())

    def is_listening(self) -> bool:
        """Return whether a server listens there, without a connection that it would notice."""
        local, listening = f"0100007F:{self.number:04X}", "0A"
        lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
        return any(fields[1] == local and fields[3] == listening for fields in map(str.split, lines))


def eventually(holds: Callable[[], bool], seconds: float = WAIT_SECONDS) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


class SshServer:
    """sshd with its own configuration. Its connection processes end with it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self._port = ReservedPort()
        self.port = self._port.number
        self.host_key = make_key(folder / "host_key")
        self.user_key = make_key(folder / "user_key")
        self.authorized_keys = folder / "authorized_keys"
        self.authorize(self.user_key)
        self.settings: dict[str, str] = {}
        self.prefix: list[str] = []
        """The command that starts the server, where it is not started directly."""
        self._process: subprocess.Popen[bytes] | None = None

    def authorize(self, *keys: Path) -> None:
        self.authorized_keys.write_text("".join(Path(f"{key}.pub").read_text() for key in keys))

    def start(self) -> None:
        if os.geteuid() == 0:
            # The privilege separation folder of root's sshd; Debian's unit creates it. Only root may write to it.
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
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
        assert eventually(lambda: self._port.is_listening() or self._has_ended()), "sshd does not listen"
        assert not self._has_ended(), (self.folder / "log").read_text()

    def _has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def serving(self) -> list[int]:
        """Return the processes that serve connections: the last sshd of each chain."""
        return [line[-1] for line in self._lines()]

    def _lines(self) -> list[list[int]]:
        """Return the processes of each connection, from the outer to the inner one.

        The login of an unprivileged user is served by a child of the monitoring process.
        """
        assert self._process is not None
        lines = []
        for child in _children(self._process.pid):
            line = [child]
            while inner := [each for each in _children(line[-1]) if _name(each).startswith("sshd")]:
                line += inner
            lines.append(line)
        return lines

    def cut(self) -> None:
        """End every connection, and nothing else."""
        for line in self._lines():
            for pid in line:
                with contextlib.suppress(ProcessLookupError):  # it has just ended
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


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):  # it has just ended
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text()
    return ""


class PasswordServer(SshServer):
    """A server that knows a user with a password. Only this server sees the changed user database."""

    USER, PASSWORD = "alice", 'naïve $(id) "x'
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
        # In its own mount namespace: nothing on this machine changes, and it ends with the process.
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
