"""A guest answers real SSH clients, and its processes live and die with it."""

import contextlib
import hashlib
import os
import shlex
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest

from gpuinfra.sandbox.guest.spec import GuestNotRunningError, GuestSpec
from tests.integration.sandbox.guest_host import (
    WAIT_SECONDS,
    Client,
    GuestHost,
    Session,
    alive,
    eventually,
    free_port,
    make_key,
    make_spec,
    server_process,
)
from tests.real import program

DAEMON = """
import os, sys, time
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
with open(sys.argv[1] + ".new", "w") as file:
    file.write(str(os.getpid()))
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(600)
"""


@pytest.fixture(scope="module")
def shared(host: GuestHost, client: Client, tmp_path_factory: pytest.TempPathFactory) -> GuestSpec:
    """A guest for tests that do not change it."""
    spec = make_spec(tmp_path_factory.mktemp("shared") / "root", client.public_key, vm_id="shared")
    host.call(host.guests.start(spec))
    return spec


@pytest.fixture
def spec(host: GuestHost, client: Client, tmp_path: Path) -> Iterator[GuestSpec]:
    """A guest of the test's own, running."""
    spec = make_spec(tmp_path / "root", client.public_key)
    host.call(host.guests.start(spec))
    yield spec
    host.call(host.guests.delete(spec.vm_id, spec.root))


def home(spec: GuestSpec) -> Path:
    return spec.root / "home" / spec.username


# Commands.


def test_streams_are_separate_and_exit_code_is_returned(shared: GuestSpec, client: Client) -> None:
    done = client.run(shared, "echo to-out; echo to-err >&2; exit 7")
    assert (done.stdout, done.stderr, done.returncode) == (b"to-out\n", b"to-err\n", 7)


def test_command_killed_by_a_signal_reports_the_signal(shared: GuestSpec, client: Client) -> None:
    with client.connect(shared) as connection:
        transport = connection.get_transport()
        assert transport is not None
        channel = transport.open_session()
        channel.settimeout(WAIT_SECONDS)
        channel.exec_command("kill -TERM $$")
        assert channel.recv(1) == b""
        # paramiko knows exit-status alone: an exit-signal leaves it at -1.
        assert channel.recv_exit_status() == -1
    assert client.run(shared, "kill -40 $$").returncode == 255
    verbose = client.run(shared, "-v", "-oLogLevel=DEBUG", "kill -TERM $$")
    assert verbose.returncode == 255
    assert b"rtype exit-signal" in verbose.stderr


