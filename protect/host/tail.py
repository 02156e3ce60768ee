"""Follows a file to which another process appends, and whose beginning is cut off from time to time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from pathlib import Path

from daemonkit.host import inotify
from daemonkit.tasks import race

_CHUNK_BYTES = 64 << 10
_MOST_BYTES = 4 << 20
"""Bytes before the end in which lines are searched; the limit of a console log."""
_MARK_BYTES = 256
"""Bytes that identify the reading position after a cut."""


async def follow(path: Path, lines: int, ended: asyncio.Event | None) -> AsyncGenerator[bytes, None]:
    """Yield the last ``lines`` lines, 0 for all; then new data, until ``ended``.

    None: stop at the present end.  FileNotFoundError: no such file.
    """
    descriptor = await asyncio.to_thread(os.open, path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        with inotify.changes(inotify.MODIFY, b"/proc/self/fd/%d" % descriptor) as changed:
            tail = _Tail(descriptor)
            await asyncio.to_thread(tail.begin, lines)
            while True:
                changed.clear()
                last = ended is None or ended.is_set()
                while data := await asyncio.to_thread(tail.read):
                    yield data
                if last or ended is None:
                    return
                await race(changed.wait(), ended.wait())
    finally:
        os.close(descriptor)


class _Tail:
    """The reading position in an open file."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._at = 0
        self._mark = b""

    def begin(self, lines: int) -> None:
        """Go to the beginning of the last lines."""
        size = os.fstat(self._descriptor).st_size
        start = max(0, size - _MOST_BYTES)
        if lines:
            content = os.pread(self._descriptor, size - start, start).removesuffix(b"\n")
            at = len(content)
            while lines and at >= 0:
                at = content.rfind(b"\n", 0, at)
                lines -= 1
            start += at + 1
        self._at = start

    def read(self) -> bytes:
        """The new data; empty if none."""
        if os.fstat(self._descriptor).st_size < self._at:
            self._find()
        data = os.pread(self._descriptor, _CHUNK_BYTES, self._at)
        self._at += len(data)
        self._mark = (self._mark + data)[-_MARK_BYTES:]
        return data

    def _find(self) -> None:
        """Find the position again after a cut: behind the last data read, if still present."""
        content = os.pread(self._descriptor, _MOST_BYTES, 0)
        found = content.rfind(self._mark) if self._mark else -1
        self._at = found + len(self._mark) if found >= 0 else 0
