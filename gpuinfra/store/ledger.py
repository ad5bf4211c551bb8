"""The ledger of machines: when they were on, and the price. Entries are never changed."""

import json
from pathlib import Path

from gpuinfra.models.ledger import LedgerEntry, entry_from_json
from gpuinfra.store.database import Database


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
