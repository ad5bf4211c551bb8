"""The ledger of machines: one SQLite file in the workspace. Entries are never changed."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from gpuinfra.diagnostics import Code, Diagnostic, Problem
from gpuinfra.models.ledger import LedgerEntry, entry_from_json

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
    """The entries of a workspace. Each call is one transaction, so several programs can use the file."""

    def __init__(self, folder: Path) -> None:
        """Use the file in this folder, `.gpuinfra`. It is created with the first entry."""
        self.path = folder / FILE

    def add(self, entry: LedgerEntry) -> None:
        """Add an entry. It is on disk when this returns."""
        row = (int(entry.at.timestamp()), entry.machine, json.dumps(entry.as_json(), ensure_ascii=True))
        with self._explained(Code.FILE_UNWRITABLE), contextlib.closing(self._open("rwc")) as database:
            database.execute("BEGIN IMMEDIATE")
            if not self._has_tables(database):
                for statement in _TABLES:
                    database.execute(statement)
            database.execute("INSERT INTO entries (at, machine, entry) VALUES (?, ?, ?)", row)
            database.execute("COMMIT")

    def entries(self, until: datetime | None = None) -> list[LedgerEntry]:
        """Return all entries until a time, oldest first."""
        last = int(until.timestamp()) if until else None
        with self._explained(Code.FILE_UNREADABLE):
            if not self.path.exists():
                return []
            # Not read-only: SQLite must roll back the transaction of a killed program.
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
            raise self._problem(
                Code.FILE_UNREADABLE, f"it has version {version}; this version of gpuinfra reads {VERSION}"
            )
        if not version and tables:
            raise self._problem(Code.FILE_UNREADABLE, "it belongs to another program")
        return bool(version)

    def _entry(self, text: str) -> LedgerEntry:
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
                help="check the file and its folder, or rename it to start a new ledger",
            )
        )
