"""`python -m gpuinfra.sandbox serve --folder DIR`: the server in the foreground."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gpuinfra.sandbox.running import SERVER, LockedError, from_json, remove_description, take, write_description

if TYPE_CHECKING:
    from gpuinfra.sandbox.server import Server

PORT = "port"
"""The file with the last port, so that clients find a restarted server."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal arrives, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m gpuinfra.sandbox", description="The embedded Azure.")
    commands = parser.add_subparsers(required=True, metavar="serve")
    serve = commands.add_parser("serve", help="serve a folder in the foreground")
    serve.add_argument("--folder", required=True, type=Path, metavar="DIR", help="where all state is kept")
    serve.add_argument("--port", type=int, default=0, metavar="N", help="on loopback; the last one if left out")
    given = parser.parse_args(arguments)
    # State and log contain keys: only this user may read them.
    os.umask(0o077)
    folder: Path = given.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        # Held until the process ends: a free lock means that no server runs.
        take(folder, SERVER)
        return _serve(folder, given.port)
    except LockedError:
        sys.stderr.write(f"a server serves {folder} already\n")
    except OSError as error:
        sys.stderr.write(f"{folder}: {error}\n")
    return 1


def _serve(folder: Path, port: int) -> int:
    from gpuinfra.sandbox.server import Server

    remove_description(folder)
    _log_to(folder / "server.log")
    server = Server(folder, port or _last_port(folder))
    # The web server installs its own handlers while it runs, and raises the signal again when it ends.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.stop())
    for number in (signal.SIGHUP, signal.SIGQUIT):
        # `nohup` and shells start background processes with these ignored; processes in a guest must not inherit that.
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    try:
        asyncio.run(_run(server))
    finally:
        remove_description(folder)
    return 0


async def _run(server: Server) -> None:
    running = asyncio.create_task(server.run())
    while not server.is_serving and not running.done():
        await asyncio.sleep(0.01)
    if not running.done():
        (server.folder / PORT).write_text(str(server.port))
        started = datetime.now(UTC).isoformat(timespec="seconds")
        write_description(server.folder, from_json({**server.describe(), "started": started}))
        logging.getLogger("sandbox").info("serving %s on port %d", server.folder, server.port)
    await running
    logging.getLogger("sandbox").info("stopped")


def _log_to(file: Path) -> None:
    form = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S")
    form.converter = time.gmtime
    handler = logging.FileHandler(file, encoding="utf-8")
    handler.setFormatter(form)
    logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel(logging.WARNING)
    logging.getLogger("sandbox").setLevel(logging.INFO)


def _last_port(folder: Path) -> int:
    """Return the last port if it is free, otherwise 0."""
    with contextlib.suppress(OSError, ValueError, OverflowError):
        port = int((folder / PORT).read_text("ascii"))
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
        return port
    return 0


if __name__ == "__main__":
    sys.exit(main())
