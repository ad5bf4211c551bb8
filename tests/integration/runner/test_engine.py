"""Connections to an engine: over a real OpenSSH server, through a real socket, and without an engine."""

import contextlib
import json
import socket
import stat
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from gpuinfra.runner.connection.local import LocalConnection
from gpuinfra.runner.connection.ssh import SshConnection
from gpuinfra.runner.docker.client import Engine
from gpuinfra.runner.errors import Broken, ConnectError, JobError, TimedOut, Unreachable
from tests.integration.runner.conftest import SshServer, eventually
from tests.lab import Lab
from tests.real import program


@contextlib.contextmanager
def connected(server: SshServer, timeout: float = 20, *, expected: bool = False) -> Iterator[Engine]:
    connection = SshConnection.open(server.target, 20)
    with (
        contextlib.closing(connection),
        contextlib.closing(Engine(connection, timeout, expected=expected)) as made,
    ):
        yield made


@contextlib.contextmanager
def local(timeout: float = 20) -> Iterator[Engine]:
    with contextlib.closing(Engine(LocalConnection(), timeout)) as engine:
        yield engine


def write_program(folder: Path, script: str) -> Path:
    """Write a program called `docker`, and return its folder."""
    folder.mkdir()
    file = folder / "docker"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return folder


def streams(address: str) -> int:
    """Return how many `docker system dial-stdio` run for an engine."""
    count = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended
            if b"dial-stdio" in (folder / "cmdline").read_bytes():
                count += address.encode() in (folder / "environ").read_bytes()
    return count


def test_requests_share_streams_that_end_with_the_engine(lab: Lab) -> None:
    with lab.connected() as connection:
        engine = Engine(connection, 20)
        engine.prepare()
        assert eventually(lambda: streams(lab.engine.address) == 2), "sshd confirms a command before it executes it"
        for _ in range(5):
            assert engine.api.info()["Name"]
        assert streams(lab.engine.address) == 2
        assert engine.api.version()["ApiVersion"] == engine.api.api_version
        engine.close()
        engine.close()
        assert eventually(lambda: streams(lab.engine.address) == 0)
        # The connection still works.
        assert connection.run(["true"], timeout=20).exit_code == 0


def test_engine_works_without_preparation(lab: Lab) -> None:
    with connected(lab.server) as engine:
        assert engine.api.info()["Name"]
        assert streams(lab.engine.address) == 1


def test_lost_connection_is_reported(lab: Lab) -> None:
    with connected(lab.server) as engine:
        engine.prepare()
        lab.server.cut()
        with pytest.raises(ConnectError), engine.translated("asking"):
            engine.api.info()


def test_text_of_the_shell_is_ignored(lab: Lab, server: SshServer, tmp_path: Path) -> None:
    real = program("docker", "docker.io")
    folder = write_program(tmp_path / "bin", f'echo "Welcome to lab HTTP"; exec {real} "$@"')
    server.settings["SetEnv"] = f"PATH={folder}:/usr/bin:/bin DOCKER_HOST={lab.engine.address}"
    server.start()
    with connected(server) as engine:
        assert engine.api.info()["Name"]


@pytest.mark.parametrize(
    ("script", "words", "help_part"),
    [
        (None, "no `docker` program", "install"),
        ("echo 'dial unix: connect: permission denied' >&2; exit 1", "permission denied", "usermod"),
        ("echo surprise; exit 3", "surprise", "docker version"),
    ],
)
def test_missing_engine_is_reported_with_a_fix(
    server: SshServer, tmp_path: Path, script: str | None, words: str, help_part: str
) -> None:
    path = f"{write_program(tmp_path / 'bin', script)}:/usr/bin:/bin" if script else str(tmp_path)
    server.settings["SetEnv"] = f"PATH={path}"
    server.start()
    with connected(server) as engine, pytest.raises(JobError) as caught:
        engine.prepare()
    assert caught.value.code == "no-engine"
    assert words in str(caught.value)
    assert help_part in str(caught.value.help)


