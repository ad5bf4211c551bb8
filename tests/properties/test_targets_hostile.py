"""Hostile target files and machines."""

import contextlib
import os
import shlex
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import keyring
import pytest
import yaml
from keyring.backend import KeyringBackend

from gpuinfra.app import attach
from gpuinfra.app.workspace import Secret
from gpuinfra.diagnostics import Problem
from gpuinfra.models.target import Target
from gpuinfra.runner import nvidia_smi
from gpuinfra.runner.connection import openssh, passwords, private_keys
from gpuinfra.runner.connection.handshake import reachability
from gpuinfra.runner.connection.known_hosts import HostKey
from gpuinfra.runner.connection.port import Completed
from gpuinfra.runner.docker import check
from gpuinfra.runner.docker.context import endpoint, known_hosts_line
from gpuinfra.runner.errors import HostKeyInvalid
from gpuinfra.runner.progress import within
from gpuinfra.runner.readiness import examine
from gpuinfra.workbench import targets
from gpuinfra.workbench.project import read_file
from gpuinfra.workbench.targets import check_files, find_target, read_targets, write_target
from tests.unit.runner.connection.test_passwords import Memory

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
OTHER_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0Z0OTJvTXCTQOXWPUDF6wvEYGcUZtC4xRuWzWvfwKx"
TARGET = Target("lab", "lab", "remote", "203.0.113.7", 22, "me", KEY)
KNOWN = Path("/home/me/.gpuinfra/ssh/known_hosts")
WORDS = {
    *("Host", "HostName", "Port", "User", "IdentityFile", "IdentitiesOnly", "HostKeyAlias", "HostKeyAlgorithms"),
    *("UserKnownHostsFile", "StrictHostKeyChecking", "KnownHostsCommand"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "project" / "aml_config").mkdir(parents=True)
    return tmp_path / "project" / "aml_config"


def compute(**values: Any) -> str:
    said = {"type": "remote", "address": "203.0.113.7", "username": "me", "hostKey": KEY, **values}
    return yaml.safe_dump({key: value for key, value in said.items() if value is not None})


# OpenSSH configuration


@pytest.mark.parametrize("key", ["address", "username", "privateKeyFile"])
def test_value_of_a_file_cannot_add_a_line_to_ssh_config(folder: Path, key: str) -> None:
    (folder / "lab.compute").write_text(compute(**{key: "x\n    ProxyCommand touch /tmp/owned\nHost *"}))
    try:
        target = find_target(folder.parent, "lab")
        assert target is not None
        block = openssh.standalone_block(target)
    except (Problem, ValueError):
        return  # refused
    lines = [line.split() for line in block.splitlines() if not line.startswith("#")]
    assert {words[0] for words in lines} <= WORDS
    assert sum(words[0] == "Host" for words in lines) == 1


def test_target_without_a_user_leaves_ssh_config_valid(folder: Path) -> None:
    (folder / "lab.compute").write_text(compute(username=None))
    try:
        target = find_target(folder.parent, "lab")
        assert target is not None
        block, command = openssh.config_block(target, KNOWN), openssh.command(target, KNOWN, [])
    except (Problem, ValueError):
        return
    assert all(len(line.split()) > 1 for line in block.splitlines())
    assert not command[-1].startswith("@")


def test_zone_of_an_address_is_not_expanded() -> None:
    assert "    HostName fe80::1%%eth0\n" in openssh.config_block(replace(TARGET, address="fe80::1%eth0"), KNOWN)


@pytest.mark.parametrize("name", ["*", "a b", "!x", "a\nProxyCommand touch owned", "%h"])
def test_file_name_must_be_a_valid_target_name(folder: Path, name: str) -> None:
    (folder / f"{name}.compute").write_text(compute())
    try:
        target = find_target(folder.parent, name)
    except Problem:
        return
    assert target is None


@pytest.mark.parametrize(("address", "username"), [("2001:db8::7", "me"), ("host", "LAB\\me"), ("host", "a/b?c#d")])
def test_address_of_an_engine_is_a_valid_url(address: str, username: str) -> None:
    url = endpoint(replace(TARGET, address=address, username=username))
    parts = urlsplit(url)
    assert (parts.hostname, parts.port, unquote(parts.username or "")) == (address, 22, username)
    assert "\\" not in url
    assert f"[{address}]" in url or ":" not in address


@pytest.mark.parametrize("address", ["*", "@cert-authority *", "github.com,203.0.113.7"])
def test_address_cannot_add_another_known_host(folder: Path, address: str) -> None:
    # `export --format docker-context` asks you to add this line to ~/.ssh/known_hosts.
    (folder / "lab.compute").write_text(compute(address=address))
    try:
        target = find_target(folder.parent, "lab")
        assert target is not None
        line = known_hosts_line(target)
    except (Problem, ValueError):
        return
    assert not line.startswith((address, f"[{address}"))


# Host keys and names


@pytest.mark.parametrize("text", ["ssh-ed25519 AAAAC3Nza…", f"{KEY}é", "ssh-ed25519 \N{CYRILLIC CAPITAL LETTER A}AAA"])
def test_host_key_that_is_not_ascii_is_invalid(text: str) -> None:
    with pytest.raises(HostKeyInvalid):
        HostKey.parse(text)


def test_invalid_host_key_does_not_hide_the_others() -> None:
    broken = replace(TARGET, address="127.0.0.1", port=1, host_key="ssh-ed25519 AAAAC3Nza…")
    assert [reach.state for reach in reachability([broken, replace(broken, host_key=KEY)], 2.0)] == ["no", "no"]


def test_name_outside_the_folder_is_not_a_target(folder: Path) -> None:
    (folder.parent / "x.compute").write_text(compute())
    assert find_target(folder.parent, "../x") is None


@pytest.mark.parametrize("find", [find_target, targets.target_files, check_files])
def test_invalid_file_name_is_not_a_target(folder: Path, find: Callable[[Path, str], Any]) -> None:
    assert not find(folder.parent, "a" * 300)


# Files


def test_unreadable_file_is_reported_before_billing(folder: Path) -> None:
    # Reading the start of a process's own memory fails for root too.
    (folder / "lab.compute").symlink_to("/proc/self/mem")
    with pytest.raises(Problem):
        check_files(folder.parent, "lab")


@pytest.mark.parametrize("what", ["folder", "file for folder", "device", "loop"])
def test_unwritable_path_is_reported_before_billing(folder: Path, what: str) -> None:
    file = folder / "lab.compute"
    if what == "folder":
        file.mkdir()
    elif what == "device":
        file.symlink_to("/dev/full")
    elif what == "loop":
        file.symlink_to(file)
    else:
        folder.rmdir()
        folder.write_text("in the way")
    with pytest.raises(Problem):
        check_files(folder.parent, "lab")


def test_write_does_not_block_on_a_pipe(folder: Path) -> None:
    pipe = folder / "lab.compute"
    os.mkfifo(pipe)
    try:
        with pytest.raises((Problem, IsADirectoryError, FileExistsError, PermissionError)):
            within(0.3, lambda: write_target(folder.parent, TARGET))
    finally:
        os.close(os.open(pipe, os.O_RDWR | os.O_NONBLOCK))


def test_private_key_that_is_a_pipe_does_not_block(tmp_path: Path) -> None:
    # An untrusted file could name /dev/zero or /dev/stdin.
    pipe = tmp_path / "key"
    os.mkfifo(pipe)
    try:
        with pytest.raises(private_keys.UnusableKeyError):
            within(0.3, lambda: private_keys.load(pipe))
    finally:
        os.close(os.open(pipe, os.O_RDWR | os.O_NONBLOCK))


def test_concurrent_change_of_a_file_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = folder / "lab.compute"
    file.write_text("address: old\ntype: remote\n")
    real = read_file

    def read(path: Path) -> Any:
        document = real(path)
        if path == file:
            file.write_text("address: old\ntype: remote\nbaseDockerImage: mine\n")
        return document

    monkeypatch.setattr(targets, "read_file", read)
    with contextlib.suppress(Problem):
        write_target(folder.parent, TARGET)
    assert "baseDockerImage: mine" in file.read_text()


def test_files_are_written_both_or_not_at_all(folder: Path) -> None:
    file, other = folder / "lab.compute", folder / "lab.runconfig"
    file.write_text("address: old\ntype: remote\n")
    other.write_text("Framework: PySpark\n")
    other.chmod(0o444)
    with pytest.raises(OSError, match="read-only"):
        write_target(folder.parent, replace(TARGET, explicit_fields=frozenset({"framework"})))
    assert file.read_text() == "address: old\ntype: remote\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can write files of others")
