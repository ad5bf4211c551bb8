"""The SSH server of a guest, and its sessions: a command, a shell or a file transfer."""

import asyncio
import ipaddress
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import cast

import asyncssh
from asyncssh.channel import SSHChannel
from asyncssh.connection import SSHConnection
from asyncssh.forward import SSHForwarder
from asyncssh.session import DataType
from asyncssh.stream import SSHServerStreamSession

from gpuinfra.sandbox.guest.disk import Disk, short_path, write_atomically
from gpuinfra.sandbox.guest.processes import MARKER, environment
from gpuinfra.sandbox.guest.spec import GuestSpec
from gpuinfra.sandbox.guest.ssh_process import Launch, Program


class GuestFiles(asyncssh.SFTPServer):
    """An SFTP server whose relative paths start at home and whose absolute ones start at the guest's root."""

    def __init__(self, channel: SSHChannel[bytes], disk: Disk) -> None:
        super().__init__(cast("asyncssh.SSHServerChannel[bytes]", channel), chroot=os.fsencode(disk.root))
        self._disk = disk

    def map_path(self, path: bytes) -> bytes:
        return os.fsencode(self._disk.place(os.fsdecode(path)))

    def reverse_map_path(self, path: bytes) -> bytes:
        """Return a host path as the client sees it; for a link that leads out of the guest, its text."""
        root = os.fsencode(self._disk.root)
        return (path[len(root) :] or b"/") if path == root or path.startswith(root + b"/") else path

    def exit(self) -> None:
        """Report success: OpenSSH's scp treats a session without exit code as a failure."""
        if self.channel.get_subsystem() == "sftp":
            self.channel.exit(0)


# The version that OpenSSH uses.
_SFTP_VERSION = 3
# Starts the program of a session.
ProgramFactory = Callable[[asyncssh.SSHServerChannel[bytes]], Program]


class GuestSession(SSHServerStreamSession[bytes]):
    """Connects a session to a program; SFTP and SCP are asyncssh's own, on the guest's files."""

    def __init__(self, disk: Disk, start_program: ProgramFactory) -> None:
        super().__init__(None, lambda channel: GuestFiles(channel, disk), _SFTP_VERSION, allow_scp=True)
        self._start_program = start_program
        self._channel: asyncssh.SSHServerChannel[bytes] | None = None
        self._program: Program | None = None

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:  # type: ignore[override]
        super().connection_made(chan)
        self._channel = chan

    def pty_requested(self, term_type: str, term_size: object, term_modes: object) -> bool:
        del term_type, term_size, term_modes
        return True

    def shell_requested(self) -> bool:
        return True

    def exec_requested(self, command: str) -> bool:
        del command
        return True

    def subsystem_requested(self, subsystem: str) -> bool:
        return subsystem == "sftp"

    def session_started(self) -> None:
        channel = self._channel
        if channel is None:
            return
        command = channel.get_command()
        if channel.get_subsystem() == "sftp" or (command is not None and command.startswith("scp ")):
            super().session_started()
        else:
            self._program = self._start_program(channel)

    def data_received(self, data: bytes, datatype: DataType) -> None:
        if self._program:
            self._program.feed(data)
        else:
            super().data_received(data, datatype)

    def eof_received(self) -> bool:
        """Pass the end of input to the program; the channel stays open for output."""
        if self._program:
            self._program.feed_end()
            return True
        return super().eof_received()

    def signal_received(self, signal: str) -> None:
        if self._program:
            self._program.deliver(signal)

    def break_received(self, msec: int) -> bool:
        del msec
        return False

    def terminal_size_changed(self, width: int, height: int, pixwidth: int, pixheight: int) -> None:
        if self._program:
            self._program.resize(width, height, pixwidth, pixheight)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._program:
            self._program.pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._program:
            self._program.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._program:
            self._program.hang_up()


