"""Disk space for a daemon's state: on a full disk nothing new starts, but everything can still end.

A database in WAL mode reserves blocks for its write-ahead log.  With the reserve it can still delete rows;
deletion comes before space is freed.  Code that adds rows must check the free space first, or additions would
use up the reserve.
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

LEAST_BYTES = 1024 * 1024
"""Least free bytes for anything new to start."""

_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE, fallocate(2)
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def reserve(database: Path, size: int) -> None:
    """Reserve ``size`` bytes for the log of an open database; the log's length does not change.

    Opening and closing the log here is safe, because SQLite holds no lock on the log (closing any descriptor
    of a file drops the process's locks on it).  If the disk is nearly full, or the file system cannot reserve
    space, nothing changes: taking the last space would do more harm (SQLite's shared memory is a file, too).
    """
    path = database.with_name(f"{database.name}-wal")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Broken("open state", str(path), error.strerror or str(error)) from error
    try:
        if _free(os.fstatvfs(descriptor)) < size + LEAST_BYTES:
            log.warning("no disk space is reserved for %s: the disk is nearly full", path)
        elif _libc.fallocate(descriptor, _KEEP_SIZE, 0, size):
            log.info("no disk space is reserved for %s: %s", path, os.strerror(ctypes.get_errno()))
            # give back blocks reserved before the failure
            os.ftruncate(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


def check_space(path: Path) -> None:
    """Raise Exhausted when the disk of ``path`` has no space for anything new."""
    if _free(os.statvfs(path)) < LEAST_BYTES:
        raise Exhausted("write state", str(path), os.strerror(errno.ENOSPC), "free space in state_dir")


def is_full(error: BaseException) -> bool:
    """Whether the system or SQLite failed because the disk, or a quota, is full."""
    if isinstance(error, sqlite3.Error):
        # The lowest byte of an extended code is the basic code; errors of the binding itself have no code.
        return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _free(disk: os.statvfs_result) -> int:
    return disk.f_bfree * disk.f_frsize
