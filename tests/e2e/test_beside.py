"""`exec`, `cp` and `forward` by the installed program, with a real OpenSSH server and a real Docker Engine."""

import contextlib
import json
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator

import pytest

from tests.e2e.jobs import ENDLESS, SECONDS
from tests.lab import LOCAL, LOCALDOCKER, REMOTE, REMOTEDOCKER, Lab, LabUser
from tests.sshd import eventually
from tests.variants import variants

LOOK = "import os, sys; print(os.environ['PLAIN'], os.environ['TOKEN'], os.path.exists('train.py')); sys.exit(7)"


@pytest.mark.parametrize("target", variants(REMOTEDOCKER, REMOTE, LOCALDOCKER, LOCAL))
def test_exec_runs_a_command_with_the_environment_of_the_job(lab: Lab, target: str) -> None:
    user = lab.user(explicit_fields=frozenset({"identity"}))
    user.script(ENDLESS)
    words = ("submit", "-c", target, "--detach", "--env", "PLAIN=a b", "--secret", "TOKEN", "train.py")
    done = user(*words, TOKEN="s3cr3t")
    assert done.returncode == 0, done.stderr
    try:
        done = user("exec", "last", "--", "python3", "-c", LOOK)
        assert (done.returncode, done.stdout) == (7, "a b s3cr3t True\n"), done.stderr
        assert user("exec", "last", "--", "no-such-program").returncode in {126, 127}
        assert "s3cr3t" not in user("exec", "last", "--json", "--", "true").stdout
        assert user("exec", "last", "--", "cat", stdin="typed\n").stdout == "typed\n"
    finally:
        assert user("cancel", "--grace", "0s").returncode == 0
    done = user("exec", "last", "--", "true")
    assert (done.returncode, "no running job" in done.stderr) == (1, True), done.stderr


def test_cp_copies_files_and_folders_in_both_directions(lab: Lab) -> None:
    user = lab.user(explicit_fields=frozenset({"identity"}))
    folder = user.workspace / "data set"
    folder.mkdir()
    (folder / "a:b.csv").write_text("1,2\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    done = user("cp", "data set", f"{REMOTE}:{lab.home}/copied")
    assert done.returncode == 0, done.stderr
    assert (lab.home / "copied" / "a:b.csv").read_text() == "1,2\n"
    done = user("cp", f"{REMOTE}:{lab.home}/copied", "back")
    assert done.returncode == 0, done.stderr
    assert (user.workspace / "back" / "run.sh").stat().st_mode & 0o777 == 0o755
    (user.workspace / "c:d").write_text("here")
    assert user("cp", "./c:d", f"{REMOTE}:{lab.home}/copied/").returncode == 0
    assert (lab.home / "copied" / "c:d").read_text() == "here"
    assert user("cp", f"{REMOTE}:absent", ".").returncode == 1
    for paths in (("a", "b"), (f"{REMOTE}:a", f"{REMOTE}:b")):
        user.fails("cp", *paths, code="usage", exit_code=2)


class Echo(socketserver.BaseRequestHandler):
    """Returns what it receives."""

    def handle(self) -> None:
        while data := self.request.recv(1 << 16):
            self.request.sendall(data)


@pytest.fixture
def echo_port() -> Iterator[int]:
    """A port of the lab's machine, which is this computer, where a server returns what it receives."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def echoed(port: int, data: bytes) -> bytes:
    """Send data to a local port, and return what comes back."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        threading.Thread(target=connection.sendall, args=(data,), daemon=True).start()
        found = bytearray()
        while len(found) < len(data) and (part := connection.recv(1 << 16)):
            found += part
    return bytes(found)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def reaches(port: int) -> bool:
    with contextlib.suppress(OSError):
        return echoed(port, b"again") == b"again"
    return False


@contextlib.contextmanager
def forwarding(user: LabUser, ports: str) -> Iterator["subprocess.Popen[str]"]:
    """Run `forward` until the end of the block, and then press Ctrl-C."""
    with user.start("forward", REMOTE, ports) as process:
        try:
            assert process.stdout
            local, _, port = ports.partition(":")
            assert process.stdout.readline() == f"127.0.0.1:{local} -> {REMOTE}:{port}\n"
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(SECONDS)


def test_forward_reaches_a_port_of_the_machine_also_after_a_lost_connection(lab: Lab, echo_port: int) -> None:
    user, here = lab.user(explicit_fields=frozenset({"identity"})), free_port()
    with forwarding(user, f"{here}:{echo_port}") as process:
        data = bytes(range(256)) * 8192
        assert echoed(here, data) == data
        lab.server.cut()
        assert eventually(lambda: reaches(here))
        taken = user.fails("forward", REMOTE, f"{here}:{echo_port}", code="usage", exit_code=2)
        assert "in use" in taken["note"]
    assert process.returncode == 0
    assert not reaches(here)


def test_forward_says_that_nothing_listens(lab: Lab) -> None:
    user = lab.user(explicit_fields=frozenset({"identity"}))
    here, there = free_port(), free_port()
    with forwarding(user, f"{here}:{there}") as process:
        assert not reaches(here)
        assert process.stderr
        said = [process.stderr.readline() for _ in range(2)]
    assert f"does not open a connection to its port {there}" in said[1]


SERVER = """
import http.server
server = http.server.HTTPServer(("0.0.0.0", 6006), http.server.SimpleHTTPRequestHandler)
server.handle_request()
"""
SPEC = {
    "apiVersion": "gpuinfra/v1",
    "name": "my-dsvm",
    "region": "eastus",
    "size": "Standard_NC4as_T4_v3",
    "job": {"command": "python3 train.py", "ports": {"files": 6006}},
}


RELAY = """
import os, socket, sys, threading
server = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
def send():
    while data := os.read(0, 65536):
        server.sendall(data)
threading.Thread(target=send, daemon=True).start()
while data := server.recv(65536):
    os.write(1, data)
"""


@contextlib.contextmanager
def relayed(lab: Lab, port: int) -> Iterator[None]:
    """Make a port of the engine's loopback interface reachable at that of the machine: the engine has a network of
    its own in the lab."""

    class Relay(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            words = ["nsenter", f"--net={lab.engine.network}", sys.executable, "-c", RELAY, str(port)]
            subprocess.run(words, stdin=self.request, stdout=self.request, timeout=SECONDS, check=False)

    with socketserver.ThreadingTCPServer(("127.0.0.1", port), Relay) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield
        server.shutdown()


def test_ports_of_a_followed_job_are_forwarded(lab: Lab) -> None:
    user = lab.user()
    user.script(SERVER)
    (user.workspace / "gpu.yaml").write_text(json.dumps(SPEC))
    with user.start("submit", "-c", REMOTEDOCKER) as process:
        try:
            assert process.stderr
            line = next(line for line in process.stderr if "files: " in line)
            address = line.partition("files: ")[2].strip()
            words = ["docker", "ps", "--format", "{{.Ports}}"]
            shown = subprocess.run(words, env=lab.engine.variables, capture_output=True, text=True, check=True).stdout
            host, _, port = shown.partition("->")[0].partition(":")
            assert host == "127.0.0.1"
            with relayed(lab, int(port)):
                assert eventually(lambda: fetched(f"{address}/train.py") == SERVER)
            assert process.wait(SECONDS) == 0
        finally:
            process.kill()
    assert user.does("runs", "show", "last")["run"]["ports"] == {"files": 6006}
    assert not fetched(f"{address}/train.py")


def fetched(url: str) -> str:
    """Return what a server answers, or nothing."""
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""
