"""Private keys that a login can use, the most likely first."""

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

from gpuinfra.models.keys import PATH, own_private_key
from gpuinfra.models.target import VARIABLE, Target

# The names under which `ssh-keygen` saves a key by default.
DEFAULT_NAMES = ("id_ed25519", "id_ecdsa", "id_rsa")
# Bytes; the longest that `ssh-keygen` makes, RSA of 16384 bits, has 13 thousand.
LARGEST = 64 << 10
KINDS: tuple[tuple[type, type[paramiko.PKey]], ...] = (
    (Ed25519PrivateKey, paramiko.Ed25519Key),
    (EllipticCurvePrivateKey, paramiko.ECDSAKey),
    (RSAPrivateKey, paramiko.RSAKey),
)


class Keys:
    """The identity, the SSH agent's keys, the user's default ones: each looked for when its turn comes, and once."""

    def __init__(self, identity: str | None, timeout: float) -> None:
        self._identity, self._timeout = Path(identity) if identity else None, timeout
        self._agent: _Agent | None = None
        self.trouble: UnusableError | None = None
        """What is wrong with the identity, once it was looked at, unless the agent has it."""

    def __iter__(self) -> Iterator[tuple[str, paramiko.PKey]]:
        """Each key with where it is from."""
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
            except UnusableError as error:
                self.trouble, wanted = error, _public_half(self._identity)
        self._agent = _Agent(self._timeout)
        # It may hold the very key whose file is locked; that one first: a machine accepts only a few attempts.
        held = sorted(self._agent.signers(), key=lambda key: key.asbytes() != wanted)
        if wanted and held and held[0].asbytes() == wanted:
            self.trouble = None
        yield from (("the SSH agent", key) for key in held)
        for file in default_files():
            with contextlib.suppress(UnusableError):
                yield str(file), load(file)

    def close(self) -> None:
        """The agent signs no more."""
        if self._agent:
            self._agent.close()


class UnusableError(Exception):
    """A private key that cannot be used by itself; `help` is what to do about it."""

    def __init__(self, reason: str, help: str | None = None) -> None:  # noqa: A002 the diagnostic's own word
        super().__init__(reason)
        self.help = help


def load(file: Path) -> paramiko.PKey:
    """The private key in a file."""
    unlock = f"let the SSH agent have it for this session: ssh-add {shlex.quote(str(file))}"
    try:
        return _parsed(_content(file))
    except OSError as error:
        raise UnusableError(f"`{file}` cannot be read: {error.strerror}") from error
    except (TypeError, paramiko.PasswordRequiredException) as error:
        # A TypeError is how `cryptography` says that there is a passphrase.
        raise UnusableError(
            f"`{file}` is locked by a passphrase, and the SSH agent does not have it", unlock
        ) from error
    except (ValueError, UnsupportedAlgorithm, paramiko.SSHException) as error:
        raise UnusableError(f"`{file}` is not a private key of a kind that is known here", unlock) from error


def _content(file: Path) -> bytes:
    """All of a plain file. The path may come from a repository of others: it may lead to a file without end."""
    # Looked at before it is opened: to open a pipe is to wait for a writer, and some devices take it for an order.
    found = file.stat()
    if not stat.S_ISREG(found.st_mode):
        raise UnusableError(f"`{file}` is not a plain file")
    # What the kernel makes up has no size.
    if not 0 < found.st_size <= LARGEST:
        raise UnusableError(f"`{file}` has {found.st_size} bytes, which no key has")
    with file.open("rb") as stream:
        return stream.read(LARGEST)


def _parsed(content: bytes) -> paramiko.PKey:
    # Not by paramiko's `from_path`: a certificate next to the key would be shown instead of it, and the machine knows
    # the key alone.
    try:
        loaded: object = serialization.load_ssh_private_key(content, None)
    except ValueError:
        loaded = serialization.load_pem_private_key(content, None)  # as OpenSSH wrote them before 7.8
    for kind, key_class in KINDS:
        if isinstance(loaded, kind):
            return key_class.from_private_key(io.StringIO(content.decode("utf-8")))
    raise ValueError(type(loaded).__name__)


def default_files() -> Iterator[Path]:
    """The user's private keys where OpenSSH looks for them, and the one that gpuinfra has created."""
    try:
        folder = Path.home() / ".ssh"
    except RuntimeError:  # the home folder is unknown
        return
    yield from (folder / name for name in DEFAULT_NAMES if (folder / name).is_file())
    if own := own_private_key():
        yield own


def _public_half(identity: Path) -> bytes | None:
    with contextlib.suppress(UnusableError, OSError, ValueError, IndexError, binascii.Error):
        return base64.b64decode(_content(Path(f"{identity}.pub")).split()[1])
    return None


class _Agent(AgentSSH):
    """The user's SSH agent, if there is one. Unlike paramiko's own, it has a timeout."""

    def __init__(self, timeout: float) -> None:
        super().__init__()
        self._link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._link.settimeout(timeout)
        # An agent that is gone, or that talks nonsense, is none.
        with contextlib.suppress(Exception):
            self._link.connect(os.environ["SSH_AUTH_SOCK"])
            self._connect(self._link)  # type: ignore[attr-defined]  # for subclasses; it is how paramiko's own does it

    def signers(self) -> list[_Signer]:
        """The keys that it holds."""
        return [_Signer(self, key.blob, key.comment) for key in self.get_keys()]

    def close(self) -> None:
        """Hang up."""
        self._link.close()


class _Signer(AgentKey):
    """A key that the agent holds. One that it will not sign with, as when its user says no, is one that is refused."""

    def sign_ssh_data(self, data: Any, algorithm: str | None = None) -> Any:
        """The agent's signature, or none. An exception would end the whole connection, and with it the other keys."""
        try:
            return super().sign_ssh_data(data, algorithm)
        except (paramiko.SSHException, OSError):
            return b""


def identity_of(public_key: str, workspace: Path | None = None) -> str | None:
    """The private key beside `admin.sshPublicKey`: its path without `.pub`, if that file is there.

    A relative path begins in the workspace; left out, that is the current folder. None for a key that stands in the
    spec itself: then the SSH agent or the user's own keys have to do.
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
    """Let OpenSSH also try the key that gpuinfra created: the machine may have been made with it."""
    own = own_private_key()
    if own is None or target.identity == str(own):
        return target
    # With any key on its command line, OpenSSH tries none of the usual files by itself.
    usual = () if target.identity else default_files()
    return replace(target, more_identities=tuple(dict.fromkeys(map(str, (*usual, own)))))
