"""Words as each reader takes them apart again."""

from __future__ import annotations

import re
from collections.abc import Iterable


def for_cron(command: str) -> str:
    """A command in a crontab, where a bare per cent sign is the end of a line."""
    return command.replace("%", r"\%")


def for_systemd(words: Iterable[str]) -> str:
    """Words of an `ExecStart=`. The first, a path, has specifiers, but no variables are put into it."""
    program, *arguments = words
    return " ".join([_quoted(program), *(_quoted(word.replace("$", "$$")) for word in arguments)])


def systemd_value(text: str) -> str:
    """One value of an `Environment=`."""
    return _quoted(text)


def systemd_pattern(path: str) -> str:
    """A path for an `EnvironmentFile=`, which knows no quotes and takes a name for a pattern."""
    return re.sub(r"([\\*?\[\]])", r"\\\1", path.replace("%", "%%"))


def _quoted(word: str) -> str:
    escaped = word.replace("%", "%%").replace("\\", "\\\\").replace('"', '\\"')
    return escaped if re.fullmatch(r"[A-Za-z0-9_./:=@%+,-]+", escaped) else f'"{escaped}"'
