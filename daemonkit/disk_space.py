"""Room on the disk for a daemon's state: on a full one nothing new begins, and what is there can still end.

A database in WAL mode keeps blocks for its write-ahead log, so that the removal of rows can be written, and
with it what frees space.  Additions look for room first: they would use those blocks up.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import sqlite3
from pathlib import Path

from daemonkit.faults import Broken, Exhausted

log = logging.getLogger(__name__)

LEAST = 1024 * 1024
"""Bytes that must be free for anything new."""

_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE, fallocate(2)
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def keep(database: Path, size: int) -> None:
    """Blocks of ``size`` bytes for the log of a database that is open; the file's length stays as it is.

    SQLite holds no locks on that file, which the closing of another descriptor would take away.  A disk that
    is nearly full already, or a file system that cannot do it, leaves all as it was: to take the last space
    would harm more than it helps (SQLite's shared memory is a file, too).
    """
    path = database.with_name(f"{database.name}-wal")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Broken("open state", str(path), error.strerror or str(error)) from error
    try:
        if _free(os.fstatvfs(descriptor)) < size + LEAST:
            log.warning("no room is kept for %s: the disk is nearly full", path)
        elif _libc.fallocate(descriptor, _KEEP_SIZE, 0, size):
            log.info("no room is kept for %s: %s", path, os.strerror(ctypes.get_errno()))
            # what it took before it failed
            os.ftruncate(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


def check(path: Path) -> None:
    """Exhausted when the disk that ``path`` is on has no room for anything new."""
    if _free(os.statvfs(path)) < LEAST:
        raise Exhausted("write state", str(path), os.strerror(errno.ENOSPC), "free space in state_dir")


def is_full(error: BaseException) -> bool:
    """Whether the system, or SQLite, refused for want of space, or of quota."""
    if isinstance(error, sqlite3.Error):
        # Extended codes are above the lowest byte; errors of the binding itself have no code.
        return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _free(disk: os.statvfs_result) -> int:
    return disk.f_bfree * disk.f_frsize
