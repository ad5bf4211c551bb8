"""Requests that a fault holds back: each waits, alone, until it is let go, its client is gone, or its time is over."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request

LONGEST = 60.0
"""In real seconds: a client that waits longer has given up itself."""


class Holds:
    """Who is held by which fault. None of it outlives the server, as their connections do not."""

    def __init__(self) -> None:
        self._held: dict[asyncio.Event, dict[str, Any]] = {}

    async def hold(self, request: Request, fault: dict[str, Any]) -> None:
        """Come back when there is no more reason to wait. The request was read to its end."""
        released = asyncio.Event()
        self._held[released] = fault
        reasons = {asyncio.ensure_future(released.wait()), asyncio.ensure_future(_disconnected(request))}
        try:
            await asyncio.wait(reasons, timeout=LONGEST, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._held.pop(released, None)
            for reason in reasons:
                reason.cancel()

    def release(self) -> None:
        """Let all go; from now on nobody is held."""
        for released in self._held:
            released.set()
        self._held.clear()

    def shown(self, armed: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The faults that are armed, and those that hold somebody: also where that used them up."""
        held, left = {fault["id"]: fault for fault in self._held.values()}, {fault["id"] for fault in armed}
        used_up = [fault for fault in held.values() if fault["id"] not in left]
        return [{**fault, "held": True} if fault["id"] in held else fault for fault in (*used_up, *armed)]


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
