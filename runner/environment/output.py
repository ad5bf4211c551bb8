"""What an engine says while it builds: lines for the one who watches, without secrets, and how it ends."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable
from typing import Any

from gpuinfra.runner.environment.secrets import without

LAST_LINES = 20
LONGEST_LINE = 4096
STEP, REFUSAL, HELP = "gpuinfra: ", "gpuinfra-refusal: ", "gpuinfra-help: "
# The engine's own words about stages and layers, and the colours that it gives to what is said on standard error.
_ENGINES_OWN = re.compile(r"Step \d+/\d+ : | ---> |(?:Removing intermediate|Successfully (?:built|tagged)) ")
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class BuildOutput:
    """Takes an engine's answer as it comes, in whatever pieces."""

    def __init__(self, output: Callable[[str], None], step: Callable[[str], None], secrets: tuple[str, ...]) -> None:
        self._output, self._step, self._secrets = output, step, secrets
        self._bytes, self._text = b"", ""
        self.last: deque[str] = deque(maxlen=LAST_LINES)
        self.error: str | None = None
        """Why the engine gave up."""
        self.refusal: str | None = None
        """Why our script did."""
        self.help: str | None = None
        self.image: str | None = None
        """The id of the last image that came of it: at the end, the one that was asked for."""

    def hear(self, data: bytes) -> None:
        """Some more of the answer."""
        *messages, self._bytes = (self._bytes + data).split(b"\n")
        for message in messages:
            self._message(message)

    def end(self) -> None:
        """There is no more."""
        self._message(self._bytes)
        self._bytes = b""
        self._line(self._text)
        self._text = ""

    def _message(self, message: bytes) -> None:
        try:
            found: Any = json.loads(message or b"{}")
        except ValueError:
            found = {"stream": message.decode("utf-8", "replace") + "\n"}
        if not isinstance(found, dict):
            return
        detail = found.get("errorDetail")
        if error := (detail.get("message") if isinstance(detail, dict) else None) or found.get("error"):
            self.error = without(self._secrets, str(error))
        if isinstance(aux := found.get("aux"), dict) and aux.get("ID"):
            self.image = str(aux["ID"])
        *lines, self._text = (self._text + str(found.get("stream") or "")).split("\n")
        for line in lines:
            self._line(line)
        if len(self._text) > 2 * LONGEST_LINE:
            self._shorten()

    def _shorten(self) -> None:
        """A line without end is shown in parts: it must not fill the memory. No secret may be cut in two by that."""
        self._text = without(self._secrets, self._text)
        while len(self._text) > 2 * LONGEST_LINE:
            self._line(self._text[:LONGEST_LINE])
            self._text = self._text[LONGEST_LINE:]

    def _line(self, line: str) -> None:
        # A bar that is drawn over itself is shown as it was left.
        line = _COLOUR.sub("", line).rstrip("\r ").rpartition("\r")[2]
        if not line or _ENGINES_OWN.match(line):
            return
        line = without(self._secrets, line)
        if line.startswith(REFUSAL):
            self.refusal = line.removeprefix(REFUSAL)
        elif line.startswith(HELP):
            self.help = line.removeprefix(HELP)
        else:
            if line.startswith(STEP):
                self._step(line.removeprefix(STEP))
            self.last.append(line)
            self._output(line)
