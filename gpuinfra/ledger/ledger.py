"""The ledger: one SQLite file in the workspace. Entries are added and never changed."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from gpuinfra.diagnostics import Code, Diagnostic, Problem
from gpuinfra.models.entry import Entry, entry_from_json

FILE = "ledger.db"
VERSION = 1
BUSY_SECONDS = 10.0

_TABLES = (
    "CREATE TABLE entries (number INTEGER PRIMARY KEY, at INTEGER NOT NULL, machine TEXT NOT NULL,"
    " entry TEXT NOT NULL)",
    "CREATE INDEX entries_by_time ON entries (at, number)",
    f"PRAGMA user_version = {VERSION}",
)
_SHAPE = "SELECT user_version, (SELECT count(*) FROM sqlite_master) FROM pragma_user_version"


class Ledger:
    """The entries of a workspace. Each call is a transaction of its own: several programs may use the file at once."""

    def __init__(self, folder: Path) -> None:
        """In this folder: `.gpuinfra`. The file is made with the first entry."""
        self.path = folder / FILE

    def add(self, entry: Entry) -> None:
        """Remember it; when this returns, it is on the disk."""
        row = (int(entry.at.timestamp()), entry.machine, json.dumps(entry.as_json(), ensure_ascii=True))
        with self._explained(Code.FILE_UNWRITABLE), contextlib.closing(self._open("rwc")) as database:
            database.execute("BEGIN IMMEDIATE")
            if not self._has_tables(database):
                for statement in _TABLES:
                    database.execute(statement)
            database.execute("INSERT INTO entries (at, machine, entry) VALUES (?, ?, ?)", row)
            database.execute("COMMIT")

    def entries(self, until: datetime | None = None) -> list[Entry]:
        """All of them, the oldest first. Those from before a span are needed too: a machine may be on since then."""
        last = int(until.timestamp()) if until else None
        with self._explained(Code.FILE_UNREADABLE):
            if not self.path.exists():
                return []
            # Not read-only: what a program that was killed has half written is taken back first.
            with contextlib.closing(self._open("rw")) as database:
                if not self._has_tables(database):
                    return []
                query = "SELECT entry FROM entries WHERE ? IS NULL OR at <= ? ORDER BY at, number"
                rows = database.execute(query, (last, last)).fetchall()
        return [self._entry(row[0]) for row in rows]

    def _open(self, mode: str) -> sqlite3.Connection:
        if mode == "rwc":
            self.path.parent.mkdir(parents=True, exist_ok=True)
        where = f"{self.path.absolute().as_uri()}?mode={mode}"
        return sqlite3.connect(where, uri=True, timeout=BUSY_SECONDS, isolation_level=None)

    def _has_tables(self, database: sqlite3.Connection) -> bool:
        version, tables = database.execute(_SHAPE).fetchone()
        if version > VERSION:
            raise self._problem(Code.FILE_UNREADABLE, f"it has version {version}; this program knows {VERSION}")
        if not version and tables:
            raise self._problem(Code.FILE_UNREADABLE, "it is the database of another program")
        return bool(version)

    def _entry(self, text: str) -> Entry:
        try:
            return entry_from_json(json.loads(text))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            reason = f"an entry in it cannot be read: {type(error).__name__}: {error}"
            raise self._problem(Code.FILE_UNREADABLE, reason) from error

    @contextlib.contextmanager
    def _explained(self, code: Code) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise self._problem(code, getattr(error, "strerror", None) or str(error)) from error

    def _problem(self, code: Code, reason: str) -> Problem:
        doing = "read" if code is Code.FILE_UNREADABLE else "written"
        return Problem(
            Diagnostic(
                code,
                f"ledger cannot be {doing}",
                note=f"`{self.path}`: {reason}",
                help="check the file and its folder, or move it away to begin a new ledger",
            )
        )
