"""Passwords in the keyring of the operating system, or nowhere: what a file has is a reference."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from gpuinfra.models.target import ASK, KEYRING, Target
from gpuinfra.runner.background import within
from gpuinfra.runner.connection.host_key import HostKey
from gpuinfra.runner.errors import HostKeyInvalid

if TYPE_CHECKING:
    from keyring.backend import KeyringBackend

# Below the program's own logger, so that `--verbose` shows it.
logger = logging.getLogger(f"gpuinfra.{__name__}")

# A keyring on D-Bus may never answer; one that is locked asks its user for another password first.
SECONDS = 30.0

T = TypeVar("T")


def account(target: Target) -> str:
    """Whose password it is. Bound to the host key: a file that names another machine must not get this one's."""
    return f"{target.username} at {HostKey.parse(target.host_key).fingerprint}"


def place(target: Target) -> tuple[str, str] | None:
    """The reference to a target's own password and whose it is, for those below; None where it has none in the keyring.

    A file may name the password of another target. It is neither sent to this one's machine nor forgotten with it.
    """
    if target.password != reference_to(target.name):
        return None
    try:
        return target.password, account(target)
    except HostKeyInvalid:
        return None  # no password was ever kept for it


def reference_to(name: str) -> str:
    """What the file of a target says whose password is in the keyring."""
    return f"{KEYRING}{name}"


def keep(name: str, user: str, password: str, *, seconds: float = SECONDS) -> str:
    """Keep it; the reference for the file: `keyring:NAME`, or `ask` where there is no keyring to keep it in."""

    def save(keyring: KeyringBackend) -> bool:
        keyring.set_password(_service(name), user, password)
        # Some take everything and keep nothing.
        return keyring.get_password(_service(name), user) == password

    return reference_to(name) if _ask(save, seconds) else ASK


def recall(reference: str, user: str, *, seconds: float = SECONDS) -> str | None:
    """Return the password, or None if the user has to type it."""
    service = _service_of(reference)
    return _ask(lambda keyring: keyring.get_password(service, user), seconds) if service else None


def forget(reference: str, user: str, *, seconds: float = SECONDS) -> bool:
    """Remove it from the keyring; False if the keyring did not answer, or refused. Absent is done."""
    service = _service_of(reference)
    if service is None:
        return True

    def delete(keyring: KeyringBackend) -> bool:
        # The same exception is raised for a password that is not there and for one that cannot be deleted.
        if keyring.get_password(service, user) is not None:
            keyring.delete_password(service, user)
        return True

    return _ask(delete, seconds) or False


def _service(name: str) -> str:
    return f"gpuinfra/{name}"


def _service_of(reference: str) -> str | None:
    return _service(reference.removeprefix(KEYRING)) if reference.startswith(KEYRING) else None


def _ask(question: Callable[[KeyringBackend], T], seconds: float) -> T | None:
    """What the keyring answers. One that is missing, locked, broken or silent is none."""

    def ask() -> T | None:
        # The library is an extra, and looks for keyrings with the first call.
        from keyring import get_keyring

        keyring = get_keyring()
        return question(keyring) if _is_safe(keyring) else None

    try:
        return within(seconds, ask)
    except Exception as error:  # noqa: BLE001, RUF100 what a keyring raises depends on whose it is
        # Its kind and not its words: they may have the password in them.
        logger.debug("no keyring: %s", type(error).__name__)
        return None


def _is_safe(keyring: KeyringBackend) -> bool:
    """Whether it is one of the system's: the library ranks those that write plain files, or nothing, below 1."""
    chained: list[KeyringBackend] = list(getattr(keyring, "backends", ()))
    return all(each.priority >= 1 for each in chained or [keyring])
