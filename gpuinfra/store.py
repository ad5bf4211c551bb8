"""The SQLite file of a workspace: the ledger of machines and the history of runs."""

import contextlib
import json
import re
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuinfra.diagnostics import Code, Exit, Problem, listed, nearest, problem
from gpuinfra.models.receipt import LedgerEntry, entry_from_json
from gpuinfra.models.run import Run, RunState, run_from_json

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


class Ledger:
    """The entries of a workspace."""

    def __init__(self, folder: Path) -> None:
        """Use the store in this folder, `.gpuinfra`. It is created with the first entry."""
        self._database = Database(folder, "ledger")
        self.path = self._database.path

    def add(self, entry: LedgerEntry) -> None:
        """Add an entry. It is on disk when this returns."""
        row = (int(entry.at.timestamp()), entry.machine, json.dumps(entry.as_json(), ensure_ascii=True))
        with self._database.writing() as connection:
            connection.execute("INSERT INTO entries (at, machine, entry) VALUES (?, ?, ?)", row)

    def entries(self) -> list[LedgerEntry]:
        """Return all entries, oldest first."""
        with self._database.reading() as connection:
            if connection is None:
                return []
            rows = connection.execute("SELECT entry FROM entries ORDER BY at, number").fetchall()
        return [self._entry(row[0]) for row in rows]

    def _entry(self, text: str) -> LedgerEntry:
        try:
            return entry_from_json(json.loads(text))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise self._database.broken(f"an entry in it cannot be read: {type(error).__name__}: {error}") from error


LAST = "last"
MAX_SUGGESTIONS = 5
# `created` never changes, and has microseconds: of two runs in one second, it says which is newer.
_SAVE = (
    "INSERT INTO runs VALUES (:id, :created, :target, :machine, :state, :exit_code, :run) ON CONFLICT (id) DO UPDATE"
    " SET target = :target, machine = :machine, state = :state, exit_code = :exit_code, run = :run"
)
_LIST = "SELECT run FROM runs WHERE {} ORDER BY created DESC, id DESC LIMIT ?"
_UNFINISHED = tuple(state.value for state in RunState if not state.is_over)
Runs = list[Run]
# The history may come with a foreign project: an id must not lead out of its folder.
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def run_folder(state: Path, run_id: str) -> Path:
    """Return the folder of a run's `log` and `outputs/`. Raises a Problem if the id could lead elsewhere."""
    if not _ID.fullmatch(run_id):
        raise problem(Code.FILE_UNREADABLE, "history cannot be read", f"`{run_id}` is not a run's id")
    return state / "runs" / run_id