def test_file_keeps_its_owner(folder: Path) -> None:
    # As in a container that runs as root with the user's project mounted.
    file = folder / "lab.compute"
    file.write_text("address: old\ntype: remote\n")
    os.chown(file, 12345, 12345)
    write_target(folder.parent, TARGET)
    assert (file.stat().st_uid, file.stat().st_gid) == (12345, 12345)


@pytest.mark.parametrize(
    "text",
    ["address: |  # the big one\n  old\n", "address: >- # the big one\n  old\n", "address: [a, # the big one\n b]\n"],
)
def test_comment_in_a_value_is_kept(folder: Path, text: str) -> None:
    file = folder / "lab.compute"
    file.write_text(f"{text}type: remote\n")
    with contextlib.suppress(Problem):
        write_target(folder.parent, TARGET)
    assert "# the big one" in file.read_text()


def test_file_is_not_written_through_a_link_out_of_the_project(tmp_path: Path, folder: Path) -> None:
    outside = tmp_path / "config"  # such as ~/.kube/config
    outside.write_text("apiVersion: v1\nkind: Config\n")
    (folder / "lab.compute").symlink_to(outside)
    with contextlib.suppress(Problem, OSError):
        write_target(folder.parent, TARGET)
    assert outside.read_text() == "apiVersion: v1\nkind: Config\n"


