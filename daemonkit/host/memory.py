"""Returns freed memory to the system."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
from pathlib import Path

_LIBC = ctypes.CDLL(None)
_PAGE = os.sysconf("SC_PAGE_SIZE")
_LOOK = 5.0
"""Seconds between two looks at the process's size."""
_GROWTH = 8 << 20
"""Bytes by which the process has grown since it was last trimmed, from which on it is worth another trim."""


def give_back() -> None:
    """Return freed memory to the system, after work with very many objects; blocks for some 10 ms.

    Python unmaps an arena once nothing is left in it. Its free lists of tuples and dicts keep many from that,
    and only a full collection empties them. Larger blocks come from malloc, see trim().
    """
    gc.collect()
    trim()


def trim() -> None:
    """Return what malloc keeps below its last block in use (malloc_trim(3), of glibc alone).

    It blocks, for about 1 ms for each 10 MiB, but not the interpreter.
    """
    found = getattr(_LIBC, "malloc_trim", None)
    if found is not None:
        found(ctypes.c_size_t(0))


def resident() -> int:
    """The process's memory, in bytes (VmRSS of proc_pid_statm(5))."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


async def keep_small() -> None:
    """Trim again and again, whenever the process has grown; runs until it is cancelled.

    A burst of requests ends with its buffers freed, between blocks that stay: malloc alone keeps them.
    """
    trimmed = resident()
    while True:
        await asyncio.sleep(_LOOK)
        # It may also have become smaller by itself.
        trimmed = min(trimmed, resident())
        if resident() - trimmed >= _GROWTH:
            await asyncio.to_thread(trim)
            trimmed = resident()
