"""Passwords and secrets in the keyring of the operating system. Target files contain only a reference."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from gpuinfra.models.target import ASK, KEYRING, Target
from gpuinfra.runner.connection.known_hosts import HostKey
from gpuinfra.runner.errors import HostKeyInvalid
from gpuinfra.runner.progress import within

if TYPE_CHECKING:
    from keyring.backend import KeyringBackend

# A child of the program's logger, so that `--verbose` shows it.
logger = logging.getLogger(__name__)

# A keyring on D-Bus may never answer, and a locked one first asks the user to unlock it.
TIMEOUT_SECONDS = 30.0
# The service of secrets for jobs; the services of targets' passwords have a slash.
SECRETS = "gpuinfra"

T = TypeVar("T")


def account(target: Target) -> str:
    """Return the keyring account of a target's password. It has the host key, so that no other machine gets it."""
    return f"{target.username} at {HostKey.parse(target.host_key).fingerprint}"


def keyring_entry(target: Target) -> tuple[str, str] | None:
    """Return the reference and the account of a target's password; None if the keyring has no password of this target.

    A target file may refer to the password of another target. That one is neither sent to this target nor deleted.
    """
    if target.password != reference_to(target.name):
        return None
    try:
        return target.password, account(target)
    except HostKeyInvalid:
        return None  # no password was ever stored for it


def reference_to(name: str) -> str:
    """Return the reference for a target file to a password in the keyring."""
    return f"{KEYRING}{name}"


def save_password(name: str, user: str, password: str, *, seconds: float = TIMEOUT_SECONDS) -> str:
    """Store a password and return its reference: `keyring:NAME`, or `ask` if it cannot be stored."""

    def save(keyring: KeyringBackend) -> bool:
        keyring.set_password(_service(name), user, password)
        # Some keyrings accept a password but do not store it.
        return keyring.get_password(_service(name), user) == password

    return reference_to(name) if _ask(save, seconds) else ASK


def find_password(reference: str, user: str, *, seconds: float = TIMEOUT_SECONDS) -> str | None:
    """Return a stored password, or None if the user has to type it."""
    service = _service_of(reference)
    return _ask(lambda keyring: keyring.get_password(service, user), seconds) if service else None


def find_secret(name: str, *, seconds: float = TIMEOUT_SECONDS) -> str | None:
    """Return a job's secret that the user stored with `keyring set gpuinfra NAME`, or None."""
    return _ask(lambda keyring: keyring.get_password(SECRETS, name), seconds)


def delete_password(reference: str, user: str, *, seconds: float = TIMEOUT_SECONDS) -> bool:
    """Delete a password. Return False if the keyring did not answer or refused; an absent password is a success."""
    service = _service_of(reference)
    if service is None:
        return True

    def delete(keyring: KeyringBackend) -> bool:
        # Keyrings raise the same exception for an absent password as for one that cannot be deleted.
        if keyring.get_password(service, user) is not None:
            keyring.delete_password(service, user)
        return True

    return _ask(delete, seconds) or False


def _service(name: str) -> str:
    return f"gpuinfra/{name}"


def _service_of(reference: str) -> str | None:
    return _service(reference.removeprefix(KEYRING)) if reference.startswith(KEYRING) else None


def _ask(question: Callable[[KeyringBackend], T], seconds: float) -> T | None:
    """Return the keyring's answer, or None if it is missing, unsafe, locked, broken or silent."""

    def ask() -> T | None:
        # The library is optional, and the first call searches for keyrings.
        from keyring import get_keyring

        keyring = get_keyring()
        return question(keyring) if _is_safe(keyring) else None

    try:
        return within(seconds, ask)
    except Exception as error:  # noqa: BLE001, RUF100 keyrings may raise any exception
        # Log only the type: the message may contain the password.
        logger.debug("no keyring: %s", type(error).__name__)
        return None


def _is_safe(keyring: KeyringBackend) -> bool:
    """Return whether the keyring encrypts: the library gives those that write plain files a priority below 1."""
    chained: list[KeyringBackend] = list(getattr(keyring, "backends", ()))
    return all(each.priority >= 1 for each in chained or [keyring])
