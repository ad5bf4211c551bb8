"""What the command line adds to what a project's files say."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from gpuinfra.runner.jobs.order import Gpus

# Of one variable and of all of them: what Linux takes at most (MAX_ARG_STRLEN, and a quarter of the usual stack).
LONGEST_VARIABLE = 128 * 1024 - 1
MOST_IN_ALL = 2 * 1024 * 1024 - 64 * 1024

_SIZE = re.compile(r"(?P<number>[0-9]{1,12})\s*(?P<unit>[kmgt]?)(?:i?b)?", re.IGNORECASE)
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_GPU = re.compile(r"[0-9]{1,4}|(?:GPU|MIG)-[0-9A-Za-z/-]{1,80}")


@dataclass(frozen=True)
class Wishes:
    """How this one run is to be."""

    script: str
    """By its path in the project."""
    words: tuple[str, ...] = ()
    """Arguments that follow those of the run configuration."""
    gpus: Gpus | None = None
    """Those that were asked for; None where nothing was said."""
    memory: int | None = None
    shm_size: int | None = None
    timeout: float | None = None
    environment: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    build_secrets: dict[str, str] = field(default_factory=dict, repr=False)
    share: str | None = None
    """The folder of the machine that its jobs share, instead of the one that the target's file names."""
    require_gpu_use: bool = False
    rebuild: bool = False
    send_credentials: bool = False
    """Whether the target gets the user's Docker credentials, whoever made it a target."""


def parse_size(text: str) -> int | None:
    """`8g`, `512 MiB` or `64m` in bytes; None where it is no size."""
    found = _SIZE.fullmatch(text.strip())
    return int(found["number"]) << _UNITS[found["unit"].lower()] if found else None


def parse_gpus(text: str) -> Gpus | None:
    """`all`, so many as `2`, or certain ones as `0,1`, `device=0` or `GPU-…`; None where it is none of these."""
    plain = text.strip()
    if plain.casefold() == "all":
        return Gpus()
    if re.fullmatch("[1-9][0-9]{0,2}", plain):
        return Gpus(count=int(plain))
    ids = tuple(each.strip() for each in plain.removeprefix("device=").split(","))
    is_list = "," in plain or plain.startswith("device=") or not plain.isdigit()
    if is_list and len(set(ids)) == len(ids) and all(_GPU.fullmatch(each) for each in ids):
        return Gpus(ids=ids)
    return None


def too_large(environment: dict[str, str], command: tuple[str, ...]) -> str | None:
    """Why Linux would not start a program with these; None where it would."""
    for name, value in environment.items():
        size = len(name.encode("utf-8", "surrogateescape")) + len(value.encode("utf-8", "surrogateescape")) + 2
        if size > LONGEST_VARIABLE:
            return f"the variable `{name[:80]}` has {size:,} bytes; Linux takes {LONGEST_VARIABLE:,} in one"
    for word in command:
        if len(word.encode("utf-8", "surrogateescape")) > LONGEST_VARIABLE:
            return f"an argument has {len(word):,} characters; Linux takes {LONGEST_VARIABLE:,} bytes in one"
    pairs = sum(len(f"{name}={value}".encode("utf-8", "surrogateescape")) + 9 for name, value in environment.items())
    words = sum(len(word.encode("utf-8", "surrogateescape")) + 9 for word in command)
    if pairs + words > MOST_IN_ALL:
        return f"variables and arguments are {pairs + words:,} bytes; Linux takes about {MOST_IN_ALL:,} in all"
    return None