logger = logging.getLogger(__name__)
_CLOSE_SECONDS = 5.0
_KEEP_ALIVE_SECONDS = 30
# The groups of the user that runs a command; unset if root runs it.
GROUPS = "GPUINFRA_GUEST_GROUPS"
_DOCKER_SOCKETS = frozenset({"/var/run/docker.sock", "/run/docker.sock"})
# Variables that a client may not set: they identify the guest's processes and their home.
_RESERVED = frozenset(
    {MARKER, GROUPS, "GPUINFRA_GUEST_ROOT", "GPUINFRA_IMDS_ENDPOINT", "HOME", "USER", "LOGNAME", "SHELL"}
)


class SshServer:
    """Listens for one guest, and tracks connections and programs so that it can end them."""

    def __init__(self, spec: GuestSpec, disk: Disk) -> None:
        self._spec = spec
        self._disk = disk
        self._acceptor: asyncssh.SSHAcceptor | None = None
        self.connections: set[asyncssh.SSHServerConnection] = set()
        self._closing: list[asyncio.Future[None]] = []
        self._logins: dict[asyncssh.SSHServerConnection, str] = {}
        self._groups: dict[SSHConnection, list[str]] = {}
        self._programs: set[Program] = set()

    async def start(self) -> None:
        """Listen; when this returns, clients get an answer."""
        self._acceptor = await asyncssh.listen(
            self._spec.address,
            self._spec.port,
            server_factory=lambda: _GuestLogin(self, self._spec, self._disk),
            server_host_keys=host_keys(self._disk),
            encoding=None,
            line_editor=False,
            agent_forwarding=False,
            keepalive_interval=_KEEP_ALIVE_SECONDS,
        )

    def disconnect(self) -> None:
        """Stop listening and drop every connection, as a power loss does."""
        if self._acceptor is not None:
            self._acceptor.close()
            self._closing.append(asyncio.ensure_future(self._acceptor.wait_closed()))
            self._acceptor = None
        for connection in self.connections:
            connection.abort()
            self._closing.append(asyncio.ensure_future(connection.wait_closed()))
        self.connections = set()

    async def close(self) -> None:
        """Disconnect, and wait until everything is closed."""
        self.disconnect()
        closing, self._closing = self._closing, []
        await _finish(closing)

    async def finish(self) -> None:
        """Wait for the programs of sessions after their processes were ended."""
        await _finish([program.finished for program in self._programs])

    def log_in(self, connection: asyncssh.SSHServerConnection) -> None:
        """Record a login for the guest's `who`."""
        peer = connection.get_extra_info("peername") or ("", 0)
        since = time.strftime("%Y-%m-%d %H:%M")
        self._logins[connection] = f"{self._spec.username:<8} ssh/{peer[1]:<8} {since} ({peer[0]})"
        self._groups[connection] = self._disk.groups
        self._note_logins()

    def groups(self, connection: SSHConnection) -> list[str]:
        """Return the groups that the user had at login: a later change applies to later logins."""
        return self._groups.get(connection, [])

    def log_out(self, connection: asyncssh.SSHServerConnection) -> None:
        """Remove a login from the guest's `who`."""
        self.connections.discard(connection)
        self._groups.pop(connection, None)
        if self._logins.pop(connection, None) is not None:
            self._note_logins()

    def _note_logins(self) -> None:
        # Connections may end while the disk is being removed.
        if self._disk.run.is_dir():
            write_atomically(self._disk.run / "logins", "".join(f"{line}\n" for line in self._logins.values()))

    def start_program(self, channel: asyncssh.SSHServerChannel[bytes]) -> Program:
        """Start the command or shell that a session requests."""
        terminal = channel.get_terminal_type()
        command = channel.get_command()
        launch = Launch(
            command=["bash"] if command is None else ["bash", "-c", command],
            environment={**self._session_environment(channel), **({"TERM": terminal} if terminal else {})},
            folder=self._disk.home,
            terminal_size=None if terminal is None else channel.get_terminal_size(),
        )
        program = Program(channel, launch)
        self._programs.add(program)
        program.finished.add_done_callback(lambda task: self._forget(program, task))
        return program

    def _forget(self, program: Program, task: asyncio.Task[None]) -> None:
        self._programs.discard(program)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a session of %s broke off", self._spec.name, exc_info=task.exception())

    def _session_environment(self, channel: asyncssh.SSHServerChannel[bytes]) -> dict[str, str]:
        peer = channel.get_extra_info("peername") or ("", 0)
        here = channel.get_extra_info("sockname") or ("", 0)
        asked = {name: value for name, value in channel.get_environment().items() if name not in _RESERVED}
        return {
            **environment(self._spec, self._disk),
            **asked,
            GROUPS: " ".join(self.groups(channel.get_connection())),
            "SSH_CLIENT": f"{peer[0]} {peer[1]} {here[1]}",
            "SSH_CONNECTION": f"{peer[0]} {peer[1]} {here[0]} {here[1]}",
        }


