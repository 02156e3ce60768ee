"""Returns freed memory to the system."""

from __future__ import annotations

import ctypes
import gc

_LIBC = ctypes.CDLL(None)


def give_back() -> None:
    """Return freed memory to the system, after work with very many objects; blocks for some 10 ms.

    Python unmaps an arena once nothing is left in it. Its free lists of tuples and dicts keep many from that,
    and only a full collection empties them. Larger blocks come from malloc, which keeps what lies below the
    last one in use (malloc_trim(3), of glibc alone).
    """
    gc.collect()
    trim = getattr(_LIBC, "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))
