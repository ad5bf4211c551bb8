"""Find the private keys for a login, the most likely first."""

from __future__ import annotations

import base64
import binascii
import contextlib
import io
import os
import re
import shlex
import socket
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from paramiko.agent import AgentKey, AgentSSH

from gpuinfra.models.ssh import PATH, own_private_key
from gpuinfra.models.target import VARIABLE, Target

# The names under which `ssh-keygen` saves a key by default.
DEFAULT_NAMES = ("id_ed25519", "id_ecdsa", "id_rsa")
# The largest key of `ssh-keygen`, RSA with 16384 bits, has 13,000 bytes.
MAX_KEY_BYTES = 64 << 10
KEY_CLASSES: tuple[tuple[type, type[paramiko.PKey]], ...] = (
    (Ed25519PrivateKey, paramiko.Ed25519Key),
    (EllipticCurvePrivateKey, paramiko.ECDSAKey),
    (RSAPrivateKey, paramiko.RSAKey),
)


class LoginKeys:
    """Yields the identity, the keys of the SSH agent and the user's default keys, each loaded only when needed."""

    def __init__(self, identity: str | None, timeout: float) -> None:
        self._identity, self._timeout = Path(identity) if identity else None, timeout
        self._agent: _Agent | None = None
        self.identity_error: UnusableKeyError | None = None
        """Why the identity cannot be used, once it was tried; None if the SSH agent has it."""

    def __iter__(self) -> Iterator[tuple[str, paramiko.PKey]]:
        """Yield each key once, with its source."""
        seen: set[bytes] = set()
        for source, key in self._all():
            if key.asbytes() not in seen:
                seen.add(key.asbytes())
                yield source, key

    def _all(self) -> Iterator[tuple[str, paramiko.PKey]]:
        wanted: bytes | None = None
        if self._identity:
            try:
                yield str(self._identity), load(self._identity)
            except UnusableKeyError as error:
                self.identity_error, wanted = error, _read_public_key(self._identity)
        self._agent = _Agent(self._timeout)
        # The agent may have the key of the locked identity. Try that first: machines allow only a few attempts.
        keys = sorted(self._agent.signers(), key=lambda key: key.asbytes() != wanted)
        if wanted and keys and keys[0].asbytes() == wanted:
            self.identity_error = None
        yield from (("the SSH agent", key) for key in keys)
        for file in default_files():
            with contextlib.suppress(UnusableKeyError):
                yield str(file), load(file)

    def close(self) -> None:
        if self._agent:
            self._agent.close()


class UnusableKeyError(Exception):
    """A private key cannot be used; `help` says what to do."""

    def __init__(self, reason: str, help: str | None = None) -> None:  # noqa: A002 the name in Diagnostic
        super().__init__(reason)
        self.help = help


def load(file: Path) -> paramiko.PKey:
    """Return the private key in a file, or raise UnusableKeyError."""
    help_line = f"add it to the SSH agent for this session: ssh-add {shlex.quote(str(file))}"
    try:
        return _parse(_read(file))
    except OSError as error:
        raise UnusableKeyError(f"`{file}` cannot be read: {error.strerror}") from error
    except (TypeError, paramiko.PasswordRequiredException) as error:
        # `cryptography` raises TypeError if the key has a passphrase.
        reason = f"`{file}` is locked by a passphrase, and the SSH agent does not have it"
        raise UnusableKeyError(reason, help_line) from error
    except (ValueError, UnsupportedAlgorithm, paramiko.SSHException) as error:
        raise UnusableKeyError(f"`{file}` is not a private key of a supported type", help_line) from error


def _read(file: Path) -> bytes:
    """Return the content of a regular file. The path may come from an untrusted repository."""
    # Check before opening: opening a pipe waits for a writer, and opening a device may have effects.
    found = file.stat()
    if not stat.S_ISREG(found.st_mode):
        raise UnusableKeyError(f"`{file}` is not a regular file")
    # Endless files of the kernel have the size 0.
    if not 0 < found.st_size <= MAX_KEY_BYTES:
        raise UnusableKeyError(f"`{file}` has {found.st_size} bytes, so it is not a key")
    with file.open("rb") as stream:
        return stream.read(MAX_KEY_BYTES)


def _parse(content: bytes) -> paramiko.PKey:
    # Not paramiko's `from_path`: it offers a certificate next to the key instead, which the machine does not know.
    try:
        loaded: object = serialization.load_ssh_private_key(content, None)
    except ValueError:
        loaded = serialization.load_pem_private_key(content, None)  # the format of OpenSSH before 7.8
    for kind, key_class in KEY_CLASSES:
        if isinstance(loaded, kind):
            return key_class.from_private_key(io.StringIO(content.decode("utf-8")))
    raise ValueError(type(loaded).__name__)


def default_files() -> Iterator[Path]:
    """Yield the user's private keys in the default places of OpenSSH, and the key that gpuinfra created."""
    try:
        folder = Path.home() / ".ssh"
    except RuntimeError:  # HOME is not set
        return
    yield from (folder / name for name in DEFAULT_NAMES if (folder / name).is_file())
    if own := own_private_key():
        yield own


def _read_public_key(identity: Path) -> bytes | None:
    with contextlib.suppress(UnusableKeyError, OSError, ValueError, IndexError, binascii.Error):
        return base64.b64decode(_read(Path(f"{identity}.pub")).split()[1])
    return None


class _Agent(AgentSSH):
    """The user's SSH agent, if one runs. Unlike paramiko's class, it has a timeout."""

    def __init__(self, timeout: float) -> None:
        super().__init__()
        self._link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._link.settimeout(timeout)
        # Ignore an agent that has ended or sends invalid data.
        with contextlib.suppress(Exception):
            self._link.connect(os.environ["SSH_AUTH_SOCK"])
            self._connect(self._link)  # type: ignore[attr-defined]  # paramiko's own subclass does the same

    def signers(self) -> list[_Signer]:
        return [_Signer(self, key.blob, key.comment) for key in self.get_keys()]

    def close(self) -> None:
        self._link.close()


class _Signer(AgentKey):
    """A key of the agent. If the agent does not sign, for example because the user declines, the login is refused."""

    def sign_ssh_data(self, data: Any, algorithm: str | None = None) -> Any:
        """Return the signature, or no bytes: an exception would end the connection before the other keys are tried."""
        try:
            return super().sign_ssh_data(data, algorithm)
        except (paramiko.SSHException, OSError):
            return b""


def identity_of(public_key: str, workspace: Path | None = None) -> str | None:
    """Return the private key next to `admin.sshPublicKey`: the same path without `.pub`, if that file exists.

    A relative path starts in the workspace, by default the current folder. Return None if the spec contains the key
    itself: then the SSH agent or the user's default keys are tried.
    """
    if not re.fullmatch(PATH, public_key) or VARIABLE in public_key:
        return None
    try:
        private = Path(public_key.removesuffix(".pub")).expanduser()
    except RuntimeError:  # `~name` of an unknown user
        return None
    private = (workspace or Path()).absolute() / private
    return str(private) if private.is_file() else None


def with_own_key(target: Target) -> Target:
    """Return the target with the key that gpuinfra created as another identity: the machine may know only that one."""
    own = own_private_key()
    if own is None or target.identity == str(own):
        return target
    # With a key on its command line, OpenSSH does not try the default files.
    defaults = () if target.identity else default_files()
    return replace(target, more_identities=tuple(dict.fromkeys(map(str, (*defaults, own)))))