def test_environment_has_no_variables_of_the_server(
    shared: GuestSpec, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_CLIENT_SECRET", "of-the-server")
    seen = dict(line.partition("=")[::2] for line in client.output(shared, "env").splitlines())
    assert seen["HOME"] == seen["PWD"] == str(home(shared))
    assert seen["USER"] == seen["LOGNAME"] == "azureuser"
    assert seen["PATH"].startswith(f"{shared.root}/bin:")
    assert seen["GPUINFRA_IMDS_ENDPOINT"] == shared.metadata_url
    assert seen["GPUINFRA_GUEST_ROOT"] == str(shared.root)
    assert "AZURE_CLIENT_SECRET" not in seen
    assert not {name for name in seen if name.startswith(("PYTEST", "VIRTUAL_ENV", "PYTHON"))}


def test_client_can_set_variables_except_reserved_ones(shared: GuestSpec, client: Client) -> None:
    done = client.run(shared, "-oSetEnv=GREETING=hello HOME=/nowhere", 'echo "$GREETING $HOME"')
    assert done.stdout.decode().split() == ["hello", str(home(shared))]


def test_command_gets_standard_input_and_its_end(shared: GuestSpec, client: Client) -> None:
    assert client.run(shared, "wc -l", given=b"a\nb\nc\n").stdout.strip() == b"3"
    # A pipe and not a socket: what opens /dev/stdin needs that.
    assert client.run(shared, "bash /dev/stdin", given=b"echo it works").stdout == b"it works\n"


def test_command_that_ignores_its_input_ends(shared: GuestSpec, client: Client) -> None:
    assert client.run(shared, "head -c 3", given=b"x" * 5_000_000).stdout == b"xxx"


def test_command_that_reads_late_gets_all_input(shared: GuestSpec, client: Client) -> None:
    # By then all of it and its end have arrived, and wait in the server.
    assert client.run(shared, "sleep 0.5; wc -c", given=b"x" * 1_500_000).stdout.strip() == b"1500000"


def test_fifty_megabytes_are_transferred_both_ways_unchanged(shared: GuestSpec, client: Client) -> None:
    data = os.urandom(50_000_000)
    done = client.run(shared, "cat", given=data)
    assert done.returncode == 0
    assert hashlib.sha256(done.stdout).digest() == hashlib.sha256(data).digest()


def test_slow_reader_slows_the_command_and_loses_nothing(shared: GuestSpec, client: Client) -> None:
    with client.connect(shared) as connection:
        _, output, _ = connection.exec_command("head -c 20000000 /dev/zero; echo end", timeout=WAIT_SECONDS)
        window = output.channel.in_window_size
        assert eventually(lambda: len(output.channel.in_buffer) >= window), "the window is not used up"
        content = output.read()
    assert (len(content), content[-4:]) == (20_000_004, b"end\n")


def test_shell_reads_commands(shared: GuestSpec, client: Client) -> None:
    assert client.run(shared, given=b"cd /\npwd\nexit 5\n").stdout == b"/\n"
    assert client.run(shared, given=b"exit 5\n").returncode == 5


# A terminal.


def open_terminal(connection: paramiko.SSHClient, command: str) -> paramiko.Channel:
    transport = connection.get_transport()
    assert transport is not None
    channel = transport.open_session()
    channel.settimeout(WAIT_SECONDS)
    channel.get_pty("xterm", width=111, height=33)
    channel.exec_command(command)
    return channel


def read_until(channel: paramiko.Channel, wanted: bytes) -> bytes:
    content = b""
    while wanted not in content:
        received = channel.recv(4096)
        assert received, content
        content += received
    return content


def test_terminal_is_a_real_tty(shared: GuestSpec, client: Client) -> None:
    with client.connect(shared) as connection:
        channel = open_terminal(
            connection, "tty; echo mine > /dev/tty; stty size; echo $TERM; read line; stty size; exit 4"
        )
        first = read_until(channel, b"xterm\r\n")
        assert first.startswith(b"/dev/pts/")
        assert b"mine\r\n33 111\r\n" in first
        channel.resize_pty(width=90, height=20)
        channel.sendall(b"\n")
        read_until(channel, b"20 90\r\n")
        assert channel.recv_exit_status() == 4


def test_control_c_interrupts_the_foreground_process(shared: GuestSpec, client: Client) -> None:
    with client.connect(shared) as connection:
        channel = open_terminal(connection, "trap 'echo interrupted; exit 9' INT; echo ready; sleep 60 & wait")
        read_until(channel, b"ready")
        channel.sendall(b"\x03")
        read_until(channel, b"interrupted")
        assert channel.recv_exit_status() == 9


def test_terminal_shell_has_job_control_and_the_guests_hostname(shared: GuestSpec, client: Client) -> None:
    with client.connect(shared) as connection:
        channel = connection.invoke_shell()
        channel.settimeout(WAIT_SECONDS)
        read_until(channel, b"azureuser@my-dsvm:~")
        channel.sendall(b"sed -u s/marco/polo/\n")
        # Who answers has the terminal's foreground.
        channel.sendall(b"marco\n")
        read_until(channel, b"polo\r\n")
        channel.sendall(b"\x1a")
        read_until(channel, b"Stopped")
        channel.sendall(b"fg\n")
        channel.sendall(b"marco\n")
        read_until(channel, b"polo\r\n")
        channel.sendall(b"\x04")
        read_until(channel, b"@my-dsvm:~")
        channel.sendall(b"exit 6\n")
        assert channel.recv_exit_status() == 6


# Signals and hang-up.


def test_client_signal_reaches_the_process_group(shared: GuestSpec, client: Client) -> None:
    with client.connect(shared) as connection:
        transport = connection.get_transport()
        assert transport is not None
        channel = transport.open_session()
        channel.settimeout(WAIT_SECONDS)
        channel.exec_command("trap 'echo got it; exit 3' USR1; echo ready; while :; do sleep 0.05; done")
        assert channel.recv(100) == b"ready\n"
        message = paramiko.Message()
        message.add_byte(bytes([98]))  # SSH_MSG_CHANNEL_REQUEST
        message.add_int(channel.remote_chanid)
        message.add_string("signal")
        message.add_boolean(False)
        message.add_string("USR1")
        transport._send_user_message(message)  # type: ignore[attr-defined] # paramiko has no call for this
        assert read_until(channel, b"got it") == b"got it\n"
        # The group had the signal, the sleep in it as well: the shell's own trap decides the exit code.
        assert channel.recv_exit_status() == 3


def test_closed_session_ends_the_foreground_and_keeps_detached_processes(spec: GuestSpec, client: Client) -> None:
    command = (
        "setsid sleep 601 </dev/null >/dev/null 2>&1 & echo $! > detached; "
        "nohup sleep 602 </dev/null >/dev/null 2>&1 & echo $! > nohup; "
        "sleep 603 & echo $! > foreground; echo ready; wait"
    )
    with client.connect(spec) as connection:
        _, output, _ = connection.exec_command(command, timeout=WAIT_SECONDS)
        assert output.readline() == "ready\n"
        pids = {name: int((home(spec) / name).read_text()) for name in ("detached", "nohup", "foreground")}
        # `setsid` and `nohup` have done their part when they have become the program.
        assert eventually(lambda: all(Path(f"/proc/{pid}/comm").read_text() == "sleep\n" for pid in pids.values()))
    assert eventually(lambda: not alive(pids["foreground"]))
    assert alive(pids["detached"])
    assert alive(pids["nohup"])


def test_closed_terminal_sends_sighup(spec: GuestSpec, client: Client) -> None:
    with client.connect(spec) as connection:
        channel = open_terminal(connection, "echo $$ > pid; echo ready; sleep 604")
        read_until(channel, b"ready")
    pid = int((home(spec) / "pid").read_text())
    assert eventually(lambda: not alive(pid))


# Who may log in.


def test_wrong_key_or_user_is_refused(shared: GuestSpec, client: Client, tmp_path: Path) -> None:
    other = tmp_path / "other"
    make_key(other)
    with pytest.raises(paramiko.AuthenticationException), client.connect(shared, key=other):
        pass
    with pytest.raises(paramiko.AuthenticationException), client.connect(shared, username="root"):
        pass
    with paramiko.Transport((shared.address, shared.port)) as transport:
        transport.start_client(timeout=WAIT_SECONDS)
        with pytest.raises(paramiko.BadAuthenticationType) as refusal:
            transport.auth_password(shared.username, "secret")
        assert refusal.value.allowed_types == ["publickey"]


def test_guest_can_change_authorized_keys(spec: GuestSpec, client: Client, tmp_path: Path) -> None:
    other = tmp_path / "other"
    make_key(other)
    public = other.with_suffix(".pub").read_text()
    client.run(spec, "cat > .ssh/authorized_keys", given=f"not a key\n{public}".encode())
    with client.connect(spec, key=other):
        pass
    assert b"Permission denied" in client.run(spec, "true").stderr


def test_host_key_survives_a_power_cycle(host: GuestHost, spec: GuestSpec, client: Client) -> None:
    def offered() -> str:
        with client.connect(spec) as connection:
            transport = connection.get_transport()
            assert transport is not None
            return str(transport.get_remote_server_key().get_base64())

    before = offered()
    host.call(host.guests.stop(spec.vm_id))
    host.call(host.guests.start(spec))
    assert offered() == before


# Files.


def test_sftp_works_in_home_and_under_the_guests_root(spec: GuestSpec, client: Client, tmp_path: Path) -> None:
    data = os.urandom(3_000_000)
    (tmp_path / "local").write_bytes(data)
    with client.connect(spec) as connection, connection.open_sftp() as sftp:
        assert sftp.normalize(".") == "/home/azureuser"
        sftp.put(str(tmp_path / "local"), "sent")
        sftp.mkdir("folder")
        sftp.rename("sent", "folder/moved")
        assert sftp.stat("/home/azureuser/folder/moved").st_size == len(data)
        assert sftp.stat(f"{home(spec)}/folder/moved").st_size == len(data)
        sftp.get("/home/azureuser/folder/moved", str(tmp_path / "back"))
        sftp.chmod("folder/moved", 0o600)
        sftp.symlink("/home/azureuser/folder/moved", "link")
        assert sftp.readlink("link") == "/home/azureuser/folder/moved"
        assert "etc" in sftp.listdir("/")
        # The host's files are not there, by whichever way.
        for outside in ("/etc/passwd", "../../../../../../etc/passwd", str(tmp_path / "local")):
            with pytest.raises(FileNotFoundError):
                sftp.stat(outside)
    assert (tmp_path / "back").read_bytes() == data
    assert (home(spec) / "folder" / "moved").stat().st_mode & 0o777 == 0o600
    assert (home(spec) / "link").read_bytes() == data


@pytest.mark.parametrize("protocol", ["-s", "-O"])
def test_scp_copies_both_ways(spec: GuestSpec, client: Client, tmp_path: Path, protocol: str) -> None:
    (tmp_path / "local").write_text("content")
    target = f"{spec.username}@{spec.address}"
    scp = [program("scp", "openssh-client"), protocol, *client.options(spec)]
    subprocess.run([*scp, tmp_path / "local", f"{target}:/home/azureuser/sent"], check=True, timeout=WAIT_SECONDS)
    subprocess.run([*scp, f"{target}:sent", tmp_path / "back"], check=True, timeout=WAIT_SECONDS)
    assert (home(spec) / "sent").read_text() == (tmp_path / "back").read_text() == "content"


def test_openssh_sftp_starts_at_home(shared: GuestSpec, client: Client) -> None:
    sftp = [program("sftp", "openssh-client"), "-b", "-", *client.options(shared)]
    done = subprocess.run(
        [*sftp, f"{shared.username}@{shared.address}"],
        input="pwd\n",
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=True,
    )
    assert "Remote working directory: /home/azureuser" in done.stdout


# Forwarding.


@contextlib.contextmanager
def echo_server(family: socket.AddressFamily, address: str | tuple[str, int]) -> Iterator[socket.socket]:
    def serve() -> None:
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                connection.sendall(connection.recv(100).upper())

    with socket.socket(family) as listener:
        listener.bind(address)
        listener.listen()
        listener.settimeout(WAIT_SECONDS)
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener
        thread.join(WAIT_SECONDS)


def ask(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_SECONDS) as connection:
        connection.sendall(b"hello")
        return connection.recv(100)


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@contextlib.contextmanager
def ssh_in_background(command: list[str]) -> Iterator[None]:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            yield
        finally:
            process.terminate()


def test_ports_are_forwarded_to_loopback_only(shared: GuestSpec, client: Client) -> None:
    local = free_port()
    with echo_server(socket.AF_INET, ("127.0.0.1", 0)) as server:
        remote = server.getsockname()[1]
        command = client.ssh(shared, f"-L{local}:localhost:{remote}", "echo ready; sleep 60")
        with ssh_in_background(command):
            assert ask(local) == b"HELLO"
    with client.connect(shared) as connection:
        transport = connection.get_transport()
        assert transport is not None
        with pytest.raises(paramiko.ChannelException, match="prohibited"):
            transport.open_channel("direct-tcpip", ("192.0.2.1", 80), ("127.0.0.1", 1), timeout=WAIT_SECONDS)


def test_unix_socket_of_the_guest_is_forwarded(shared: GuestSpec, client: Client, tmp_path: Path) -> None:
    local = free_port()
    folder = os.open(home(shared), os.O_RDONLY)
    try:
        # By a short name: the kernel takes 107 bytes, and the guest lies deeper.
        with echo_server(socket.AF_UNIX, f"/proc/self/fd/{folder}/engine.sock"):
            command = client.ssh(shared, f"-L{local}:/home/azureuser/engine.sock", "echo ready; sleep 60")
            with ssh_in_background(command):
                assert ask(local) == b"HELLO"
    finally:
        os.close(folder)


def test_docker_socket_follows_docker_host(
    host: GuestHost, client: Client, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    engine = tmp_path_factory.mktemp("d") / "s"
    spec = make_spec(tmp_path / "root", client.public_key, environment={"DOCKER_HOST": f"unix://{engine}"})
    host.call(host.guests.start(spec))
    local = free_port()
    try:
        assert client.output(spec, "echo $DOCKER_HOST") == f"unix://{engine}"
        client.output(spec, "sudo usermod -aG docker azureuser")
        with echo_server(socket.AF_UNIX, str(engine)):
            command = client.ssh(spec, f"-L{local}:/var/run/docker.sock", "echo ready; sleep 60")
            with ssh_in_background(command):
                assert ask(local) == b"HELLO"
    finally:
        host.call(host.guests.delete(spec.vm_id, spec.root))


def test_keep_alive_is_answered(shared: GuestSpec, client: Client) -> None:
    with client.connect(shared) as connection:
        transport = connection.get_transport()
        assert transport is not None
        # What OpenSSH sends, where ServerAliveInterval says so. Without an answer this would not return.
        transport.global_request("keepalive@openssh.com", wait=True)
        assert Session(connection).output("echo still here") == "still here"


# Power.


def test_stop_ends_detached_processes_daemons_and_the_listener(
    host: GuestHost, spec: GuestSpec, client: Client
) -> None:
    detached = int(client.output(spec, "setsid sleep 605 </dev/null >/dev/null 2>&1 & echo $!"))
    client.run(spec, f"python3 -c {shlex.quote(DAEMON)} daemon </dev/null >/dev/null 2>&1")
    # One ignores SIGTERM; of two with a cleared environment one is found by its session, one by its parent.
    orphan = "(env -i /bin/sleep 606 & echo $! > orphan)"
    child = "setsid env -i /bin/sleep 615 & echo $! > child"
    stubborn = f"trap '' TERM HUP; {orphan}; {child}; while :; do sleep 0.1; done"
    client.run(spec, f"setsid bash -c {shlex.quote(stubborn)} </dev/null >/dev/null 2>&1 &")
    names = ("daemon", "orphan", "child")
    assert eventually(lambda: all((home(spec) / name).exists() for name in names))
    pids = [detached, *(int((home(spec) / name).read_text()) for name in names)]
    assert eventually(lambda: all(Path(f"/proc/{pid}/environ").read_bytes() == b"" for pid in pids[2:]))
    assert all(alive(pid) for pid in pids)
    host.call(host.guests.stop(spec.vm_id))
    assert not [pid for pid in pids if alive(pid)]
    assert not listens(spec.port)
    assert not host.guests.running(spec.vm_id)


def test_stop_ends_sessions(host: GuestHost, spec: GuestSpec, client: Client) -> None:
    with client.connect(spec) as connection:
        _, output, _ = connection.exec_command("echo $$; sleep 607", timeout=WAIT_SECONDS)
        pid = int(output.readline())
        host.call(host.guests.stop(spec.vm_id))
        assert output.read() == b""
        assert not alive(pid)
        transport = connection.get_transport()
        assert transport is not None
        assert eventually(lambda: not transport.is_active())


def test_stop_does_not_affect_other_guests(host: GuestHost, spec: GuestSpec, shared: GuestSpec, client: Client) -> None:
    other = int(client.output(shared, "setsid sleep 608 </dev/null >/dev/null 2>&1 & echo $!"))
    host.call(host.guests.stop(spec.vm_id))
    assert alive(other)
    client.run(shared, f"kill {other}")


def test_home_survives_a_power_cycle_and_is_deleted_with_the_disk(
    host: GuestHost, spec: GuestSpec, client: Client
) -> None:
    client.run(spec, "echo kept > file; echo gone > $GPUINFRA_GUEST_ROOT/run/file")
    host.call(host.guests.stop(spec.vm_id))
    host.call(host.guests.start(spec))
    assert (
        client.output(spec, "cat file; ls $GPUINFRA_GUEST_ROOT/run/file 2>/dev/null || echo absent") == "kept\nabsent"
    )
    host.call(host.guests.delete(spec.vm_id, spec.root))
    assert not spec.root.exists()
    # What is absent is deleted already.
    host.call(host.guests.delete(spec.vm_id, spec.root))


def test_second_start_has_no_effect(host: GuestHost, spec: GuestSpec, client: Client) -> None:
    pid = int(client.output(spec, "setsid sleep 609 </dev/null >/dev/null 2>&1 & echo $!"))
    host.call(host.guests.start(spec))
    assert alive(pid)
    assert host.guests.running(spec.vm_id)


def test_failed_start_leaves_no_processes(host: GuestHost, client: Client, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        spec = make_spec(tmp_path / "root", client.public_key, port=taken.getsockname()[1])
        with pytest.raises(OSError, match="address already in use"):
            host.call(host.guests.start(spec))
    assert not host.guests.running(spec.vm_id)
    host.call(host.guests.start(spec))
    assert client.output(spec, "echo here") == "here"
    host.call(host.guests.delete(spec.vm_id, spec.root))


def test_guest_runs_while_sshd_refuses_connections(host: GuestHost, client: Client, tmp_path: Path) -> None:
    spec = make_spec(tmp_path / "root", client.public_key, sshd_refuses=True)
    host.call(host.guests.start(spec))
    try:
        assert not listens(spec.port)
        assert host.call(host.guests.run_command(spec.vm_id, "hostname", 10)).stdout == "my-dsvm\n"
    finally:
        host.call(host.guests.delete(spec.vm_id, spec.root))


def left_by_a_killed_server(spec: GuestSpec, client: Client) -> int:
    """Return the id of a guest's process that runs after its server was killed."""
    with server_process(spec.root, spec.port, client.public_key) as server:
        pid = int(client.output(spec, "setsid sleep 610 </dev/null >/dev/null 2>&1 & echo $!"))
        server.send_signal(signal.SIGKILL)
        server.wait(WAIT_SECONDS)
    assert alive(pid)
    return pid


def test_start_ends_processes_of_a_killed_server(host: GuestHost, client: Client, tmp_path: Path) -> None:
    spec = make_spec(tmp_path / "root", client.public_key)
    pid = left_by_a_killed_server(spec, client)
    try:
        host.call(host.guests.start(spec))
        assert not alive(pid)
        assert client.output(spec, "echo here") == "here"
    finally:
        host.call(host.guests.delete(spec.vm_id, spec.root))


def test_stop_and_delete_end_processes_of_a_killed_server(host: GuestHost, client: Client, tmp_path: Path) -> None:
    spec = make_spec(tmp_path / "root", client.public_key)
    pid = left_by_a_killed_server(spec, client)
    host.call(host.guests.stop(spec.vm_id, spec.root))
    assert not alive(pid)
    host.call(host.guests.delete(spec.vm_id, spec.root))
    assert not spec.root.exists()


# Run command.


def test_run_command_returns_output_errors_and_exit_code(host: GuestHost, shared: GuestSpec) -> None:
    result = host.call(host.guests.run_command(shared.vm_id, "pwd\necho trouble >&2\nexit 4\n", WAIT_SECONDS))
    assert (result.stdout, result.stderr, result.exit_code) == (f"{home(shared)}\n", "trouble\n", 4)
    long = "echo begin\n" + "# filler\n" * 100_000 + "echo end\n"
    assert host.call(host.guests.run_command(shared.vm_id, long, WAIT_SECONDS)).stdout == "begin\nend\n"


def test_run_command_does_not_wait_for_background_processes(host: GuestHost, spec: GuestSpec) -> None:
    result = host.call(host.guests.run_command(spec.vm_id, "sleep 612 &\necho done\n", 600))
    assert result.stdout == "done\n"


def test_run_command_past_its_deadline_is_ended_with_its_children(host: GuestHost, spec: GuestSpec) -> None:
    script = "setsid sleep 613 & echo $! > pid.new; mv pid.new pid\nsleep 614\n"
    pid, seconds = home(spec) / "pid", 0.25
    while not pid.exists():  # a busy computer may not have begun with it by then
        seconds *= 2
        with pytest.raises(TimeoutError):
            host.call(host.guests.run_command(spec.vm_id, script, seconds))
    assert not alive(int(pid.read_text()))


def test_run_command_requires_a_running_guest(host: GuestHost) -> None:
    with pytest.raises(GuestNotRunningError):
        host.call(host.guests.run_command("absent", "true", 1))
    with pytest.raises(GuestNotRunningError):
        host.guests.set_gpu_gone("absent", True)


# Programs of the guest.


def test_sudo_runs_the_command_unchanged(shared: GuestSpec, client: Client) -> None:
    assert client.output(shared, "sudo -n -E -u root GREETING=hello bash -c 'echo $GREETING $0' -n") == "hello -n"
    assert client.run(shared, "sudo false").returncode == 1


@pytest.mark.parametrize("command", ["shutdown -h now", "sudo /sbin/shutdown -h now", "sudo apt-get install x"])
def test_programs_that_would_change_the_host_are_refused(shared: GuestSpec, client: Client, command: str) -> None:
    # Only with the guest's own program in place may this be tried at all.
    assert client.output(shared, "command -v shutdown apt-get").split() == [
        f"{shared.root}/bin/shutdown",
        f"{shared.root}/bin/apt-get",
    ]
    done = client.run(shared, command)
    assert done.returncode == 1
    assert b"not simulated" in done.stderr


def test_wall_prints_and_keeps_the_message(shared: GuestSpec, client: Client) -> None:
    assert client.output(shared, "wall the lease ends soon") == "the lease ends soon"
    assert (shared.root / "var/log/wall").read_text().endswith("the lease ends soon\n")


def test_hostname_is_the_vms(shared: GuestSpec, client: Client) -> None:
    assert client.output(shared, "hostname") == "my-dsvm"


def test_who_lists_open_connections(host: GuestHost, spec: GuestSpec, client: Client) -> None:
    def logins() -> int:
        return len(host.call(host.guests.run_command(spec.vm_id, "who", 10)).stdout.splitlines())

    assert logins() == 0
    with client.connect(spec):
        assert logins() == 1
        assert client.output(spec, "who").count("azureuser") == 2
    assert eventually(lambda: logins() == 0)
