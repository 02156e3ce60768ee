"""Changes of files and directories, from the kernel (inotify(7))."""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

MODIFY, MOVED_TO, CREATE = 0x2, 0x80, 0x100
_READ_BYTES = 64 << 10

libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def changes(mask: int, *places: bytes) -> Iterator[asyncio.Event]:
    """An event, set at each change of a place that matches ``mask``.

    OSError: no such place; ENOSPC if the user has too many watches.
    """
    loop = asyncio.get_running_loop()
    changed = asyncio.Event()
    instance = new_instance()

    def read() -> None:
        os.read(instance, _READ_BYTES)
        changed.set()

    try:
        for place in places:
            add_watch(instance, place, mask)
        loop.add_reader(instance, read)
        try:
            yield changed
        finally:
            loop.remove_reader(instance)
    finally:
        os.close(instance)


def new_instance() -> int:
    """A non-blocking descriptor of an inotify instance."""
    return _checked(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))


def add_watch(instance: int, place: bytes, mask: int) -> int:
    """The number of the watch."""
    return _checked(libc.inotify_add_watch(instance, place, ctypes.c_uint32(mask)))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
