"""Passwords are stored only in the system's keyring, here a fake one."""

import builtins
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import keyring
import pytest
from keyring import errors
from keyring.backend import KeyringBackend
from keyring.backends import chainer, fail, null

from gpuinfra.models.target import Target
from gpuinfra.runner.connection import passwords

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0Z0OTJvTXCTQOXWPUDF6wvEYGcUZtC4xRuWzWvfwKx"
OTHER_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ1Z0OTJvTXCTQOXWPUDF6wvEYGcUZtC4xRuWzWvfwKx"
TARGET = Target("lab", "lab", "remote", "203.0.113.7", 22, "me", KEY)


class Memory(KeyringBackend):
    """Stores passwords in memory."""

    priority = 5

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kept: dict[tuple[str, str], str] = {}

    def set_password(self, service: str, username: str, password: str) -> None:
        self.kept[service, username] = password

    def get_password(self, service: str, username: str) -> str | None:
        return self.kept.get((service, username))

    def delete_password(self, service: str, username: str) -> None:
        if self.kept.pop((service, username), None) is None:
            raise errors.PasswordDeleteError("no such password")


class PlainFile(Memory):
    """Has the priority that the library gives to keyrings in plain files."""

    priority = 0.5  # type: ignore[assignment]


class Broken(Memory):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def get_password(self, service: str, username: str) -> str | None:
        raise self.error

    def set_password(self, service: str, username: str, password: str) -> None:
        raise self.error

    def delete_password(self, service: str, username: str) -> None:
        raise self.error


class Silent(Memory):
    """Never answers, like a D-Bus service that hangs."""

    def get_password(self, service: str, username: str) -> str | None:
        threading.Event().wait(60)
        return None

    def set_password(self, service: str, username: str, password: str) -> None:
        threading.Event().wait(60)


class Forgetful(Memory):
    """Accepts passwords but does not store them."""

    def set_password(self, service: str, username: str, password: str) -> None:
        pass


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = keyring.core._keyring_backend
    yield
    keyring.core._keyring_backend = before
    # Classes register themselves with the library, which would choose among them.
    KeyringBackend._classes -= {Memory, PlainFile, Broken, Silent, Forgetful}


@pytest.fixture
def memory() -> Memory:
    memory = Memory()
    keyring.set_keyring(memory)
    return memory


def test_password_is_saved_found_and_deleted(memory: Memory) -> None:
    reference = passwords.save_password("lab", "me", "secret")
    assert reference == "keyring:lab"
    assert memory.kept == {("gpuinfra/lab", "me"): "secret"}
    assert passwords.find_password(reference, "me") == "secret"
    assert passwords.find_password(reference, "you") is None
    assert passwords.delete_password(reference, "me")
    assert memory.kept == {}
    assert passwords.delete_password(reference, "me")
    assert passwords.find_password(reference, "me") is None


def test_secret_of_a_job_is_not_a_password_of_a_target(memory: Memory) -> None:
    memory.set_password("gpuinfra", "WANDB_API_KEY", "secret")
    passwords.save_password("WANDB_API_KEY", "me", "password")
    assert passwords.find_secret("WANDB_API_KEY") == "secret"
    assert passwords.find_secret("me") is None


def test_reference_to_ask_does_not_use_the_keyring(memory: Memory) -> None:
    memory.kept["gpuinfra/ask", "me"] = "secret"
    assert passwords.find_password("ask", "me") is None
    passwords.delete_password("ask", "me")
    assert memory.kept


@pytest.mark.parametrize(
    "backend",
    [
        fail.Keyring(),  # type: ignore[no-untyped-call]
        null.Keyring(),  # type: ignore[no-untyped-call]
        PlainFile(),
        Forgetful(),
        Broken(errors.KeyringLocked("secret")),
        Broken(errors.NoKeyringError("secret")),
        Broken(RuntimeError("secret")),
        Broken(OSError(2, "no bus")),
    ],
    ids=lambda backend: f"{type(backend).__module__}.{type(backend).__name__}",
)
def test_unusable_keyring_leaks_no_password(backend: KeyringBackend, caplog: pytest.LogCaptureFixture) -> None:
    keyring.set_keyring(backend)
    with caplog.at_level("DEBUG", "gpuinfra"):
        assert passwords.save_password("lab", "me", "secret") == "ask"
        assert passwords.find_password("keyring:lab", "me") is None
        is_deleted = passwords.delete_password("keyring:lab", "me")
    # Only a keyring that answers can confirm that no password is left.
    assert is_deleted is isinstance(backend, Forgetful)
    assert "secret" not in caplog.text
    assert not getattr(backend, "kept", None)


def test_chain_with_an_unsafe_keyring_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    links: list[KeyringBackend] = [Memory(), PlainFile()]
    monkeypatch.setattr(chainer.ChainerBackend, "backends", links)
    keyring.set_keyring(chainer.ChainerBackend())  # type: ignore[no-untyped-call]
    assert passwords.save_password("lab", "me", "secret") == "ask"
    del links[1]
    assert passwords.save_password("lab", "me", "secret") == "keyring:lab"


def test_hanging_keyring_times_out() -> None:
    keyring.set_keyring(Silent())
    began = time.monotonic()
    assert passwords.save_password("lab", "me", "secret", seconds=0.05) == "ask"
    assert passwords.find_password("keyring:lab", "me", seconds=0.05) is None
    assert time.monotonic() - began < 30


def test_password_is_not_saved_without_the_keyring_library(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **more: Any) -> Any:
        if name == "keyring":
            raise ModuleNotFoundError(name)
        return real(name, *arguments, **more)

    monkeypatch.delitem(sys.modules, "keyring")
    monkeypatch.setattr(builtins, "__import__", without)
    assert passwords.save_password("lab", "me", "secret") == "ask"
    assert passwords.find_password("keyring:lab", "me") is None


def test_password_of_another_target_is_not_used() -> None:
    assert passwords.keyring_entry(replace(TARGET, password="keyring:lab")) == (
        "keyring:lab",
        passwords.account(TARGET),
    )
    for password in ("keyring:prod", "keyring:", "ask", None):
        assert passwords.keyring_entry(replace(TARGET, password=password)) is None
    assert passwords.keyring_entry(replace(TARGET, password="keyring:lab", host_key="none")) is None


def test_password_is_not_given_to_a_machine_with_another_host_key(memory: Memory) -> None:
    reference = passwords.save_password("lab", passwords.account(TARGET), "secret")
    moved = Target("lab", "lab", "remote", "198.51.100.9", 22, "me", KEY)
    other = Target("lab", "lab", "remote", "203.0.113.7", 22, "me", OTHER_KEY)
    assert passwords.find_password(reference, passwords.account(moved)) == "secret"
    assert passwords.find_password(reference, passwords.account(other)) is None
