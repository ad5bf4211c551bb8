"""OpenSSH's client with our options and files against a real server, and the command `gpuinfra ssh`."""

import json
import os
import stat
import subprocess
import sys
import threading
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from gpuinfra.models.target import Target
from gpuinfra.runner.connection import openssh
from gpuinfra.runner.connection.openssh import SshFiles
from tests.integration.runner.conftest import WAIT_SECONDS, SshServer, make_key
from tests.real import program
from tests.variants import variant, variants

# The program with a fake cloud that has one machine; it executes the real ssh.
FAKE_CLOUD_PROGRAM = """
import json, sys, types
from gpuinfra.app import machine_names as words
from gpuinfra.app.machine_names import Named
from gpuinfra.cli.main import main
from gpuinfra.diagnostics import Code, Diagnostic, Problem
from gpuinfra.models.target import Target

target = json.loads(sys.argv[1])

def find_target(cloud, name, group, *, ssh_port, identity):
    if name != target["machine"]:
        raise Problem(Diagnostic(Code.USAGE, "no such machine"))
    return Target(**{**target, "port": ssh_port, "identity": identity or target["identity"]})

found = types.SimpleNamespace(ssh_port=target["port"])
words.open_cloud = lambda *arguments, **options: found
words.find_target = find_target
words.located = lambda settings, cloud, name, spec=None: Named(name, spec=spec)
sys.exit(main(sys.argv[2:]))
"""
SPEC = """
apiVersion: gpuinfra/v1
name: my-dsvm
region: southcentralus
size: Standard_NC4as_T4_v3
admin: {sshPublicKey: keys/odd %d key.pub}
"""


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def ssh(command: list[str], *more: str) -> "subprocess.CompletedProcess[str]":
    program("ssh", "openssh-client")
    # Ignore the developer's configuration: OpenSSH finds it by user id, not by HOME.
    words = [command[0], "-F", "none", "-o", "BatchMode=yes", *command[1:], *more]
    return subprocess.run(
        words, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False, stdin=subprocess.DEVNULL
    )


@pytest.mark.parametrize(
    "folder", variants("%d %% x", 'quo"te', "plain", "a b", "100%", "it's", "back\\slash", "#x", first=2)
)
def test_ssh_logs_in_with_special_characters_in_paths(shared: SshServer, tmp_path: Path, folder: str) -> None:
    files = SshFiles(tmp_path / folder)
    files.folder.mkdir()
    key = files.folder / "my key"
    key.write_bytes(shared.user_key.read_bytes())
    key.chmod(0o600)
    target = shared.target_with(identity=str(key))
    files.remember(target)
    done = ssh(openssh.command(target, files.known_hosts, ["echo", "in;", "exit", "7"]))
    assert (done.returncode, done.stdout, done.stderr) == (7, "in\n", "")


def test_ssh_refuses_another_host_key(shared: SshServer, tmp_path: Path) -> None:
    files = SshFiles(tmp_path)
    files.remember(shared.target_with(host_key=Path(f"{make_key(tmp_path / 'other')}.pub").read_text()))
    done = ssh(openssh.command(shared.target, files.known_hosts, ["true"]))
    assert done.returncode == 255
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in done.stderr


def test_host_name_is_known_in_any_case(shared: SshServer, tmp_path: Path) -> None:
    files, target = SshFiles(tmp_path), shared.target_with(machine="My-DSVM")
    files.remember(target)
    assert ssh(openssh.command(target, files.known_hosts, ["true"])).returncode == 0


@pytest.mark.parametrize("kind", variants("rsa", "ecdsa"))
def test_other_types_of_host_keys_are_accepted(server: SshServer, tmp_path: Path, kind: str) -> None:
    server.host_key = make_key(tmp_path / "key", kind)
    server.start()
    files = SshFiles(tmp_path / "ssh")
    files.remember(server.target)
    assert ssh(openssh.command(server.target, files.known_hosts, ["true"])).returncode == 0


def test_options_of_the_command_are_not_options_of_ssh(shared: SshServer, tmp_path: Path) -> None:
    files = SshFiles(tmp_path)
    files.remember(shared.target)
    # As an option of ssh, it would print the version and succeed.
    done = ssh(openssh.command(shared.target, files.known_hosts, ["-V"]))
    assert done.returncode != 0
    assert "OpenSSH" not in done.stderr


def test_ssh_needs_only_the_configured_name(shared: SshServer, tmp_path: Path) -> None:
    files = SshFiles(tmp_path / "a b")
    assert files.configure(shared.target) == [files.known_hosts, files.config]
    words = ["ssh", "-F", str(files.config), "-o", "BatchMode=yes", "my-dsvm", "echo in"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "in\n", "")


