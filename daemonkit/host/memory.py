"""Returns freed memory to the system."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
from pathlib import Path

_LIBC = ctypes.CDLL(None)
_PAGE = os.sysconf("SC_PAGE_SIZE")
_M_ARENA_MAX = -8
"""mallopt(3)'s parameter (malloc.h of glibc): the largest number of arenas."""
_ARENAS = 2
_LOOK_SECONDS = 5.0
"""Seconds between two looks at the process's size."""
_LONGEST_SECONDS = 20.0
"""Seconds between two looks while trims free nothing: the process needs its memory."""
_GROWTH_BYTES = 8 << 20
"""Growth in bytes above the smallest size until now that justifies a trim."""
_USEFUL_BYTES = 1 << 20
"""Least bytes freed by a useful trim."""


def give_back() -> None:
    """Return freed memory to the system, after work with very many objects; blocks for about 10 ms.

    Python unmaps an empty arena. Python's free lists of tuples and dicts keep many arenas in use, and only a
    full collection empties the lists. Larger blocks come from malloc, see trim().
    """
    gc.collect()
    trim()


def trim() -> None:
    """Return malloc's free memory below its last used block (malloc_trim(3), of glibc alone).

    Blocks for about 1 ms for each 10 MiB, but not the interpreter.
    """
    found = getattr(_LIBC, "malloc_trim", None)
    if found is not None:
        found(ctypes.c_size_t(0))


def limit_arenas() -> None:
    """Let all threads share two of malloc's arenas (mallopt(3), of glibc); call before any thread starts.

    By default each thread gets an arena of its own, up to eight for each CPU.  A burst of requests reaches
    all threads, and leaves free memory between used blocks in every arena.  The daemons' threads mostly wait
    for the interpreter lock anyway, so two arenas cost no time.
    """
    found = getattr(_LIBC, "mallopt", None)
    if found is not None:
        found(_M_ARENA_MAX, _ARENAS)


def resident() -> int:
    """The process's memory, in bytes (VmRSS of proc_pid_statm(5))."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


async def keep_small() -> None:
    """Trim repeatedly while the process is larger than before; runs until cancelled.

    After a burst of requests, freed buffers lie between used blocks, and malloc keeps them. A trim during the
    burst finds the buffers in use, and freeing them does not change the size. Another trim therefore follows
    later, even if the size is unchanged.

    Reference cycles keep buffers as well, for example an error and the calls in its traceback. Python
    collects cycles only after very many new objects; an idle node never has that many. This loop therefore
    collects cycles if a trim frees nothing.
    """
    least, pause = resident(), _LOOK_SECONDS
    while True:
        await asyncio.sleep(pause)
        before = resident()
        least = min(least, before)
        if before - least < _GROWTH_BYTES:
            pause = _LOOK_SECONDS
            continue
        await asyncio.to_thread(trim)
        if before - resident() < _USEFUL_BYTES:
            await asyncio.to_thread(give_back)
        pause = _LOOK_SECONDS if before - resident() >= _USEFUL_BYTES else min(2 * pause, _LONGEST_SECONDS)
