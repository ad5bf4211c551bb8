"""All state, in one SQLite file: a killed server continues without loss."""

import json
import sqlite3
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuinfra.sandbox.kernel.routes import key, parse_id

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


KEPT_SETTINGS = (
    *("tenant", "subscription", "client-id", "client-object-id", "client-secret", "token-key", "ssh-port", "seed"),
    "profile",
    "network-public-address",  # a guest that is being deleted may still have the last address
)
"""The settings that survive a reset."""


@dataclass(slots=True)
class Resource:
    """A resource as ARM shows it. `hidden` is what ARM never shows: custom data, keys, running operations."""

    id: str
    location: str
    body: dict[str, Any]
    hidden: dict[str, Any] = field(default_factory=dict)
    etag: str = ""
    created: float = 0.0
    changed: float = 0.0

    @property
    def key(self) -> str:
        """The id in lower case."""
        return key(self.id)

    @property
    def name(self) -> str:
        return parse_id(self.id).name

    @property
    def group(self) -> str:
        return parse_id(self.id).group

    @property
    def type(self) -> str:
        return parse_id(self.id).type

    @property
    def properties(self) -> dict[str, Any]:
        """The `properties` of the body, created if absent."""
        properties: dict[str, Any] = self.body.setdefault("properties", {})
        return properties


