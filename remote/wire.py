"""Messages between client and machine: a kind, a length, and the bytes. See `runner.connection.remote_client`."""

from __future__ import annotations

import json
import struct
from typing import Any, BinaryIO

# What the start-up files of a user's shell print stands before it.
MARK = b"@@gpuinfra remote\n"
HEADER = struct.Struct("!cI")
JSON, DATA, ERROR, END = b"J", b"D", b"E", b"."


class RefusedError(Exception):
    """Something that cannot be done here. The client chooses its message by the code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class GoneError(Exception):
    """The client has hung up."""


class Wire:
    """Standard input and output, as messages."""

    def __init__(self, reader: BinaryIO, writer: BinaryIO) -> None:
        self._reader, self._writer = reader, writer

    def receive(self) -> tuple[bytes, bytes]:
        """The next message: its kind, and what is in it."""
        kind, length = HEADER.unpack(self._exactly(HEADER.size))
        return kind, self._exactly(length)

    def receive_json(self) -> dict[str, Any]:
        """The next message, which has to be an object."""
        kind, payload = self.receive()
        if kind != JSON:
            raise RefusedError("protocol", f"expected an object, and got {kind!r}")
        found: dict[str, Any] = json.loads(payload)
        return found

    def send(self, kind: bytes, payload: bytes) -> None:
        """One message. It leaves with the next `flush`, or earlier."""
        self._writer.write(HEADER.pack(kind, len(payload)))
        self._writer.write(payload)

    def send_json(self, value: dict[str, Any]) -> None:
        """An object, at once."""
        self.send(JSON, json.dumps(value).encode())
        self.flush()

    def send_error(self, code: str, message: str) -> None:
        """Why it cannot be done, at once."""
        self.send(ERROR, json.dumps({"code": code, "message": message}).encode())
        self.flush()

    def flush(self) -> None:
        """All that was sent leaves now."""
        self._writer.flush()

    def _exactly(self, count: int) -> bytes:
        parts = []
        while count:
            part = self._reader.read(count)
            if not part:
                raise GoneError()
            parts.append(part)
            count -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)