def test_content_behind_a_link_out_of_the_project_is_not_shown(tmp_path: Path, folder: Path) -> None:
    (tmp_path / ".git-credentials").write_text("https://me:TOKEN@example.com\n")
    (folder / "lab.compute").symlink_to(tmp_path / ".git-credentials")
    assert not [each for each in read_targets(folder.parent).diagnostics if "TOKEN" in repr(each)]


@pytest.mark.parametrize("text", ["password:\n  SESAME: [\n", "type: remote\npassword:\n- SESAME\n"])
def test_password_on_the_line_below_its_key_is_not_shown(folder: Path, text: str) -> None:
    (folder / "lab.compute").write_text(text)
    found = read_targets(folder.parent).diagnostics
    assert found
    assert not [each for each in found if "SESAME" in repr(each)]


# Machines


class Machine:
    """Returns any output."""

    def __init__(self, said: str, gpu: str = "Tesla T4, 535.161.08, 15360 MiB, 7.5\n") -> None:
        self.said, self.gpu = said, gpu
        self.lines: list[str] = []

    def run(self, command: Any, *, timeout: float) -> Completed:
        line = command if isinstance(command, str) else shlex.join(command)
        self.lines.append(line)
        return Completed(0, self.gpu if "nvidia-smi --" in line else self.said, "")

    def close(self) -> None:
        pass


def said(**parts: str) -> str:
    usual = {"system": "Linux 6.1 x86_64", "user": "me", "docker": "engine 28.2.2", **parts}
    return "".join(f"\n{check.MARK} {name} 0\n{text}\n" for name, text in usual.items())


@pytest.mark.parametrize(
    "greeting", ["Welcome to the lab\n", "Hello, dear user, of the lab\n", "\nnot, a, simulated\n"]
)
def test_greeting_of_a_shell_is_not_a_gpu(greeting: str) -> None:
    machine = Machine("", f"{greeting}Tesla T4, 535.161.08, 15360 MiB, 7.5\n")
    facts = nvidia_smi.ask(machine, 1.0)
    assert (facts.models, facts.simulated) == (("Tesla T4",), False)


def test_script_is_one_line_for_the_users_shell() -> None:
    machine = Machine(said(python="Python 3.11.2"))
    examine(machine, docker=False, gpu=False, timeout=1.0)
    assert "\n" not in machine.lines[0]


@pytest.mark.parametrize(
    "info",
    ['{"Runtimes": 1}', '{"DiscoveredDevices": [1]}', '{"DiscoveredDevices": 1}', "[" * 100_000],
    ids=["runtimes", "device", "devices", "deep"],
)
def test_malformed_answer_of_an_engine_fails_the_check(info: str) -> None:
    found = examine(Machine(said(info=info, hook="")), docker=True, gpu=True, timeout=1.0)
    assert not found.passed


def test_malformed_exit_code_fails_the_check() -> None:
    assert not examine(Machine(f"{check.MARK} system {'9' * 5000}\n"), docker=False, gpu=False, timeout=1.0).passed


# Passwords


@pytest.fixture
def memory() -> Iterator[Memory]:
    before, memory = keyring.core._keyring_backend, Memory()
    keyring.set_keyring(memory)
    yield memory
    keyring.core._keyring_backend = before
    KeyringBackend._classes -= {Memory}


def secret() -> Secret:
    found = Secret(lambda: "sesame")
    found()
    return found


def test_ctrl_c_during_a_slow_keyring_stores_no_password(
    folder: Path, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, pressed = within, threading.Event()

    def interrupted(seconds: float, call: Callable[[], Any]) -> Any:
        answer = real(seconds, call)
        if not pressed.is_set():
            pressed.set()
            raise KeyboardInterrupt
        return answer

    monkeypatch.setattr(passwords, "within", interrupted)
    with pytest.raises(KeyboardInterrupt):
        attach._write(folder.parent, replace(TARGET, password="ask"), None, secret())
    assert memory.kept == {}


def test_password_is_not_stored_if_files_cannot_be_written(folder: Path, memory: Memory) -> None:
    former = replace(TARGET, password=passwords.save_password("lab", passwords.account(TARGET), "former"))
    (folder / "lab.compute").write_text("type: [")
    with pytest.raises(Problem):
        attach._write(folder.parent, replace(TARGET, host_key=OTHER_KEY, password="ask"), former, secret())
    assert list(memory.kept.values()) == ["former"]


def test_file_cannot_remove_the_password_of_another_target(folder: Path, memory: Memory) -> None:
    reference = passwords.save_password("prod", passwords.account(TARGET), "of prod")
    attach._write(folder.parent, TARGET, replace(TARGET, password=reference), None)
    assert list(memory.kept.values()) == ["of prod"]
