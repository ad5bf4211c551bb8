"""All state, in one SQLite file: a killed server starts again with nothing lost."""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuinfra.sandbox.kernel.ids import key, parse_id

_TABLES = """
CREATE TABLE IF NOT EXISTS resources (
    key TEXT PRIMARY KEY, id TEXT NOT NULL, type TEXT NOT NULL, grp TEXT NOT NULL, location TEXT NOT NULL,
    body TEXT NOT NULL, etag TEXT NOT NULL, created REAL NOT NULL, changed REAL NOT NULL, hidden TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS resources_by_type ON resources (type, grp, key);
CREATE INDEX IF NOT EXISTS resources_by_group ON resources (grp, key);
CREATE TABLE IF NOT EXISTS events (
    number INTEGER PRIMARY KEY, due REAL NOT NULL, kind TEXT NOT NULL, payload TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS events_by_due ON events (due, number);
CREATE TABLE IF NOT EXISTS operations (id TEXT PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS power (
    number INTEGER PRIMARY KEY, key TEXT NOT NULL, name TEXT NOT NULL, state TEXT NOT NULL,
    since REAL NOT NULL, until REAL, price REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS power_by_key ON power (key, number);
CREATE TABLE IF NOT EXISTS requests (number INTEGER PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS happenings (number INTEGER PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS uses (owner TEXT NOT NULL, target TEXT NOT NULL, user TEXT NOT NULL, detail TEXT);
CREATE INDEX IF NOT EXISTS uses_by_target ON uses (target, owner);
CREATE INDEX IF NOT EXISTS uses_by_owner ON uses (owner);
"""


@dataclass(slots=True)
class Resource:
    """A resource as ARM shows it. `hidden` is what it never shows: custom data, keys, the guest's port."""

    id: str
    location: str
    body: dict[str, Any]
    hidden: dict[str, Any] = field(default_factory=dict)
    etag: str = ""
    created: float = 0.0
    changed: float = 0.0

    @property
    def key(self) -> str:
        """The id without its case."""
        return key(self.id)

    @property
    def name(self) -> str:
        """The last name of the id."""
        return parse_id(self.id).name

    @property
    def group(self) -> str:
        """The resource group's name."""
        return parse_id(self.id).group

    @property
    def type(self) -> str:
        """The full type."""
        return parse_id(self.id).type

    @property
    def properties(self) -> dict[str, Any]:
        """The `properties` of the body, made if they are not there."""
        properties: dict[str, Any] = self.body.setdefault("properties", {})
        return properties


