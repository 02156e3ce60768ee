"""The daemon's SQLite file: one row for each sandbox and container.

All statements run in one thread, in the order of the calls.  Each runs to its end even if its caller is
cancelled.  WAL with synchronous=NORMAL: a change is safe against SIGKILL once ``save`` returns.  A power cut
may lose the last changes, but every zone ends with the power, too.
"""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from cri.state import rows
from cri.state.container import Container, ContainerPhase
from cri.state.sandbox import Sandbox, SandboxPhase
from daemonkit.faults import Broken, Exhausted
from daemonkit.host import disk_space
from daemonkit.lifecycle import private_database
from daemonkit.tasks import complete

T = TypeVar("T")

VERSION = 4
"""Version of the tables (``user_version``).  Migrations, if there are any, count from 0.1.0."""
# The write-ahead log starts over after this many pages, half of the disk space that is reserved for it: the
# ends of containers must be written even when the disk is full.
_LOG_PAGES = 256
_LOG_BYTES = 2 * 1024 * 1024
_SCHEMA = """
CREATE TABLE sandboxes (
  id TEXT PRIMARY KEY, phase TEXT NOT NULL, created_ns INTEGER NOT NULL, handler TEXT NOT NULL,
  config BLOB NOT NULL, attachment TEXT NOT NULL, death_reason TEXT NOT NULL,
  kernel TEXT NOT NULL DEFAULT '', in_zone TEXT NOT NULL DEFAULT '[]'
) WITHOUT ROWID;
CREATE TABLE containers (
  id TEXT PRIMARY KEY, sandbox_id TEXT NOT NULL REFERENCES sandboxes (id), phase TEXT NOT NULL,
  created_ns INTEGER NOT NULL, started_ns INTEGER NOT NULL, config BLOB NOT NULL,
  image_id TEXT NOT NULL, image_reference TEXT NOT NULL, log_path TEXT NOT NULL, process TEXT NOT NULL,
  stop_signal INTEGER NOT NULL,
  finished_ns INTEGER, exit_code INTEGER, reason TEXT, message TEXT,
  volume_images TEXT NOT NULL DEFAULT '[]'
) WITHOUT ROWID;
"""


class Database:
    """Open with ``open``; close with ``close``."""

    def __init__(self, connection: sqlite3.Connection, thread: ThreadPoolExecutor, path: Path) -> None:
        self._connection = connection
        self._thread = thread
        self._path = path

    @classmethod
    async def open(cls, path: Path) -> Database:
        """Open or create the file (mode 0600).  Broken: a file of another version or program."""
        path.parent.mkdir(parents=True, exist_ok=True)
        thread = ThreadPoolExecutor(1, "store")
        try:
            connection = await asyncio.get_running_loop().run_in_executor(thread, _connect, path)
        except BaseException:
            thread.shutdown(wait=False)
            raise
        return cls(connection, thread, path)

    async def close(self) -> None:
        """Finish the statements under way, and close."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._connection.close)
        self._thread.shutdown()

    async def load(self) -> tuple[list[Sandbox], list[Container]]:
        """Load all records."""
        return await self._run(_load)

    async def save_sandbox(self, sandbox: Sandbox) -> None:
        """Insert or replace; Exhausted: no disk space for a new sandbox."""
        if sandbox.phase is SandboxPhase.CREATING:
            disk_space.check_space(self._path)
        await self._run(lambda c: _execute(c, rows.SAVE_SANDBOX, rows.of_sandbox(sandbox)))

    async def save_container(self, container: Container) -> None:
        """Insert or replace; Exhausted: no disk space for a new container."""
        if container.phase is ContainerPhase.CREATING:
            disk_space.check_space(self._path)
        await self._run(lambda c: _execute(c, rows.SAVE_CONTAINER, rows.of_container(container)))

    async def delete_sandbox(self, sandbox_id: str) -> None:
        """Delete the row; unknown ids succeed."""
        await self._run(lambda c: _execute(c, "DELETE FROM sandboxes WHERE id = ?", (sandbox_id,)))

    async def delete_container(self, container_id: str) -> None:
        """Delete the row; unknown ids succeed."""
        await self._run(lambda c: _execute(c, "DELETE FROM containers WHERE id = ?", (container_id,)))

    async def _run(self, action: Callable[[sqlite3.Connection], T]) -> T:
        loop = asyncio.get_running_loop()
        try:
            return await complete(loop.run_in_executor(self._thread, action, self._connection))
        except sqlite3.Error as error:
            raise self._fault(error) from error

    def _fault(self, error: sqlite3.Error) -> Exception:
        if disk_space.is_full(error):
            hint = "free space in state_dir"
            return Exhausted("write state", str(self._path), os.strerror(errno.ENOSPC), hint)
        return Broken("write state", str(self._path), str(error))


def _connect(path: Path) -> sqlite3.Connection:
    private_database(path)
    try:
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            connection.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {VERSION}; COMMIT;")
        elif version != VERSION:
            cause = f"it has version {version}, this daemon knows {VERSION}"
            raise Broken("open state", str(path), cause, "use the xenpod-cri that wrote it")
    except sqlite3.Error as error:
        raise Broken("open state", str(path), str(error)) from error
    disk_space.reserve(path, _LOG_BYTES)
    return connection


def _load(connection: sqlite3.Connection) -> tuple[list[Sandbox], list[Container]]:
    sandboxes = [rows.to_sandbox(row) for row in connection.execute(rows.LOAD_SANDBOXES)]
    containers = [rows.to_container(row) for row in connection.execute(rows.LOAD_CONTAINERS)]
    return sandboxes, containers


def _execute(connection: sqlite3.Connection, statement: str, values: tuple[object, ...]) -> None:
    connection.execute(statement, values)
