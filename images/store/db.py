"""The index of images: one SQLite file. A file in the store without a row is garbage."""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from daemonkit.faults import Broken
from daemonkit.host import disk_space
from daemonkit.lifecycle import private_database
from images.image_errors import disk_full
from images.store import schema

log = logging.getLogger(__name__)

# Pages of the write-ahead log before a checkpoint: half of the disk space reserved for the log.
_LOG_PAGES = 64
_LOG_BYTES = 512 * 1024


@dataclass(frozen=True)
class FilesystemRow:
    """A filesystem image in the store, named by its layers and all layers below.

    bytes: its length; digest: of the whole file as it was built; below: the chain_id of the filesystem that
    it lies over, "" when it is the lowest. That one may come later.
    damaged: its file was found to be another than was built, and no new container may have it. lost: how many
    files lost what, see LossCount.named; None: nobody counted.
    """

    chain_id: str
    type: str
    bytes: int
    digest: str = ""
    below: str = ""
    damaged: bool = False
    lost: Mapping[str, int] | None = None


@dataclass(frozen=True)
class ImageRow:
    """An image. chain_id: of the topmost filesystem; layers: (digest, compressed bytes), lowest first.

    pulled_at: nanoseconds since the epoch. facts: ImageFacts as bytes; b"": documents not read yet.
    """

    id: str
    chain_id: str
    manifest_digest: str
    manifest: bytes
    config: bytes
    layers: tuple[tuple[str, int], ...]
    pulled_at: int
    removed: bool = False
    facts: bytes = b""