class _GuestLogin(asyncssh.SSHServer):
    """One connection: authentication and forwarding."""

    def __init__(self, server: SshServer, spec: GuestSpec, disk: Disk) -> None:
        self._server = server
        self._spec = spec
        self._disk = disk
        self._connection: asyncssh.SSHServerConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        self._server.connections.add(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if self._connection is not None:
            self._server.log_out(self._connection)

    def begin_auth(self, username: str) -> bool:
        # Read at each login: the guest may have changed the file.
        if username == self._spec.username and self._connection is not None:
            try:
                self._connection.set_authorized_keys(str(self._disk.authorized_keys))
            except (OSError, ValueError) as error:
                logger.info("no login to %s is possible: %s", self._spec.name, error)
        return True

    def auth_completed(self) -> None:
        if self._connection is not None:
            self._server.log_in(self._connection)

    def public_key_auth_supported(self) -> bool:
        return True

    def session_requested(self) -> GuestSession:
        return GuestSession(self._disk, self._server.start_program)

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        del dest_port, orig_host, orig_port
        if _is_loopback(dest_host):
            return True
        raise asyncssh.ChannelOpenError(
            asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED, "the simulated guest forwards to loopback alone"
        )

    async def unix_connection_requested(  # type: ignore[override]
        self, dest_path: str
    ) -> SSHForwarder:
        connection = self._connection
        if connection is None:
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, "no connection")
        if dest_path in _DOCKER_SOCKETS and "docker" not in self._server.groups(connection):
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, f"{dest_path}: Permission denied")
        try:
            with short_path(self._socket(dest_path)) as socket:
                return await connection.forward_unix_connection(socket)
        except OSError as error:
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, str(error)) from error

    def _socket(self, path: str) -> Path:
        """Return the guest's own socket; Docker's is the host's, where the guest's `docker` looks for it."""
        own = self._disk.place(path)
        if own.exists() or path not in _DOCKER_SOCKETS:
            return own
        docker = self._spec.environment.get("DOCKER_HOST", "")
        return Path(docker.removeprefix("unix://") if docker.startswith("unix://") else path)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def _finish(things: Iterable[Awaitable[None]]) -> None:
    if tasks := [asyncio.ensure_future(thing) for thing in things]:
        _, late = await asyncio.wait(tasks, timeout=_CLOSE_SECONDS)
        for task in late:
            task.cancel()


# In the order that OpenSSH offers them.
_KINDS = ("rsa", "ecdsa", "ed25519")


def host_keys(disk: Disk) -> list[asyncssh.SSHKey]:
    """Return the host keys on the disk; if there are none, generate and store one."""
    keys = []
    for kind in _KINDS:
        file = disk.root / "etc" / "ssh" / f"ssh_host_{kind}_key"
        try:
            keys.append(asyncssh.import_private_key(file.read_bytes()))
        except FileNotFoundError:
            continue
        except asyncssh.KeyImportError as error:
            logger.warning("%s is not a host key: %s", file, error)
    return keys or [_make(disk)]


def _make(disk: Disk) -> asyncssh.SSHKey:
    key = asyncssh.generate_private_key("ssh-ed25519", comment="root@simulated")
    file = disk.root / "etc" / "ssh" / "ssh_host_ed25519_key"
    write_atomically(file, key.export_private_key(), 0o600)
    write_atomically(file.with_suffix(".pub"), key.export_public_key())
    return key
