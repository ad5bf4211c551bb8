"""Ctrl-C while others' code waits: it must not come out of there as something else."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def interrupts_kept() -> Iterator[None]:
    """Raise KeyboardInterrupt where one was raised in here and another exception took its place.

    A second Ctrl-C while `threading.Condition` takes back its lock for the first becomes "release unlocked lock", which
    reads like a lost connection: the client would connect again instead of ending.
    """
    before = sys.exc_info()[1]
    try:
        yield
    except Exception as error:
        each: BaseException | None = error
        while each is not None and each is not before:
            if isinstance(each, KeyboardInterrupt):
                raise type(each) from error
            each = each.__context__
        raise