class ImageDb:
    """Every method is one transaction, on disk on return; safe to call from any thread."""

    def __init__(self, file: Path) -> None:
        self._lock = threading.Lock()
        self._file = file
        with self._told("open"):
            private_database(file)
            self._db = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
            self._prepare()
        disk_space.reserve(file, _LOG_BYTES)

    def _prepare(self) -> None:
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("PRAGMA foreign_keys = ON")
        self._db.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            self._db.executescript(f"BEGIN; {schema.SCHEMA} PRAGMA user_version = {schema.VERSION}; COMMIT;")
        elif version != schema.VERSION:
            cause = f"it has version {version}, this program knows {schema.VERSION}"
            hint = "use the program that wrote it, or remove images.state_dir and pull the images again"
            raise Broken("open index of images", str(self._file), cause, hint)
        self._db.executescript(schema.FACTS)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._told("write"):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                # A full disk has SQLite roll back by itself.
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _told(self, operation: str) -> Iterator[None]:
        """Map SQLite's errors to Faults: Exhausted for a full disk, else Broken."""
        try:
            yield
        except sqlite3.Error as error:
            if disk_space.is_full(error):
                raise disk_full(f"{operation} index of images", str(self._file)) from error
            raise Broken(f"{operation} index of images", str(self._file), str(error)) from error

    def add_filesystem(
        self, row: FilesystemRow, accounts: Mapping[str, bytes | None], content: str = ""
    ) -> None:
        """Add a finished filesystem. Replaces a row of the same chain id, and clears its mark of damage.

        accounts: see account_file(); content: see same_content(), "": unknown.
        """
        with self._transaction() as db:
            db.execute(
                "INSERT INTO filesystems VALUES (?, ?, ?, ?, ?) ON CONFLICT (chain_id) DO UPDATE "
                "SET type = excluded.type, bytes = excluded.bytes, digest = excluded.digest, "
                "below = excluded.below",
                (row.chain_id, row.type, row.bytes, row.digest, row.below),
            )
            db.execute("DELETE FROM damaged WHERE chain_id = ?", (row.chain_id,))
            db.execute("INSERT OR REPLACE INTO losses VALUES (?, ?)", (row.chain_id, json.dumps(row.lost)))
            db.executemany(
                "INSERT OR REPLACE INTO accounts VALUES (?, ?, ?)",
                [(row.chain_id, path, data) for path, data in accounts.items()],
            )
            if content:
                db.execute("INSERT OR REPLACE INTO contents VALUES (?, ?)", (row.chain_id, content))

    def add_image(self, row: ImageRow, names: tuple[str, ...], replace: bool = False) -> None:
        """Add an image with names, taken from other images if necessary; a removed image returns.

        replace: also replace the stored documents, as replace_image() does.
        """
        with self._transaction() as db:
            db.execute(
                "INSERT INTO images VALUES (?, ?, ?, ?, ?, ?, ?, 0) "
                "ON CONFLICT (id) DO UPDATE SET removed = 0",
                (
                    row.id,
                    row.chain_id,
                    row.manifest_digest,
                    row.manifest,
                    row.config,
                    json.dumps(row.layers),
                    row.pulled_at,
                ),
            )
            if replace:
                _replace(db, row)
            _add_facts(db, row)
            db.executemany("INSERT OR REPLACE INTO names VALUES (?, ?)", [(name, row.id) for name in names])
        self._grow()

    def _grow(self) -> None:
        """Move new rows from the log to the file: deleting rows later then needs no disk space."""
        with self._lock:
            try:
                self._db.execute("PRAGMA wal_checkpoint(PASSIVE)")
            except sqlite3.Error as error:
                log.warning("the index stays in its log: %s", error)

    def mark_damaged(self, chain_ids: Sequence[str]) -> None:
        """Mark filesystems as damaged until add_filesystem() replaces them."""
        with self._transaction() as db:
            db.executemany(
                "INSERT OR IGNORE INTO damaged VALUES (?)", [(chain_id,) for chain_id in chain_ids]
            )

    def replace_image(self, row: ImageRow) -> None:
        """Replace an image's documents and list of layers; keep the names and the mark of removal."""
        with self._transaction() as db:
            _replace(db, row)
            _add_facts(db, row)

    def add_facts(self, row: ImageRow) -> None:
        """Add the facts of an image's documents."""
        with self._transaction() as db:
            _add_facts(db, row)

    def name(self, name: str, image_id: str | None) -> None:
        """Give a name to an image, taken from another image if necessary; None: delete the name."""
        with self._transaction() as db:
            if image_id is None:
                db.execute("DELETE FROM names WHERE name = ?", (name,))
            else:
                db.execute("INSERT OR REPLACE INTO names VALUES (?, ?)", (name, image_id))

    def unname(self, image_id: str) -> None:
        """Remove all names of an image and mark the image removed."""
        with self._transaction() as db:
            db.execute("DELETE FROM names WHERE image_id = ?", (image_id,))
            db.execute("UPDATE images SET removed = 1 WHERE id = ?", (image_id,))

    def delete_image(self, image_id: str) -> None:
        """Delete an image and all its names."""
        with self._transaction() as db:
            db.execute("DELETE FROM images WHERE id = ?", (image_id,))

    def drop_filesystems(self, chain_ids: list[str]) -> None:
        """Delete filesystems without an image."""
        with self._transaction() as db:
            db.executemany(
                "DELETE FROM filesystems WHERE chain_id = ?", [(chain_id,) for chain_id in chain_ids]
            )

    def images(self) -> list[ImageRow]:
        """All images, removed images included."""
        with self._lock, self._told("read"):
            rows = self._db.execute(
                "SELECT images.*, coalesce(facts, x'') FROM images LEFT JOIN facts ON image_id = id "
                "AND facts.manifest_digest = images.manifest_digest"
            ).fetchall()
        return [
            ImageRow(row[0], row[1], row[2], row[3], row[4], _layers(row[5]), row[6], bool(row[7]), row[8])
            for row in rows
        ]

    def names(self) -> list[tuple[str, str]]:
        """All names, as (name, image id)."""
        with self._lock, self._told("read"):
            return self._db.execute("SELECT name, image_id FROM names ORDER BY name").fetchall()

    def filesystems(self) -> list[FilesystemRow]:
        """All filesystems."""
        with self._lock, self._told("read"):
            rows = self._db.execute(
                "SELECT chain_id, type, bytes, digest, below, chain_id IN (SELECT chain_id FROM damaged), "
                "coalesce(counts, 'null') FROM filesystems LEFT JOIN losses USING (chain_id)"
            ).fetchall()
        return [
            FilesystemRow(row[0], row[1], row[2], row[3], row[4], bool(row[5]), json.loads(row[6]))
            for row in rows
        ]

    def same_content(self, content: str) -> list[str]:
        """The chain ids of filesystems with the same content, by ContentId.value, at any place in a stack."""
        with self._lock, self._told("read"):
            rows = self._db.execute("SELECT chain_id FROM contents WHERE content_id = ?", (content,))
            return [row[0] for row in rows]

    def contents(self, chain_ids: Sequence[str]) -> set[str]:
        """The known ContentId.value of each filesystem."""
        with self._lock, self._told("read"):
            query = "SELECT content_id FROM contents WHERE chain_id = ?"
            return {row[0] for chain_id in chain_ids for row in self._db.execute(query, (chain_id,))}

    def account_file(self, stack: Sequence[str], path: str) -> bytes | None:
        """The account file in a stack of filesystems, lowest first; None: no such file.

        The topmost filesystem with a row decides: the file's contents, or NULL if it deletes the file.
        """
        with self._lock, self._told("read"):
            for chain_id in reversed(stack):
                row = self._db.execute(
                    "SELECT data FROM accounts WHERE chain_id = ? AND path = ?", (chain_id, path)
                ).fetchone()
                if row is not None:
                    return None if row[0] is None else bytes(row[0])
        return None


def now() -> int:
    """Nanoseconds since the epoch."""
    return time.time_ns()


def _replace(db: sqlite3.Connection, row: ImageRow) -> None:
    stored = (row.chain_id, row.manifest_digest, row.manifest, row.config, json.dumps(row.layers))
    db.execute(
        "UPDATE images SET chain_id = ?, manifest_digest = ?, manifest = ?, config = ?, layers = ? "
        "WHERE id = ?",
        (*stored, row.id),
    )


def _add_facts(db: sqlite3.Connection, row: ImageRow) -> None:
    """Store the facts if they belong to the stored manifest."""
    db.execute(
        "INSERT OR REPLACE INTO facts SELECT id, manifest_digest, ? FROM images "
        "WHERE id = ? AND manifest_digest = ?",
        (row.facts, row.id, row.manifest_digest),
    )


def _layers(text: str) -> tuple[tuple[str, int], ...]:
    return tuple((digest, size) for digest, size in json.loads(text))