class History:
    """The runs of a workspace."""

    def __init__(self, folder: Path) -> None:
        """Use the store in this folder, `.gpuinfra`. It is created with the first run."""
        self._database = Database(folder, "history")
        self.path = self._database.path

    def save(self, run: Run) -> None:
        """Save the run. It is on disk when this returns."""
        with self._database.writing() as database:
            _save(database, run)

    def update(self, run_id: str, **changes: Any) -> Run:
        """Change fields of a run, and return it. Concurrent changes of other fields are kept."""
        with self._database.writing() as database:
            rows = database.execute("SELECT run FROM runs WHERE id = ?", (_plain(run_id),)).fetchall()
            if not rows:
                raise _no_such_run(run_id, _newest(database))
            changed = replace(self._run(rows[0][0]), **changes)
            _save(database, changed)
        return changed

    def delete(self, run_id: str) -> None:
        """Delete the record of a run. An absent one is not an error."""
        with self._database.writing() as database:
            database.execute("DELETE FROM runs WHERE id = ?", (_plain(run_id),))

    def find(self, text: str) -> Run:
        """Return the run with this id, or the start of one, or `last`. Raises a Problem for none or several."""
        with self._database.reading() as database:
            if database is None:
                raise _no_such_run(text, [])
            if text == LAST:
                found = database.execute(_LIST.format("1"), (1,)).fetchall()
            else:
                # An id that is the beginning of another one means itself.
                query = "SELECT run FROM runs WHERE substr(id, 1, length(:word)) = :word ORDER BY id <> :word, id DESC"
                found = database.execute(query, {"word": _plain(text)}).fetchall() if text else []
            if not found:
                raise _no_such_run(text, _newest(database))
        runs = [self._run(row[0]) for row in found]
        if len(runs) > 1 and runs[0].id != text:
            raise _ambiguous(text, [run.id for run in runs])
        return runs[0]

    def list(self, limit: int | None = None, target: str | None = None, state: RunState | None = None) -> Runs:
        """Return runs, newest first."""
        return self._select({"target = ?": target, "state = ?": state.value if state else None}, limit)

    def unfinished(self, machine: str | None = None) -> Runs:
        """Return runs that are not recorded as over, newest first."""
        marks = ", ".join("?" * len(_UNFINISHED))
        return self._select({f"state IN ({marks})": _UNFINISHED, "machine = ? COLLATE NOCASE": machine}, None)

    def unfetched(self, machine: str) -> Runs:
        """Return runs on a machine whose outputs were not all fetched, newest first."""
        runs = self._select({"machine = ? COLLATE NOCASE": machine}, None)
        return [run for run in runs if run.may_have_outputs]

    def _select(self, conditions: dict[str, str | tuple[str, ...] | None], limit: int | None) -> Runs:
        active = {condition: value for condition, value in conditions.items() if value is not None}
        values = [each for value in active.values() for each in ((value,) if isinstance(value, str) else value)]
        with self._database.reading() as database:
            if database is None:
                return []
            query = _LIST.format(" AND ".join(active) or "1")
            rows = database.execute(query, (*map(_plain, values), -1 if limit is None else limit)).fetchall()
        return [self._run(row[0]) for row in rows]

    def _run(self, text: str) -> Run:
        try:
            return run_from_json(json.loads(text))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise self._database.broken(f"a run in it cannot be read: {type(error).__name__}: {error}") from error


def _save(database: sqlite3.Connection, run: Run) -> None:
    database.execute(
        _SAVE,
        {
            "id": run.id,
            "created": int(run.created.timestamp() * 1_000_000),
            "target": _plain(run.target),
            "machine": _plain(run.machine),
            "state": run.state.value,
            "exit_code": run.exit_code,
            # ASCII, so that words that are not UTF-8 survive.
            "run": json.dumps(run.as_json(), ensure_ascii=True),
        },
    )


def _plain(text: str) -> str:
    """Return text that SQLite accepts: words of a command line may have bytes that are not UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _newest(database: sqlite3.Connection) -> Sequence[str]:
    return [row[0] for row in database.execute("SELECT id FROM runs ORDER BY created DESC, id DESC LIMIT 1000")]


def _no_such_run(text: str, known: Sequence[str]) -> Problem:
    if not known:
        note, advice = "there is no run in this workspace yet", "`gpuinfra submit` makes one; see also `--workspace`"
    else:
        note = f"`{text}` is neither a run's id, nor the beginning of one, nor `{LAST}`"
        near = nearest(text, known)
        shown = [near, *(each for each in known if each != near)] if near else list(known)
        advice = f"did you mean {listed(shown[:MAX_SUGGESTIONS])}? `gpuinfra runs` lists them all"
    return problem(Code.NO_SUCH_RUN, "no such run", note, advice, exit_code=Exit.USAGE)


def _ambiguous(text: str, known: Sequence[str]) -> Problem:
    more = f", {len(known) - MAX_SUGGESTIONS} more" if len(known) > MAX_SUGGESTIONS else ""
    note = f"{len(known)} runs begin with `{text}`: {listed(known[:MAX_SUGGESTIONS], 'and')}{more}"
    help_text = "give more of the id, or `last` for the newest"
    return problem(Code.NO_SUCH_RUN, "no single run", note, help_text, exit_code=Exit.USAGE)
