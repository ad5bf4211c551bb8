"""The output of an image build: lines for the user, without secrets, and how the build ended."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable
from typing import Any

from gpuinfra.runner.docker.stream import MessageReader
from gpuinfra.runner.environment.secrets import redact

LAST_LINES = 20
MAX_LINE = 4096
STEP_MARK, REFUSAL_MARK, HELP_MARK = "gpuinfra: ", "gpuinfra-refusal: ", "gpuinfra-help: "
# The engine's lines about stages and layers, and the colours that it adds to standard error.
_ENGINE_LINE = re.compile(r"Step \d+/\d+ : | ---> |(?:Removing intermediate|Successfully (?:built|tagged)) ")
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class BuildOutput:
    """Reads an engine's report of a build as it arrives."""

    def __init__(self, output: Callable[[str], None], step: Callable[[str], None], secrets: tuple[str, ...]) -> None:
        self._output, self._step, self._secrets = output, step, secrets
        self._reader, self._text = MessageReader(), ""
        self.last: deque[str] = deque(maxlen=LAST_LINES)
        self.error: str | None = None
        """The engine's error."""
        self.refusal: str | None = None
        """The error of the installation script."""
        self.help: str | None = None
        self.image: str | None = None
        """The ID of the last image that was built: at the end, the requested one."""

    def add(self, data: bytes) -> None:
        """Read the next part of the report."""
        for message in self._reader.add(data):
            self._message(message)

    def end(self) -> None:
        """Read the last message, after all parts."""
        self._message(self._reader.rest)
        self._line(self._text)
        self._text = ""

    def _message(self, message: bytes) -> None:
        try:
            found: Any = json.loads(message or b"{}")
        except (ValueError, RecursionError):
            found = {"stream": message.decode("utf-8", "replace") + "\n"}
        if not isinstance(found, dict):
            return
        detail = found.get("errorDetail")
        if error := (detail.get("message") if isinstance(detail, dict) else None) or found.get("error"):
            self.error = redact(self._secrets, str(error))
        if isinstance(aux := found.get("aux"), dict) and aux.get("ID"):
            self.image = str(aux["ID"])
        *lines, self._text = (self._text + str(found.get("stream") or "")).split("\n")
        for line in lines:
            self._line(line)
        if len(self._text) > 2 * MAX_LINE:
            self._shorten()

    def _shorten(self) -> None:
        """Print the first parts of a very long line, to limit its size in memory. No secret is split between parts."""
        self._text = redact(self._secrets, self._text)
        while len(self._text) > 2 * MAX_LINE:
            self._line(self._text[:MAX_LINE])
            self._text = self._text[MAX_LINE:]

    def _line(self, line: str) -> None:
        # Of a progress bar that overwrites itself, only the last state is shown.
        line = _COLOUR.sub("", line).rstrip("\r ").rpartition("\r")[2]
        if not line or _ENGINE_LINE.match(line):
            return
        line = redact(self._secrets, line)
        if line.startswith(REFUSAL_MARK):
            self.refusal = line.removeprefix(REFUSAL_MARK)
        elif line.startswith(HELP_MARK):
            self.help = line.removeprefix(HELP_MARK)
        else:
            if line.startswith(STEP_MARK):
                self._step(line.removeprefix(STEP_MARK))
            self.last.append(line)
            self._output(line)
