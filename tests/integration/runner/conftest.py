"""A real OpenSSH server and a real Docker Engine for tests, and a user who can log in."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuinfra.runner.connection.local import LocalConnection
from gpuinfra.runner.connection.remote_client import RemoteClient
from gpuinfra.runner.connection.ssh import SshConnection
from tests.real import program
from tests.sshd import WAIT_SECONDS, PasswordServer, ReservedPort, SshServer, eventually, make_key
from tests.variants import variants

__all__ = [
    "WAIT_SECONDS",
    "PasswordServer",
    "ReservedPort",
    "SshServer",
    "eventually",
    "make_key",
]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set an empty home, so that the keys of the developer are not used."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    (tmp_path / "home" / ".ssh").mkdir(parents=True)
    return tmp_path / "home"


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    """A running server for tests that do not change it."""
    server = SshServer(tmp_path_factory.mktemp("shared") / "sshd")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SshServer]:
    """A server for one test, not started yet."""
    server = SshServer(tmp_path / "sshd")
    yield server
    server.stop()


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """A function that adds a key to a real SSH agent."""
    address = tmp_path / "agent"
    with subprocess.Popen(
        [program("ssh-agent", "openssh-client"), "-D", "-a", str(address)], stdout=subprocess.DEVNULL
    ) as process:
        try:
            assert eventually(address.exists)
            monkeypatch.setenv("SSH_AUTH_SOCK", str(address))

            def add(key: Path) -> None:
                subprocess.run(
                    [program("ssh-add", "openssh-client"), "-q", str(key)],
                    check=True,
                    timeout=WAIT_SECONDS,
                    stdin=subprocess.DEVNULL,
                )

            yield add
        finally:
            process.terminate()


@pytest.fixture
def remote_home(server: SshServer, home: Path) -> SshServer:
    """A running server whose sessions have the test's home."""
    server.settings["SetEnv"] = f"HOME={home}"
    server.start()
    return server


@pytest.fixture(params=variants("ssh", "local"))
def remote(request: pytest.FixtureRequest) -> Iterator[RemoteClient]:
    if request.param == "local":
        found = RemoteClient(LocalConnection())
    else:
        server: SshServer = request.getfixturevalue("remote_home")
        found = RemoteClient(SshConnection.open(server.target, WAIT_SECONDS))
    yield found
    found.close()
    found.connection.close()


@pytest.fixture
def local() -> Iterator[RemoteClient]:
    found = RemoteClient(LocalConnection())
    yield found
    found.close()