class Store:
    """Resources, operations, events and settings. Calls are short, so one thread suffices."""

    def __init__(self, file: Path) -> None:
        self.connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
        self.connection.execute("PRAGMA journal_mode=WAL")
        self.connection.execute("PRAGMA synchronous=NORMAL")
        self.connection.executescript(_TABLES)

    def close(self) -> None:
        self.connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run a block atomically. Within another transaction it is part of that one."""
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
        """Run a part of a transaction: a failure rolls back only this part."""
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
        """Return a copy of the resource; `put` stores a change."""
        row = self.connection.execute(
            "SELECT id, location, body, hidden, etag, created, changed FROM resources WHERE key = ?",
            (key(resource_id),),
        ).fetchone()
        return _resource(row) if row else None

    def put(self, resource: Resource, now: float) -> Resource:
        """Store a new or changed resource, with a new ETag."""
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
        """Delete a resource and what is nested in it. Returns False if there was none."""
        own = key(resource_id)
        cursor = self.connection.execute(
            # `0` follows `/` in ASCII: the range is all keys that begin with own/, and uses the index.
            "DELETE FROM resources WHERE key = ? OR (key > ? AND key < ?)",
            (own, f"{own}/", f"{own}0"),
        )
        return cursor.rowcount > 0

    def resources(
        self, *, kind: str | None = None, group: str | None = None, after: str = "", limit: int = -1
    ) -> list[Resource]:
        """Return resources by full type and resource group, ordered by id, after a key."""
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

    # Which resource uses which

    def set_uses(self, owner: str, uses: Iterable[tuple[str, str, str | None]]) -> None:
        """Replace what a resource uses: target, the part that uses it, and a detail."""
        self.connection.execute("DELETE FROM uses WHERE owner = ?", (owner,))
        self.connection.executemany(
            "INSERT INTO uses (owner, target, user, detail) VALUES (?,?,?,?)", [(owner, *use) for use in uses]
        )

    def uses(self, target: str | None = None) -> list[tuple[str, str, str | None]]:
        """Return target, user and detail of what uses a target or its nested resources, or of all uses."""
        condition = "" if target is None else "WHERE target = ? OR (target > ? AND target < ?) "
        values = () if target is None else (target, f"{target}/", f"{target}0")
        return self.connection.execute(
            "SELECT target, user, detail FROM uses JOIN resources ON resources.key = owner "  # noqa: S608 no value is in it
            f"{condition}ORDER BY owner, uses.rowid",
            values,
        ).fetchall()

    # Events

    def add_event(self, due: float, kind: str, payload: dict[str, Any]) -> int:
        """Schedule an event, and return its number, which `remove_event` takes."""
        cursor = self.connection.execute(
            "INSERT INTO events (due, kind, payload) VALUES (?,?,?)", (due, kind, json.dumps(payload))
        )
        return cursor.lastrowid or 0

    def next_event(self) -> tuple[int, float, str, dict[str, Any]] | None:
        row = self.connection.execute(
            "SELECT number, due, kind, payload FROM events ORDER BY due, number LIMIT 1"
        ).fetchone()
        return (row[0], row[1], row[2], json.loads(row[3])) if row else None

    def remove_event(self, number: int) -> None:
        self.connection.execute("DELETE FROM events WHERE number = ?", (number,))

    # Operations

    def get_operation(self, operation_id: str) -> dict[str, Any] | None:
        row = self.connection.execute("SELECT body FROM operations WHERE id = ?", (operation_id,)).fetchone()
        return json.loads(row[0]) if row else None

    def put_operation(self, operation_id: str, body: dict[str, Any]) -> None:
        self.connection.execute(
            "INSERT INTO operations (id, body) VALUES (?,?) ON CONFLICT (id) DO UPDATE SET body=excluded.body",
            (operation_id, json.dumps(body)),
        )

    def operations(self, after: int = 0) -> list[tuple[int, str, dict[str, Any]]]:
        """Return number, id and state of operations after a number, in the order of their start."""
        rows = self.connection.execute(
            "SELECT rowid, id, body FROM operations WHERE rowid > ? ORDER BY rowid", (after,)
        )
        return [(number, operation_id, json.loads(body)) for number, operation_id, body in rows]

    # Settings

    def setting(self, name: str, default: Any = None) -> Any:
        row = self.connection.execute("SELECT value FROM settings WHERE name = ?", (name,)).fetchone()
        return json.loads(row[0]) if row else default

    def set_setting(self, name: str, value: Any) -> None:
        self.connection.execute(
            "INSERT INTO settings (name, value) VALUES (?,?) ON CONFLICT (name) DO UPDATE SET value=excluded.value",
            (name, json.dumps(value)),
        )

    def latest_time(self) -> float:
        """Return the latest simulated time in the state."""
        found = self.connection.execute(
            "SELECT max((SELECT coalesce(max(since), 0) FROM power), (SELECT coalesce(max(created), 0) FROM resources))"
        ).fetchone()
        return float(found[0])

    # Request log

    def add_request(self, body: dict[str, Any]) -> None:
        self.connection.execute("INSERT INTO requests (body) VALUES (?)", (json.dumps(body),))

    def requests(self, after: int = 0) -> list[dict[str, Any]]:
        """Return logged requests after a number."""
        rows = self.connection.execute("SELECT number, body FROM requests WHERE number > ? ORDER BY number", (after,))
        return [{"number": number, **json.loads(body)} for number, body in rows]

    # Evictions

    def add_eviction(self, body: dict[str, Any]) -> None:
        """Record an eviction: Azure's own action, which no operation shows."""
        self.connection.execute("INSERT INTO happenings (body) VALUES (?)", (json.dumps(body),))

    def evictions(self) -> list[tuple[int, dict[str, Any]]]:
        rows = self.connection.execute("SELECT number, body FROM happenings ORDER BY number")
        return [(number, json.loads(body)) for number, body in rows]

    def reset(self) -> None:
        """Delete everything except the settings in `KEPT_SETTINGS`."""
        with self.transaction():
            for table in ("resources", "events", "operations", "power", "requests", "happenings", "uses"):
                self.connection.execute(f"DELETE FROM {table}")  # noqa: S608 names of our own
            marks = ",".join("?" * len(KEPT_SETTINGS))
            statement = f"DELETE FROM settings WHERE name NOT IN ({marks})"  # noqa: S608 no value is in it
            self.connection.execute(statement, KEPT_SETTINGS)


def _resource(row: tuple[str, str, str, str, str, float, float]) -> Resource:
    return Resource(row[0], row[1], json.loads(row[2]), json.loads(row[3]), row[4], row[5], row[6])
