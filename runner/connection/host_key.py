"""A machine's public host key and its fingerprint."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass

from gpuinfra.runner.errors import HostKeyInvalid

# The signature algorithms of each key type, the best first; without SHA-1, which `ssh-rsa` itself uses.
ALGORITHMS = {
    "ssh-ed25519": ("ssh-ed25519",),
    "ecdsa-sha2-nistp256": ("ecdsa-sha2-nistp256",),
    "ecdsa-sha2-nistp384": ("ecdsa-sha2-nistp384",),
    "ecdsa-sha2-nistp521": ("ecdsa-sha2-nistp521",),
    "ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256"),
}


@dataclass(frozen=True, slots=True)
class HostKey:
    """The type of a key, and its bytes as SSH sends them."""

    kind: str
    blob: bytes

    @classmethod
    def parse(cls, text: str) -> HostKey:
        """Return the key of a text such as `ssh-ed25519 AAAA…`, with or without a comment, or raise HostKeyInvalid."""
        kind, _, rest = text.strip().partition(" ")
        try:
            blob = base64.b64decode(rest.split()[0], validate=True)
        except (IndexError, ValueError):  # ValueError also for a binascii.Error and for text that is not ASCII
            blob = b""
        # The bytes repeat the type; the key follows.
        prefix = len(kind).to_bytes(4, "big") + kind.encode()
        if kind not in ALGORITHMS or not blob.startswith(prefix) or len(blob) <= len(prefix):
            raise HostKeyInvalid(
                f"the machine's host key is `{text[:80]}`; expected a public key such as `ssh-ed25519 AAAA…`"
            )
        return cls(kind, blob)

    @property
    def algorithms(self) -> tuple[str, ...]:
        """The signature algorithms to offer, so that the machine shows this key and not another one."""
        return ALGORITHMS[self.kind]

    @property
    def fingerprint(self) -> str:
        """The fingerprint as `ssh-keygen -l` prints it."""
        return f"SHA256:{base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip('=')}"

    def __str__(self) -> str:
        return f"{self.kind} {base64.b64encode(self.blob).decode()}"
