"""The durable state: zones, workloads, and operations under way.  It survives a SIGKILL.

One SQLite file in WAL mode.  ``synchronous=NORMAL``: a commit is in the page cache, and survives the end of
the process at any instant.  A power loss may undo commits, but also ends all zones: after the boot, zones of
older rows are found dead, and missing rows name only objects that no longer exist.

Commits run on the event loop: at 25 µs each (FULL: 360 µs and an fsync) they cost less than the way to a
thread and back.  Only copying the WAL into the database would block: ``checkpoint`` does this in a thread, on
another connection.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from daemonkit.faults import Broken, Exhausted, Refused
from daemonkit.host import disk_space
from daemonkit.lifecycle import private_database
from protect.model.capacity.reservation import Reservation
from protect.model.workload import Workload
from protect.model.zone import Zone
from protect.state import records

VERSION = 1
"""Version of the database's schema (``user_version``).  Migrations, if there are any, count from 0.1.0."""

LOG_LIMIT_BYTES = 4 * 1024 * 1024
"""WAL size in bytes at which the WAL is copied into the database."""
_LOG_SPARE_BYTES = 2 * 1024 * 1024  # bytes kept beyond, to record ends even on a full disk

_SCHEMA = """
CREATE TABLE zones (id TEXT PRIMARY KEY, uuid TEXT NOT NULL UNIQUE, state TEXT NOT NULL, body TEXT NOT NULL);
CREATE TABLE workloads (
    id TEXT PRIMARY KEY,
    zone_id TEXT NOT NULL REFERENCES zones (id) ON DELETE CASCADE,
    state TEXT NOT NULL,
    body TEXT NOT NULL
);
CREATE INDEX workloads_by_zone ON workloads (zone_id);
CREATE TABLE intents (
    kind TEXT NOT NULL,
    object TEXT NOT NULL,
    operation TEXT NOT NULL,
    step TEXT NOT NULL,
    data TEXT NOT NULL,
    PRIMARY KEY (kind, object)
) WITHOUT ROWID;
CREATE TABLE reservations (id TEXT PRIMARY KEY, body TEXT NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class Intent:
    """An operation under way; ``data``: facts for undoing or finishing the operation."""

    operation: str
    step: str = ""
    data: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Saved:
    """Everything in the store; intents by the object's id."""

    zones: tuple[Zone, ...]
    workloads: tuple[Workload, ...]
    zone_intents: Mapping[str, Intent]
    workload_intents: Mapping[str, Intent]
    reservations: tuple[Reservation, ...] = ()


class StateStore(Protocol):
    """Each method is one transaction.  On return the data survives the end of the process."""

    def load(self) -> Saved: ...

    def save_zone(self, zone: Zone, intent: Intent | None) -> None:
        """Write the zone and set the intent; None removes the intent."""
        ...

    def update_zone(self, zone: Zone) -> None:
        """Write the zone; the intent, if any, stays."""
        ...

    def forget_zone(self, zone_id: str) -> None:
        """Remove the zone, its workloads and all their intents."""
        ...

    def save_workload(self, workload: Workload, intent: Intent | None) -> None: ...

    def update_workload(self, workload: Workload) -> None:
        """Write the workload; the intent, if any, stays."""
        ...

    def forget_workload(self, workload_id: str) -> None: ...

    def save_reservation(self, reservation: Reservation) -> None:
        """Write a reservation, also durable against a power loss: reservations outlive all zones."""
        ...

    def forget_reservation(self, reservation_id: str) -> None: ...


