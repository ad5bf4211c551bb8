"""The SQLite file of a workspace, which several programs may use at once. It has the ledger and the history of runs."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from gpuinfra.diagnostics import Code, Problem, problem

FILE = "store.db"
VERSION = 1
BUSY_SECONDS = 30.0

_TABLES = (
    "CREATE TABLE runs (id TEXT PRIMARY KEY, created INTEGER NOT NULL, target TEXT NOT NULL, machine TEXT NOT NULL,"
    " state TEXT NOT NULL, exit_code INTEGER, run TEXT NOT NULL)",
    "CREATE INDEX runs_by_time ON runs (created, id)",
    "CREATE TABLE entries (number INTEGER PRIMARY KEY, at INTEGER NOT NULL, machine TEXT NOT NULL,"
    " entry TEXT NOT NULL)",
    "CREATE INDEX entries_by_time ON entries (at, number)",
    f"PRAGMA user_version = {VERSION}",
)
# In one query: between two, another program may create the tables.
_SHAPE = "SELECT user_version, (SELECT count(*) FROM sqlite_master) FROM pragma_user_version"
_START_NEW = "move the file away to start with an empty ledger and history; the folders of runs are not affected"


class Database:
    """The file, as one of its users sees it. Each use is one transaction, so threads and processes may share the file.

    It has a rollback journal, not a write-ahead log: that one needs shared memory, which home directories on a network
    do not have, and cannot be read in a folder where nothing can be written.
    """

    def __init__(self, folder: Path, noun: str) -> None:
        """Use the file in this folder, `.gpuinfra`; the first write creates it. Problems name what is used: `noun`."""
        self.path = folder / FILE
        self._noun = noun

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction. What was written is on disk at the end."""
        with self._explained(Code.FILE_UNWRITABLE), contextlib.closing(self._open("rwc")) as connection:
            # The folder's own entry for the end of the journal is on disk too, or a row could return to its old state.
            connection.execute("PRAGMA synchronous = EXTRA")
            connection.execute("BEGIN IMMEDIATE")
            if not self._has_tables(connection):
                for statement in _TABLES:
                    connection.execute(statement)
            yield connection
            connection.execute("COMMIT")

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection | None]:
        """Open the file to read it; None if nothing was ever written."""
        with self._explained(Code.FILE_UNREADABLE):
            if not self.path.exists():
                yield None
                return
            # Not read-only, because SQLite must roll back the transaction of a killed program. It reads without
            # permission to write as well.
            with contextlib.closing(self._open("rw")) as connection:
                yield connection if self._has_tables(connection) else None

    def broken(self, reason: str) -> Problem:
        """Return the problem of a file whose content is invalid."""
        return self._problem(Code.FILE_UNREADABLE, f"broken {self._noun}", reason, _START_NEW)

    def _open(self, mode: str) -> sqlite3.Connection:
        if mode == "rwc":
            self.path.parent.mkdir(parents=True, exist_ok=True)
        where = f"{self.path.absolute().as_uri()}?mode={mode}"
        return sqlite3.connect(where, uri=True, timeout=BUSY_SECONDS, isolation_level=None)

    def _has_tables(self, connection: sqlite3.Connection) -> bool:
        version, tables = connection.execute(_SHAPE).fetchone()
        if version > VERSION:
            raise self._problem(
                Code.FILE_UNREADABLE,
                f"{self._noun} of a newer gpuinfra",
                f"it has version {version}; this program knows {VERSION}",
                "use the newer program, or move the file away to start with an empty ledger and history",
            )
        if not version and tables:
            raise self.broken("it is the database of another program")
        return bool(version)

    @contextlib.contextmanager
    def _explained(self, code: Code) -> Iterator[None]:
        """Turn errors of SQLite and the disk into Problems."""
        summary = f"{self._noun} cannot be {'read' if code is Code.FILE_UNREADABLE else 'written'}"
        try:
            yield
        except sqlite3.OperationalError as error:
            # Locked, full, read-only, or cannot be opened: the file itself may be valid.
            raise self._problem(code, summary, str(error), _remedy(error)) from error
        except OSError as error:
            raise self._problem(code, summary, error.strerror or str(error), _remedy(error)) from error
        except sqlite3.Error as error:
            raise self.broken(str(error)) from error

    def _problem(self, code: Code, summary: str, reason: str, advice: str) -> Problem:
        return problem(code, summary, f"`{self.path}`: {reason}", advice)


def _remedy(error: Exception) -> str:
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return "another gpuinfra holds it; try again"
        case sqlite3.SQLITE_FULL:
            return "the disk is full: make room, and try again"
        case sqlite3.SQLITE_ERROR:
            return _START_NEW
        case _:
            return "check the permissions of the file and of its folder"
