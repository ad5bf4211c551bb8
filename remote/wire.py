"""Messages between client and machine: a kind, a length, and the content. See `runner.connection.remote_client`."""

from __future__ import annotations

import json
import struct
from typing import Any, BinaryIO

# Starts the output. The start-up files of a user's shell may print text before it.
MARK = b"@@gpuinfra remote\n"
HEADER = struct.Struct("!cI")
JSON, DATA, ERROR, END = b"J", b"D", b"E", b"."


class RefusedError(Exception):
    """The machine refuses a request. The client chooses its message by the code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class GoneError(Exception):
    """The client has disconnected."""


class Wire:
    """Sends and receives messages on standard input and output."""

    def __init__(self, reader: BinaryIO, writer: BinaryIO) -> None:
        self._reader, self._writer = reader, writer

    def receive(self) -> tuple[bytes, bytes]:
        """Return the kind and content of the next message."""
        kind, length = HEADER.unpack(self._exactly(HEADER.size))
        return kind, self._exactly(length)

    def receive_json(self) -> dict[str, Any]:
        """Return the next message, which must be an object."""
        kind, payload = self.receive()
        if kind != JSON:
            raise RefusedError("protocol", f"expected an object, got {kind!r}")
        found: dict[str, Any] = json.loads(payload)
        return found

    def send(self, kind: bytes, payload: bytes) -> None:
        """Send a message, at the latest with the next `flush`."""
        self._writer.write(HEADER.pack(kind, len(payload)))
        self._writer.write(payload)

    def send_json(self, value: dict[str, Any]) -> None:
        """Send an object at once."""
        self.send(JSON, json.dumps(value).encode())
        self.flush()

    def send_error(self, code: str, message: str) -> None:
        """Send an error at once."""
        self.send(ERROR, json.dumps({"code": code, "message": message}).encode())
        self.flush()

    def flush(self) -> None:
        """Send all buffered messages."""
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
