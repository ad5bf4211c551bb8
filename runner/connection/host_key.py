"""A machine's public host key: what is compared, and what people compare."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass

from gpuinfra.runner.errors import HostKeyInvalid

# How a key of each kind signs, the best first. SHA-1, as `ssh-rsa` itself uses, is not secure.
ALGORITHMS = {
    "ssh-ed25519": ("ssh-ed25519",),
    "ecdsa-sha2-nistp256": ("ecdsa-sha2-nistp256",),
    "ecdsa-sha2-nistp384": ("ecdsa-sha2-nistp384",),
    "ecdsa-sha2-nistp521": ("ecdsa-sha2-nistp521",),
    "ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256"),
}


@dataclass(frozen=True, slots=True)
class HostKey:
    """The kind of key, and its bytes as they go over the wire."""

    kind: str
    blob: bytes

    @classmethod
    def parse(cls, text: str) -> HostKey:
        """`ssh-ed25519 AAAA…`, with or without a comment."""
        kind, _, rest = text.strip().partition(" ")
        try:
            blob = base64.b64decode(rest.split()[0], validate=True)
        except (IndexError, ValueError):  # binascii.Error is one, and text that is not ASCII is another
            blob = b""
        # The blob says its kind once more; what follows is the key.
        beginning = len(kind).to_bytes(4, "big") + kind.encode()
        if kind not in ALGORITHMS or not blob.startswith(beginning) or len(blob) <= len(beginning):
            raise HostKeyInvalid(
                f"the machine's host key is `{text[:80]}`; expected a public key such as `ssh-ed25519 AAAA…`"
            )
        return cls(kind, blob)

    @property
    def algorithms(self) -> tuple[str, ...]:
        """What to agree on with the machine, so that this key is the one it shows."""
        return ALGORITHMS[self.kind]

    @property
    def fingerprint(self) -> str:
        """As `ssh-keygen -l` prints it."""
        return f"SHA256:{base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip('=')}"

    def __str__(self) -> str:
        return f"{self.kind} {base64.b64encode(self.blob).decode()}"
