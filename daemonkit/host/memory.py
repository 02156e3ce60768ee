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
_LONGEST = 20.0
"""Seconds between two looks while trims give nothing back: the process needs what it has."""
_GROWTH = 8 << 20
"""Bytes above the smallest size so far, from which on a trim is worth its time."""
_USEFUL = 1 << 20
"""Bytes that a trim gives back if it was of use."""


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
    """Trim again and again while the process is larger than before; runs until it is cancelled.

    A burst of requests ends with its buffers freed, between blocks that stay: malloc alone keeps them. A trim
    during the burst finds them in use, and the size does not grow when they are freed; so there is another
    trim later, whether the size has changed or not.

    Objects that refer to each other keep buffers as well, such as an error and the calls that the error came
    through. Python collects such objects once there are very many new ones, which an idle node never has: so
    they are collected here when a trim is of no use.
    """
    least, pause = resident(), _LOOK
    while True:
        await asyncio.sleep(pause)
        before = resident()
        least = min(least, before)
        if before - least < _GROWTH:
            pause = _LOOK
            continue
        await asyncio.to_thread(trim)
        if before - resident() < _USEFUL:
            await asyncio.to_thread(give_back)
        pause = _LOOK if before - resident() >= _USEFUL else min(2 * pause, _LONGEST)