class Store:
    """Resources, operations, events, settings. Calls are quick and never wait, so one thread does."""

    def __init__(self, file: Path) -> None:
        self.connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
        self.connection.execute("PRAGMA journal_mode=WAL")
        self.connection.execute("PRAGMA synchronous=NORMAL")
        self.connection.executescript(_TABLES)

    def close(self) -> None:
        """Write everything back and let go of the file."""
        self.connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing. Inside another one it is part of that."""
        if self.connection.in_transaction:
            yield
            return
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self.connection.execute("ROLLBACK")
            raise
        self.connection.execute("COMMIT")

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Part of a transaction: a failure takes back only this part."""
        self.connection.execute("SAVEPOINT part")
        try:
            yield
        except BaseException:
            self.connection.execute("ROLLBACK TO part")
            raise
        finally:
            self.connection.execute("RELEASE part")

    # Resources

    def get(self, resource_id: str) -> Resource | None:
        """The resource, a copy that is the caller's own; `put` keeps a change."""
        row = self.connection.execute(
            "SELECT id, location, body, hidden, etag, created, changed FROM resources WHERE key = ?",
            (key(resource_id),),
        ).fetchone()
        return _resource(row) if row else None

    def put(self, resource: Resource, now: float) -> Resource:
        """Keep a resource, new or changed. It gets a new ETag."""
        parsed = parse_id(resource.id)
        resource.etag = f'W/"{uuid.uuid4()}"'
        resource.created, resource.changed = resource.created or now, now
        self.connection.execute(
            "INSERT INTO resources (key, id, type, grp, location, body, etag, created, changed, hidden) "
            "VALUES (?,?,?,?,?,?,?,?,?,?) ON CONFLICT (key) DO UPDATE SET location=excluded.location, "
            "body=excluded.body, etag=excluded.etag, changed=excluded.changed, hidden=excluded.hidden",
            (
                resource.key,
                resource.id,
                parsed.type.lower(),
                parsed.group.lower(),
                resource.location,
                json.dumps(resource.body),
                resource.etag,
                resource.created,
                resource.changed,
                json.dumps(resource.hidden),
            ),
        )
        return resource

    def delete(self, resource_id: str) -> bool:
        """Remove a resource and what is nested in it. False where there was none."""
        own = key(resource_id)
        cursor = self.connection.execute(
            # From own/ to own0, the sign after the slash: all that begin with own/, found by the index.
            "DELETE FROM resources WHERE key = ? OR (key > ? AND key < ?)",
            (own, f"{own}/", f"{own}0"),
        )
        return cursor.rowcount > 0

    def resources(
        self, *, kind: str | None = None, group: str | None = None, after: str = "", limit: int = -1
    ) -> list[Resource]:
        """Resources by full type and group, in the order of their ids, from after a key on."""
        conditions, values = ["key > ?"], [after]
        if kind is not None:
            conditions.append("type = ?")
            values.append(kind.lower())
        if group is not None:
            conditions.append("grp = ?")
            values.append(group.lower())
        rows = self.connection.execute(
            "SELECT id, location, body, hidden, etag, created, changed FROM resources "  # noqa: S608 no value is in it
            f"WHERE {' AND '.join(conditions)} ORDER BY key LIMIT ?",
            (*values, limit),
        )
        return [_resource(row) for row in rows]

    # Who uses what

    def set_uses(self, owner: str, uses: Iterable[tuple[str, str, str | None]]) -> None:
        """What a resource uses from now on: targets, by which of its parts, and a detail."""
        self.connection.execute("DELETE FROM uses WHERE owner = ?", (owner,))
        self.connection.executemany(
            "INSERT INTO uses (owner, target, user, detail) VALUES (?,?,?,?)", [(owner, *use) for use in uses]
        )

    def uses(self, target: str | None = None) -> list[tuple[str, str, str | None]]:
        """Who uses a target or what is nested in it, or anything: target, user and detail. Only what is there uses."""
        condition = "" if target is None else "WHERE target = ? OR (target > ? AND target < ?) "
        values = () if target is None else (target, f"{target}/", f"{target}0")
        return self.connection.execute(
            "SELECT target, user, detail FROM uses JOIN resources ON resources.key = owner "  # noqa: S608 no value is in it
            f"{condition}ORDER BY owner, uses.rowid",
            values,
        ).fetchall()

    # Events

    def add_event(self, due: float, kind: str, payload: dict[str, Any]) -> int:
        """Something that will happen; its number cancels it."""
        cursor = self.connection.execute(
            "INSERT INTO events (due, kind, payload) VALUES (?,?,?)", (due, kind, json.dumps(payload))
        )
        return cursor.lastrowid or 0

    def next_event(self) -> tuple[int, float, str, dict[str, Any]] | None:
        """The earliest one."""
        row = self.connection.execute(
            "SELECT number, due, kind, payload FROM events ORDER BY due, number LIMIT 1"
        ).fetchone()
        return (row[0], row[1], row[2], json.loads(row[3])) if row else None

    def remove_event(self, number: int) -> None:
        """It has happened, or will not."""
        self.connection.execute("DELETE FROM events WHERE number = ?", (number,))

    # Operations

    def get_operation(self, operation_id: str) -> dict[str, Any] | None:
        """The state of a long-running operation."""
        row = self.connection.execute("SELECT body FROM operations WHERE id = ?", (operation_id,)).fetchone()
        return json.loads(row[0]) if row else None

    def put_operation(self, operation_id: str, body: dict[str, Any]) -> None:
        """Keep the state of an operation."""
        self.connection.execute(
            "INSERT INTO operations (id, body) VALUES (?,?) ON CONFLICT (id) DO UPDATE SET body=excluded.body",
            (operation_id, json.dumps(body)),
        )

    def operations(self, after: int = 0) -> list[tuple[int, str, dict[str, Any]]]:
        """Operations in the order they were started, from after a number on: number, id and state."""
        rows = self.connection.execute(
            "SELECT rowid, id, body FROM operations WHERE rowid > ? ORDER BY rowid", (after,)
        )
        return [(number, operation_id, json.loads(body)) for number, operation_id, body in rows]

    # Settings

    def setting(self, name: str, default: Any = None) -> Any:
        """A value kept under a name."""
        row = self.connection.execute("SELECT value FROM settings WHERE name = ?", (name,)).fetchone()
        return json.loads(row[0]) if row else default

    def set_setting(self, name: str, value: Any) -> None:
        """Keep a value under a name."""
        self.connection.execute(
            "INSERT INTO settings (name, value) VALUES (?,?) ON CONFLICT (name) DO UPDATE SET value=excluded.value",
            (name, json.dumps(value)),
        )

    def remove_settings(self, *, unless: Iterable[str]) -> None:
        """Forget every setting but the named ones."""
        kept = tuple(unless)
        marks = ",".join("?" * len(kept))
        self.connection.execute(f"DELETE FROM settings WHERE name NOT IN ({marks})", kept)  # noqa: S608 no value is in it

    def latest_moment(self) -> float:
        """The last simulated time at which anything is known to have happened."""
        found = self.connection.execute(
            "SELECT max((SELECT coalesce(max(since), 0) FROM power), (SELECT coalesce(max(created), 0) FROM resources))"
        ).fetchone()
        return float(found[0])

    # The log of requests

    def add_request(self, body: dict[str, Any]) -> None:
        """Log one ARM request."""
        self.connection.execute("INSERT INTO requests (body) VALUES (?)", (json.dumps(body),))

    def requests(self, after: int = 0) -> list[dict[str, Any]]:
        """Logged requests from after a number on."""
        rows = self.connection.execute("SELECT number, body FROM requests WHERE number > ? ORDER BY number", (after,))
        return [{"number": number, **json.loads(body)} for number, body in rows]

    # What happened by itself

    def add_happening(self, body: dict[str, Any]) -> None:
        """Remember what is no operation that anybody asked for."""
        self.connection.execute("INSERT INTO happenings (body) VALUES (?)", (json.dumps(body),))

    def happenings(self) -> list[tuple[int, dict[str, Any]]]:
        """All of them, in the order in which they happened."""
        rows = self.connection.execute("SELECT number, body FROM happenings ORDER BY number")
        return [(number, json.loads(body)) for number, body in rows]

    def clear(self) -> None:
        """Forget everything but the settings that make this sandbox this one."""
        for table in ("resources", "events", "operations", "power", "requests", "happenings", "uses"):
            self.connection.execute(f"DELETE FROM {table}")  # noqa: S608 names of our own


def _resource(row: tuple[str, str, str, str, str, float, float]) -> Resource:
    return Resource(row[0], row[1], json.loads(row[2]), json.loads(row[3]), row[4], row[5], row[6])
