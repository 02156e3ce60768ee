"""Space kept on the disk for the index: images can be removed when there is none, and make some."""

from __future__ import annotations

import ctypes
import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)

BYTES = 512 * 1024
CHECKPOINT_PAGES = 64
"""Half of it: the log is begun anew after so many pages, so that the other half is always free."""

_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE, fallocate(2)
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def reserve(database: Path) -> None:
    """Blocks for the write-ahead log of a database that is open; its size stays as it is.

    SQLite holds no locks on that file, which the closing of another descriptor would take away. A disk that
    is full already, or a file system that cannot do it, leaves all as it was.
    """
    log_file = database.with_name(f"{database.name}-wal")
    descriptor = os.open(log_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if _libc.fallocate(descriptor, _KEEP_SIZE, 0, BYTES):
            log.info("no space is kept for the index: %s", os.strerror(ctypes.get_errno()))
    finally:
        os.close(descriptor)
