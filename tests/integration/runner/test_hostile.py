"""A real OpenSSH server that is hostile."""

import contextlib
import resource
import sys
from pathlib import Path
from shlex import quote

import pytest

from gpuinfra.runner.connection.remote_client import RemoteClient
from gpuinfra.runner.connection.ssh import SshConnection
from gpuinfra.runner.errors import ConnectError, RemoteError
from gpuinfra.runner.nvidia_smi import ask
from tests.integration.runner.conftest import WAIT_SECONDS, SshServer

FLOOD_SECONDS, MEBIBYTE = 3.0, 1024  # ru_maxrss counts KiB


def test_endless_output_does_not_fill_the_memory(shared: SshServer) -> None:
    # A start-up file of the user's shell may print this before our command runs.
    with contextlib.closing(SshConnection.open(shared.target, WAIT_SECONDS)) as connection:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(ConnectError):
            connection.run("cat /dev/zero", timeout=FLOOD_SECONDS)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * MEBIBYTE


def test_greeting_of_the_shell_is_not_parsed_as_a_gpu(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("greeting")
    server, programs = SshServer(folder / "sshd"), folder / "bin"
    programs.mkdir()
    (programs / "nvidia-smi").write_text("#!/bin/sh\necho 'Tesla T4, 535.161.08, 15360 MiB, 7.5'\n")
    (programs / "shell").write_text(
        f'#!/bin/sh\necho "Hello, dear user, of the lab"\nPATH={programs}:$PATH\neval "$SSH_ORIGINAL_COMMAND"\n'
    )
    for program in programs.iterdir():
        program.chmod(0o755)
    server.settings["ForceCommand"] = str(programs / "shell")
    server.start()
    try:
        with contextlib.closing(SshConnection.open(server.target, WAIT_SECONDS)) as connection:
            assert ask(connection, WAIT_SECONDS).models == ("Tesla T4",)
    finally:
        server.stop()


# Answers every request with the object that is its argument.
ANSWER = """
import struct, sys
answer = sys.argv[1].encode()
sys.stdout.buffer.write(b"@@gpuinfra remote\\n" + struct.pack("!cI", b"J", len(answer)) + answer)
sys.stdout.flush()
sys.stdin.buffer.read()
"""


@pytest.mark.parametrize("number", ["1" + 400 * "0", "-" + 40 * "9", "1e400", "Infinity", "NaN", "1e300"])
def test_number_that_no_calculation_survives_is_an_error(tmp_path: Path, number: str) -> None:
    server, program, shell = SshServer(tmp_path / "sshd"), tmp_path / "answer.py", tmp_path / "shell"
    program.write_text(ANSWER)
    shell.write_text(f"#!/bin/sh\nexec {quote(sys.executable)} {quote(str(program))} '{{\"seconds\": {number}}}'\n")
    shell.chmod(0o755)
    server.settings["ForceCommand"] = str(shell)
    server.start()
    try:
        with contextlib.closing(SshConnection.open(server.target, WAIT_SECONDS)) as connection:
            with pytest.raises(RemoteError) as caught:
                RemoteClient(connection).ask("usage", seconds=WAIT_SECONDS)
            assert caught.value.code == "protocol"
    finally:
        server.stop()