def test_stopped_engine_is_missing_or_unreachable(server: SshServer, tmp_path: Path) -> None:
    server.settings["SetEnv"] = f"DOCKER_HOST=unix://{tmp_path}/missing.sock"
    server.start()
    with connected(server) as engine, pytest.raises(JobError, match="no Docker Engine") as caught:
        _ = engine.api
    assert "systemctl" in str(caught.value.help)
    with connected(server, expected=True) as engine, pytest.raises(Unreachable):
        _ = engine.api


@pytest.mark.parametrize(
    "doing", ["Copy (stdin to stream)", "CloseWrite (stdin to stream)", "CloseRead (stream to stdout)"]
)
def test_engine_that_stops_before_it_answers_is_a_lost_connection(
    server: SshServer, tmp_path: Path, doing: str
) -> None:
    """`docker` has reached the engine, which then closed the connection: it is not missing."""
    said = f"error while {doing}: close unix @->/run/docker.sock: use of closed network connection"
    folder = write_program(tmp_path / "bin", f"read -r request; echo '{said}' >&2; exit 1")
    server.settings["SetEnv"] = f"PATH={folder}:/usr/bin:/bin"
    server.start()
    with connected(server, expected=True) as engine, pytest.raises(Broken):
        _ = engine.api


def test_hanging_engine_is_a_timeout(server: SshServer, tmp_path: Path) -> None:
    server.settings["SetEnv"] = f"PATH={write_program(tmp_path / 'bin', 'exec /bin/sleep 60')}"
    server.start()
    with connected(server, timeout=1) as engine, pytest.raises(TimedOut):
        engine.prepare()


def test_docker_host_selects_the_local_engine(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", lab.engine.address)
    with local() as engine:
        engine.prepare()
        assert engine.api.info()["Name"]
        assert engine.where == "this computer"


def test_docker_context_selects_the_local_engine(lab: Lab, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    meta = home / ".docker" / "contexts" / "meta" / sha256(b"lab").hexdigest()
    meta.mkdir(parents=True)
    endpoint = {"Host": lab.engine.address, "SkipTLSVerify": False}
    (meta / "meta.json").write_text(json.dumps({"Name": "lab", "Metadata": {}, "Endpoints": {"docker": endpoint}}))
    settings = home / ".docker" / "config.json"
    settings.write_text(json.dumps({"currentContext": "lab"}))
    with local() as engine:
        assert engine.api.info()["Name"]
    settings.write_text("{}")
    monkeypatch.setenv("DOCKER_CONTEXT", "lab")
    with local() as engine:
        assert engine.api.info()["Name"]
    monkeypatch.setenv("DOCKER_CONTEXT", "nowhere")
    with local() as engine, pytest.raises(JobError, match="nowhere") as caught:
        _ = engine.api
    assert caught.value.code == "no-engine"


def test_docker_host_with_ssh_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "ssh://user@203.0.113.7")
    with local() as engine, pytest.raises(JobError, match=r"ssh://user@203\.0\.113\.7") as caught:
        engine.prepare()
    assert "gpuinfra attach" in str(caught.value.help)


def test_missing_local_engine_is_reported_with_a_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = tmp_path / "docker.sock"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{address}")
    with local() as engine, pytest.raises(JobError) as caught:
        _ = engine.api
    assert caught.value.code == "no-engine"
    assert "systemctl" in str(caught.value.help)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address))
        with local() as engine, pytest.raises(JobError, match="no Docker Engine"):
            _ = engine.api
        listener.listen()
        with local(timeout=0.3) as engine, pytest.raises(TimedOut):
            _ = engine.api


@pytest.mark.parametrize("content", ["[]", '{"auths": 7}', '{"auths": {"x": {"auth": "!"}}}', '{"proxies": 7}'])
def test_invalid_docker_settings_are_reported(
    lab: Lab, home: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    monkeypatch.setenv("DOCKER_HOST", lab.engine.address)
    (home / ".docker").mkdir()
    (home / ".docker" / "config.json").write_text(content)
    with local() as engine, pytest.raises(JobError, match="settings of Docker") as caught:
        engine.prepare()
    assert "config.json" in str(caught.value.help)


def test_proxies_and_netrc_are_not_used_for_the_engine(lab: Lab, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    for name in ("HTTP_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    (home / ".netrc").write_text("default login user password hunter2\n")
    (home / ".netrc").chmod(0o600)
    with connected(lab.server) as engine:
        assert engine.api.info()["Name"]