def test_files_are_private_and_written_only_if_changed(shared: SshServer, tmp_path: Path) -> None:
    files = SshFiles(tmp_path / "new" / "ssh")
    files.configure(shared.target)
    assert (mode(files.folder), mode(files.known_hosts), mode(files.config)) == (0o700, 0o600, 0o600)
    before = files.config.stat().st_ino, files.known_hosts.stat().st_ino
    assert files.configure(shared.target) == []
    assert (files.config.stat().st_ino, files.known_hosts.stat().st_ino) == before
    assert sorted(file.name for file in files.folder.iterdir()) == [".lock", "config", "known_hosts"]


def test_concurrent_writers_keep_all_machines(shared: SshServer, tmp_path: Path) -> None:
    def write(number: int) -> None:
        SshFiles(tmp_path).configure(replace(shared.target, machine=f"machine-{number}"))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    files = SshFiles(tmp_path)
    assert len(files.known_hosts.read_text().splitlines()) == 20
    assert files.config.read_text().count("Host machine-") == 20


def test_lines_with_invalid_utf8_are_kept(shared: SshServer, tmp_path: Path) -> None:
    (tmp_path / "known_hosts").write_bytes(b"other ssh-rsa AAAA caf\xe9\n")
    SshFiles(tmp_path).remember(shared.target)
    assert (tmp_path / "known_hosts").read_bytes().startswith(b"other ssh-rsa AAAA caf\xe9\n")


# The command `gpuinfra ssh`


def gpuinfra(target: Target, home: Path, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    kept = {name: os.environ[name] for name in ("PATH", "COVERAGE_PROCESS_START") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-c", FAKE_CLOUD_PROGRAM, json.dumps(asdict(target), default=list), *words],
        cwd=home,
        env={**kept, "HOME": str(home), "PYTHONPATH": str(Path(__file__).parents[3]), **variables},
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS * 2,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def test_ssh_command_returns_the_exit_code_and_uses_the_key_of_the_spec(shared: SshServer, home: Path) -> None:
    (home / "gpu.yaml").write_text(SPEC)
    (home / "keys").mkdir()
    key = home / "keys" / "odd %d key"
    key.write_bytes(shared.user_key.read_bytes())
    key.chmod(0o600)
    target = shared.target_with(identity=None)
    done = gpuinfra(target, home, "ssh", "my-dsvm", "--", "echo", "--json;", "exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, "--json\n", "")
    assert mode(home / ".gpuinfra" / "ssh") == 0o700


@variant
def test_json_output_has_the_command_line(shared: SshServer, home: Path) -> None:
    done = gpuinfra(shared.target, home, "--json", "ssh", "my-dsvm")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["target"]["address"] == "127.0.0.1"
    assert ssh(document["command"], "echo in").stdout == "in\n"


def test_config_option_does_not_change_the_users_configuration(shared: SshServer, home: Path) -> None:
    folder, include = home / ".gpuinfra" / "ssh", "Include ~/.gpuinfra/ssh/config"
    first = gpuinfra(shared.target, home, "ssh", "my-dsvm", "--config")
    assert first.stdout.splitlines() == [f"wrote {folder / 'known_hosts'}", f"wrote {folder / 'config'}"]
    assert first.stderr == f"Next: put at the top of ~/.ssh/config: {include}\n"
    assert not (home / ".ssh" / "config").exists()
    (home / ".ssh" / "config").write_text(f"{include}\n")
    again = gpuinfra(shared.target, home, "ssh", "my-dsvm", "--config")
    assert (again.stdout, again.stderr) == ("", "Next: ssh my-dsvm\n")
    assert (home / ".ssh" / "config").read_text() == f"{include}\n"
    assert json.loads(gpuinfra(shared.target, home, "ssh", "my-dsvm", "--config", "--json").stdout) == {
        "schemaVersion": 1,
        "files": [str(folder / "known_hosts"), str(folder / "config")],
        "include": include,
        "included": True,
    }


def test_errors_of_the_ssh_command_are_reported(shared: SshServer, home: Path) -> None:
    def code(target: Target, *words: str, **variables: str) -> tuple[int, str]:
        done = gpuinfra(target, home, "--json", "ssh", *words, **variables)
        return done.returncode, json.loads(done.stdout)["diagnostics"][0]["code"]

    assert code(shared.target, "my-dsvm", "--config", "--", "ls") == (2, "usage")
    (home / ".gpuinfra").write_text("a file in the way")
    assert code(shared.target, "my-dsvm") == (1, "file-unwritable")
    (home / ".gpuinfra").unlink()
    assert code(shared.target_with(host_key="nonsense"), "my-dsvm") == (1, "bad-host-key")
    done = gpuinfra(shared.target, home, "ssh", "my-dsvm", PATH=str(home))
    assert done.returncode == 1
    assert "error: no `ssh` on this computer" in done.stderr