class SqliteStore:
    """The store of the running daemon."""

    def __init__(self, path: Path) -> None:
        self._path = path
        private_database(path)
        self._db = _connect(path)
        with _faults("open"):
            _prepare(self._db, path)
        disk_space.reserve(path, LOG_LIMIT_BYTES + _LOG_SPARE_BYTES)

    def load(self) -> Saved:
        with _faults("read"):
            zones = self._db.execute("SELECT body FROM zones ORDER BY rowid").fetchall()
            workloads = self._db.execute("SELECT body FROM workloads ORDER BY rowid").fetchall()
            intents = self._db.execute("SELECT kind, object, operation, step, data FROM intents").fetchall()
            reserved = self._db.execute("SELECT body FROM reservations ORDER BY rowid").fetchall()
        return Saved(
            tuple(records.zone(json.loads(body)) for (body,) in zones),
            tuple(records.workload(json.loads(body)) for (body,) in workloads),
            {row[1]: Intent(row[2], row[3], json.loads(row[4])) for row in intents if row[0] == "zone"},
            {row[1]: Intent(row[2], row[3], json.loads(row[4])) for row in intents if row[0] == "workload"},
            tuple(records.reservation(json.loads(body)) for (body,) in reserved),
        )

    def save_zone(self, zone: Zone, intent: Intent | None) -> None:
        self._want_space("zones", zone.id)
        with self._transaction():
            self._put_zone(zone)
            self._set_intent("zone", zone.id, intent)

    def update_zone(self, zone: Zone) -> None:
        with self._transaction():
            self._put_zone(zone)

    def forget_zone(self, zone_id: str) -> None:
        with self._transaction():
            self._db.execute(
                "DELETE FROM intents WHERE kind = 'workload' "
                "AND object IN (SELECT id FROM workloads WHERE zone_id = ?)",
                (zone_id,),
            )
            self._set_intent("zone", zone_id, None)
            self._db.execute("DELETE FROM zones WHERE id = ?", (zone_id,))

    def save_workload(self, workload: Workload, intent: Intent | None) -> None:
        self._want_space("workloads", workload.id)
        with self._transaction():
            self._put_workload(workload)
            self._set_intent("workload", workload.id, intent)

    def update_workload(self, workload: Workload) -> None:
        with self._transaction():
            self._put_workload(workload)

    def forget_workload(self, workload_id: str) -> None:
        with self._transaction():
            self._set_intent("workload", workload_id, None)
            self._db.execute("DELETE FROM workloads WHERE id = ?", (workload_id,))

    def save_reservation(self, reservation: Reservation) -> None:
        self._want_space("reservations", reservation.id)
        row = (reservation.id, json.dumps(records.of_reservation(reservation)))
        with self._synced(), self._transaction():
            self._db.execute(
                "INSERT INTO reservations (id, body) VALUES (?, ?) "
                "ON CONFLICT (id) DO UPDATE SET body = excluded.body",
                row,
            )

    def forget_reservation(self, reservation_id: str) -> None:
        with self._synced(), self._transaction():
            self._db.execute("DELETE FROM reservations WHERE id = ?", (reservation_id,))

    def checkpoint(self) -> None:
        """Copy the WAL into the database for reuse of the file.  Blocks: call in a thread."""
        with _faults("checkpoint"):
            db = _connect(self._path)
            try:
                db.execute("PRAGMA wal_checkpoint(PASSIVE)")
            finally:
                db.close()

    def wal_bytes(self) -> int:
        """Present size of the WAL file."""
        try:
            return self._path.with_name(self._path.name + "-wal").stat().st_size
        except FileNotFoundError:
            return 0

    def close(self) -> None:
        self._db.close()

    def _want_space(self, table: str, new_id: str) -> None:
        """Exhausted: the disk has no space for a new row.  Existing rows are written as long as possible."""
        if self._db.execute(f"SELECT 1 FROM {table} WHERE id = ?", (new_id,)).fetchone() is None:
            disk_space.check_space(self._path)

    def _put_zone(self, zone: Zone) -> None:
        row = (zone.id, str(zone.uuid), zone.state.value, json.dumps(records.of_zone(zone)))
        self._db.execute(
            "INSERT INTO zones (id, uuid, state, body) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (id) DO UPDATE SET state = excluded.state, body = excluded.body",
            row,
        )

    def _put_workload(self, workload: Workload) -> None:
        row = (workload.id, workload.zone_id, workload.state.value, json.dumps(records.of_workload(workload)))
        self._db.execute(
            "INSERT INTO workloads (id, zone_id, state, body) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (id) DO UPDATE SET state = excluded.state, body = excluded.body",
            row,
        )

    def _set_intent(self, kind: str, object_id: str, intent: Intent | None) -> None:
        if intent is None:
            self._db.execute("DELETE FROM intents WHERE kind = ? AND object = ?", (kind, object_id))
            return
        row = (kind, object_id, intent.operation, intent.step, json.dumps(dict(intent.data)))
        self._db.execute("INSERT OR REPLACE INTO intents VALUES (?, ?, ?, ?, ?)", row)

    @contextmanager
    def _synced(self) -> Iterator[None]:
        """Let commits wait for the disk."""
        self._db.execute("PRAGMA synchronous = FULL")
        try:
            yield
        finally:
            self._db.execute("PRAGMA synchronous = NORMAL")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with _faults("write"):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise


def _connect(path: Path) -> sqlite3.Connection:
    with _faults("open"):
        db = sqlite3.connect(path, isolation_level=None, timeout=5.0)
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("PRAGMA wal_autocheckpoint = 0")
        return db


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    db.execute("PRAGMA journal_mode = WAL")
    version: Any = db.execute("PRAGMA user_version").fetchone()[0]
    if version == 0:
        db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {VERSION}; COMMIT;")
    elif version != VERSION:
        cause = f"its schema is version {version}, this protectd reads version {VERSION}"
        raise Refused("open state", str(path), cause, "use the protectd that wrote it")


@contextmanager
def _faults(operation: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        if "disk is full" in str(error) or "disk I/O error" in str(error):
            hint = "free space in state_dir"
            raise Exhausted(f"{operation} state", "the store", str(error), hint) from error
        raise Broken(f"{operation} state", "the store", str(error)) from error
    except sqlite3.Error as error:
        raise Broken(f"{operation} state", "the store", str(error)) from error
